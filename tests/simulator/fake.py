"""A fake of the C interface: clients of a workload, and the functions of the client library that it calls.

`python -m tests.simulator.fake WORKLOAD SEED [HOST]` runs a workload in a fake of the simulator, and prints
its report. With the library of a host, all stages go through it; without one they go to Python directly. The
keys are those of our embedded engine. Each answer comes later. A commit may fail, or have
an unknown result.

The fake is strict. A call that would block fails, and so does a call of another process than the database's.
"""

import ctypes
import importlib
import sys
from collections.abc import Callable
from ctypes import c_void_p as address
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from fdbqueue.embedded.store import private_store
from fdbqueue.embedded.transaction import Database
from fdbqueue.embedded.view import KeySelector
from fdbqueue.testing.scheduler import Host, SimulatedRuntime
from tests.simulator import abi

SLOW_S = 0.01
REFUSED_P, UNKNOWN_P = 0.05, 0.05
ROWS_MAX = 3
"""The rows of one reply: a longer range takes several."""
MEMBERS = 3
_END_S = 100_000.0


class Loop:
    """Time, and what will happen."""

    def __init__(self, seed: int) -> None:
        self.now, self.random = 0.0, Random(seed)
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._numbers = count()
        self.process = 0

    def at(self, seconds: float, function: Callable[[], None]) -> None:
        """Call a function after that time, in the process that runs now."""
        heappush(self._events, (self.now + seconds, next(self._numbers), self.process, function))

    def park(self, _: float | None) -> bool:
        """For the engine below, which waits after an error: the fake has waited."""
        return False

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            assert self._events, "nothing will happen any more"
            self.now, _, self.process, function = heappop(self._events)
            assert self.now < _END_S, "no end"
            function()


class Function:
    """A function of the library. The binding declares its types; `errcheck` sees the code that it returns."""

    def __init__(self, called: Callable[..., Any]) -> None:
        self._called = called
        self.errcheck: Callable[..., Any] = lambda code, *_: code

    def __call__(self, *arguments: Any) -> Any:
        return self.errcheck(self._called(*arguments), self, arguments)


class Future:
    def __init__(self) -> None:
        self.is_ready, self.result, self.code = False, None, 0
        self.callback: Callable[[Any], None] | None = None

    def complete(self, result: Any = None, code: int = 0) -> None:
        if not self.is_ready:
            self.is_ready, self.result, self.code = True, result, code
            if self.callback is not None:
                self.callback(None)


class Library:
    """The functions of `libfdb_c` that the binding calls here; the others may be looked up, not called."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._numbers = count(1)
        self.objects: dict[int, Any] = {}
        """Futures, and databases and transactions with their processes, by their addresses."""
        self._store = private_store(SimulatedRuntime(loop, Host("fake"), loop.random, 1))  # type: ignore[arg-type]
        self._kept: list[Any] = []

    def __getattr__(self, name: str) -> Function:
        made = Function(getattr(type(self), f"_{name.removeprefix('fdb_')}", self._absent).__get__(self))
        setattr(self, name, made)
        return made

    def _absent(self, *_: Any) -> None:
        raise AssertionError("the engine calls a function that the fake does not have")

    def place(self, made: Any) -> int:
        self.objects[number := next(self._numbers)] = made
        return number

    def database(self, process: int) -> int:
        runtime = SimulatedRuntime(self._loop, Host("fake"), self._loop.random, 1)  # type: ignore[arg-type]
        return self.place((Database(self._store, runtime), process))

    def _of(self, place: int) -> Any:
        found, process = self.objects[place]
        assert process == self._loop.process, "another process uses the database"
        return found

    def later(self, answer: Callable[[], Any]) -> int:
        """The address of a future with the answer of a function, which may raise an FDBError."""
        future = Future()
        try:
            ended = partial(future.complete, answer())
        except Exception as error:
            ended = partial(future.complete, None, error.code)  # type: ignore[attr-defined]  # as others fail the run
        self._loop.at(self._loop.random.random() * SLOW_S, ended)
        return self.place(future)

    # -- the library --------------------------------------------------------------------------------------

    def _get_max_api_version(self) -> int:
        return 740

    def _select_api_version_impl(self, version: int, header_version: int) -> int:
        return 0 if version <= header_version <= 740 else 2203

    def _get_error(self, code: int) -> bytes:
        return b"error %d" % code

    def _error_predicate(self, _: int, code: int) -> int:
        return int(code in (1007, 1009, 1020, 1021, 1031, 1037, 1039))

    # -- futures ------------------------------------------------------------------------------------------

    def _future_is_ready(self, place: int) -> int:
        return int(self.objects[place].is_ready)

    def _future_set_callback(self, place: int, callback: Callable[[Any], None], _: None) -> int:
        future = self.objects[place]
        assert future.callback is None, "a future has one callback"
        future.callback = callback
        if future.is_ready:
            callback(None)
        return 0

    def _future_get_error(self, place: int) -> int:
        return int(self.objects[place].code)

    def _future_cancel(self, place: int) -> None:
        self.objects[place].complete(None, 1101)

    def _future_destroy(self, place: int) -> None:
        future = self.objects.pop(place)
        if future.callback is None:
            future.complete(None, 1101)

    def _future_release_memory(self, place: int) -> None:
        """Keep the memory."""

    def _future_get_int64(self, place: int, value: Any) -> int:
        if not self.objects[place].code:
            value._obj.value = self.objects[place].result
        return int(self.objects[place].code)

    def _future_get_key(self, place: int, key: Any, length: Any) -> int:
        return self._future_get_value(place, None, key, length)

    def _future_get_value(self, place: int, present: Any, value: Any, length: Any) -> int:
        future = self.objects[place]
        if present is not None:
            present._obj.value = int(future.result is not None)
        if future.result is not None:
            self._point(value._obj, future.result)
            length._obj.value = len(future.result)
        return int(future.code)

    def _point(self, pointer: Any, value: bytes) -> None:
        self._kept = [*self._kept[-99:], memory := ctypes.create_string_buffer(value, max(1, len(value)))]
        pointer.contents = ctypes.c_byte.from_buffer(memory)

    def _future_get_keyvalue_array(self, place: int, rows: Any, number: Any, more: Any) -> int:
        future = self.objects[place]
        if not future.code:
            found, more._obj.value = future.result
            structure = type(rows._obj.contents)
            array = (structure * max(1, len(found)))()
            for at, (key, value) in zip(array, found, strict=False):
                at.key, at.key_length = self._pointer(key), len(key)
                at.value, at.value_length = self._pointer(value), len(value)
            self._kept = [*self._kept[-99:], array]
            rows._obj.contents = array[0]
            number._obj.value = len(found)
        return int(future.code)

    def _pointer(self, value: bytes) -> Any:
        memory = ctypes.create_string_buffer(value, max(1, len(value)))
        self._kept = [*self._kept[-99:], memory]
        return ctypes.cast(memory, ctypes.POINTER(ctypes.c_byte))

    # -- transactions -------------------------------------------------------------------------------------

    def _database_create_transaction(self, place: int, made: Any) -> int:
        made._obj.value = self.place((self._of(place).create_transaction(), self._loop.process))
        return 0

    def _transaction_destroy(self, place: int) -> None:
        self.objects.pop(place)

    def _transaction_get_read_version(self, place: int) -> int:
        return self.later(lambda: self._of(place).get_read_version().wait())

    def _transaction_set_read_version(self, place: int, version: int) -> None:
        self._of(place).set_read_version(version)

    def _reader(self, place: int, is_snapshot: int) -> Any:
        return self._of(place).snapshot if is_snapshot else self._of(place)

    def _transaction_get(self, place: int, key: bytes, _: int, is_snapshot: int) -> int:
        return self.later(lambda: self._reader(place, is_snapshot).get(key).value)

    def _transaction_get_key(
        self, place: int, key: bytes, _: int, or_equal: int, offset: int, is_snapshot: int
    ) -> int:
        selector = KeySelector(key, bool(or_equal), offset)
        return self.later(lambda: bytes(self._reader(place, is_snapshot).get_key(selector)))

    def _transaction_get_range(self, place: int, *given: Any) -> int:
        begin, _, or_equal, offset, end, _, end_or_equal, end_offset, limit, _, _, _, is_snapshot, reverse = (
            given
        )
        most = min(limit or ROWS_MAX, ROWS_MAX)

        def rows() -> tuple[list[tuple[bytes, bytes]], int]:
            first = KeySelector(begin, bool(or_equal), offset)
            last = KeySelector(end, bool(end_or_equal), end_offset)
            found = self._reader(place, is_snapshot).get_range(first, last, most, bool(reverse)).to_list()
            return [(row.key, row.value) for row in found], int(len(found) == most)

        return self.later(rows)

    def _transaction_set(self, place: int, key: bytes, _: int, value: bytes, __: int) -> None:
        self._of(place).set(key, value)

    def _transaction_clear(self, place: int, key: bytes, _: int) -> None:
        self._of(place).clear(key)

    def _transaction_clear_range(self, place: int, begin: bytes, _: int, end: bytes, __: int) -> None:
        self._of(place).clear_range(begin, end)

    def _transaction_atomic_op(
        self, place: int, key: bytes, _: int, param: bytes, __: int, kind: int
    ) -> None:
        kinds = importlib.import_module("fdb.fdboptions").MutationType
        names = [name.lower() for name, (code, *_) in kinds.items() if code == kind]
        next(filter(None, (getattr(self._of(place), name, None) for name in names)))(key, param)

    def _transaction_add_conflict_range(
        self, place: int, begin: bytes, _: int, end: bytes, __: int, kind: int
    ) -> int:
        tr = self._of(place)
        (tr.add_write_conflict_range if kind else tr.add_read_conflict_range)(begin, end)
        return 0

    def _transaction_watch(self, place: int, key: bytes, _: int) -> int:
        future = Future()
        watch = self._of(place).watch(key)

        def tell(_: Any) -> None:
            code = getattr(watch._error, "code", 0)
            self._loop.at(self._loop.random.random() * SLOW_S, partial(future.complete, None, code))

        watch.on_ready(tell)
        return self.place(future)

    def _transaction_commit(self, place: int) -> int:
        tr, dice = self._of(place), self._loop.random.random()

        def commit() -> None:
            if dice < REFUSED_P:
                tr.on_error(1020)
                raise _error(1020)
            tr.commit().wait()
            if dice > 1 - UNKNOWN_P:
                raise _error(1021)

        return self.later(commit)

    def _transaction_on_error(self, place: int, code: int) -> int:
        return self.later(lambda: self._of(place).on_error(code).wait())

    def _transaction_get_committed_version(self, place: int, version: Any) -> int:
        version._obj.value = self._of(place).get_committed_version()
        return 0

    def _transaction_get_versionstamp(self, place: int) -> int:
        future = Future()
        stamp = self._of(place).get_versionstamp()
        stamp.on_ready(lambda _: self._loop.at(SLOW_S, partial(future.complete, bytes(stamp))))
        return self.place(future)

    def _transaction_get_approximate_size(self, place: int) -> int:
        return self.later(lambda: self._of(place).get_approximate_size().wait())

    def _transaction_set_option(self, *_: Any) -> int:
        return 0

    def _transaction_reset(self, place: int) -> None:
        self._of(place).reset()

    def _transaction_cancel(self, place: int) -> None:
        self._of(place).cancel()


def _error(code: int) -> Exception:
    made: Exception = importlib.import_module("fdbqueue.core.seam").FDBError(code)
    return made


# -- the simulator ----------------------------------------------------------------------------------------


class Handle(ctypes.Structure):
    _fields_ = [("inner", address), ("table", address)]


_STAGE = ctypes.CFUNCTYPE(None, address, address, Handle)


class HostTable(ctypes.Structure):
    _fields_ = [
        ("free", ctypes.CFUNCTYPE(None, address)),
        *((stage, _STAGE) for stage in ("setup", "start", "check")),
        ("metrics", ctypes.CFUNCTYPE(None, address, Handle)),
        ("check_timeout", ctypes.CFUNCTYPE(ctypes.c_double, address)),
    ]


class HostWorkload(ctypes.Structure):
    _fields_ = [("api_version", ctypes.c_int), ("inner", address), ("table", ctypes.POINTER(HostTable))]


Stage = Callable[[str, int, int, int], None]


class Simulator:
    """The clients of one workload: their contexts, their promises, and the stages."""

    def __init__(self, name: str, seed: int, options: dict[str, str]) -> None:
        self.loop = Loop(seed)
        self.library = Library(self.loop)
        self._name, self._seed, self._options = name, seed, options
        self._kept: list[Any] = []
        self.answers: dict[int, bool] = {}
        """The value of each promise, by its member."""
        self._promises = abi.PromiseTable(
            abi.PromiseTable._fields_[0][1](lambda _: None), abi.PromiseTable._fields_[1][1](self._send)
        )

    def _send(self, member: int, value: bool) -> None:
        assert self.loop.process == member, "another process ends the stage"
        self.answers[member] = value

    def context(self, member: int) -> abi.ContextStructure:
        types: list[Any] = [field[1] for field in abi.ContextTable._fields_]
        functions = (
            lambda *_: None,
            lambda _: self.loop.process,
            lambda _, process: setattr(self.loop, "process", process),
            lambda _: self.loop.now,
            lambda _: self.loop.random.getrandbits(32),
            None,
            lambda _: member - 1,
            lambda _: MEMBERS,
            lambda _: self._seed,
            lambda _, seconds: self._delay(seconds),
        )
        made = [
            kind(function) if function else kind() for kind, function in zip(types, functions, strict=True)
        ]
        table = abi.ContextTable(*made)
        structure = abi.ContextStructure(1, member, ctypes.pointer(table))
        self._kept += [made, table, structure]
        return structure

    def _delay(self, seconds: float) -> int:
        future = Future()
        self.loop.at(seconds, future.complete)
        return self.library.place(future)

    def play(self, host: str | None) -> bool:
        """Run all stages; returns false if a check has failed."""
        option: Any = lambda _, name, default: self._options.get(name, default)  # noqa: E731
        abi.Context.option = option  # type: ignore[method-assign]  # ctypes has no callback with a structure
        self._load_binding()
        self._member(MEMBERS, host)  # as a tester makes that is asked twice: no stage is called of it
        members = [self._member(number, host) for number in range(1, MEMBERS + 1)]
        for stage in ("setup", "start", "check"):
            self.answers.clear()
            databases = [self.library.database(number) for number in range(1, MEMBERS + 1)]
            for number, member in enumerate(members, 1):
                self.loop.process = number
                table = ctypes.addressof(self._promises)
                self.loop.at(0, partial(member, stage, databases[number - 1], number, table))
            self.loop.run(lambda: len(self.answers) == MEMBERS)
            for database in databases:  # each ends with its stage
                del self.library.objects[database]
        return all(self.answers.values())

    def _load_binding(self) -> None:
        real, ctypes.CDLL = ctypes.CDLL, lambda _: self.library  # type: ignore[assignment, misc]
        try:
            importlib.import_module("fdb.impl")
        finally:
            ctypes.CDLL = real  # type: ignore[misc]

    def _member(self, number: int, host: str | None) -> Stage:
        self.loop.process = number
        if host is not None:
            return self._through(host, number)
        stages = importlib.import_module("tests.simulator.stages")
        if not self._kept:
            self._kept += [enter := ctypes.CFUNCTYPE(None)(stages.work)]
            stages.prepare(ctypes.cast(enter, address).value)
        made = stages.make(self._name, ctypes.addressof(self.context(number)))
        return lambda stage, database, inner, table: getattr(made, stage)(database, inner, table)

    def _through(self, host: str, number: int) -> Stage:
        factory = ctypes.CDLL(host).workloadCFactory
        factory.argtypes, factory.restype = [ctypes.c_char_p, abi.ContextStructure], HostWorkload
        made = factory(self._name.encode(), self.context(number))
        table = made.table.contents
        assert (made.api_version, table.check_timeout(made.inner) > 0) == (1, True)
        return lambda stage, database, inner, promises: getattr(table, stage)(
            made.inner, database, Handle(inner, promises)
        )


if __name__ == "__main__":
    sys.exit(
        not Simulator(sys.argv[1], int(sys.argv[2]), {}).play(sys.argv[3] if len(sys.argv) > 3 else None)
    )
