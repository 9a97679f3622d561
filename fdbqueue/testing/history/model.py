"""Models of queues, and the recorder of the calls of real threads and processes.

**Models.** A model is a queue as one object, on which the calls of a history happen one after another.
`put` has a value as its argument, and `take` has one as its result, or None. No two puts of a history have
the same value. Each model names its other calls.

A bag gives its values in any order. From a line they leave first in, first out: a put that has returned
before another one began is the first. With `keyed`, values are pairs of a key and a value: each key is in
order, and keys come in any order.

An answer of nothing is true. A take with an unknown result may hold one value: its process was killed while
the queue gave it one. The queue may give it to another take later. A line then has it at its old place.

**Leases.** A task that was taken is at no other take until it is released or its lease is over. The result of
`take` is None, or a pair of the task and its lease. The argument of `ack`, `release` and `renew` is such a
pair, and "refused" is their result if the lease is not live. A lease lasts for `ttr_us` from its take or its
last renewal on. After that it ends at any moment, and may be used until then.

**Recorder.** It writes the calls of one thread down while it makes them. One system call writes a line, so
a killed process has written it or not:

    {"process": "w1", "number": 0, "begin_us": 17, "name": "take", "argument": null}
    {"process": "w1", "number": 0, "end_us": 42, "result": "v1"}

A call whose second line is missing has an unknown result.
"""

import json
import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from fdbqueue.core.runtime import RealRuntime, Runtime


@dataclass(frozen=True, slots=True)
class Call:
    """A call by one process of a history, which makes one call at a time.

    Times are microseconds of a clock that all processes of the history share. A call without `end_us` has
    an unknown result: it may have had its effect, at any moment since its begin, or none.
    """

    process: str
    name: str
    argument: Any
    begin_us: int
    end_us: int | None = None
    result: Any = None

    @property
    def is_known(self) -> bool:
        return self.end_us is not None

    def __str__(self) -> str:
        told = "unknown" if self.end_us is None else f"{self.result!r} at {self.end_us} us"
        return f"{self.process}: {self.name}({self.argument!r}) from {self.begin_us} us: {told}"


def in_order(calls: Iterable[Call]) -> list[Call]:
    return sorted(calls, key=lambda call: call.begin_us)


State = Any
"""A hashable value: the contents of the queue between two calls."""


class Model(Protocol):
    """Its functions are pure."""

    def start(self) -> Hashable:
        """The state before all calls."""

    def after(self, state: State, call: Call) -> Hashable | None:
        """The state after a call with a known result; None if that result is wrong in this state."""

    def effects(self, state: State, call: Call) -> Iterable[Hashable]:
        """The states after a call with an unknown result, beside the one in which it had no effect."""

    def events(self, state: State) -> Iterable[tuple[int, Hashable]]:
        """Changes that no call makes: for each, the first possible moment in microseconds, and its state."""

    def added(self, call: Call) -> Hashable | None:
        """The value that a call lets later takes find; None for a call that adds none."""

    def taken(self, call: Call) -> Hashable | None:
        """The value that a take with a known result has returned; None for any other call."""


def hashable(value: Any) -> Hashable:
    return tuple(map(hashable, value)) if isinstance(value, list | tuple) else value


class TakenOnce:
    """The part that models of items share: a take removes its item."""

    def added(self, call: Call) -> Hashable | None:
        return hashable(call.argument) if call.name == "put" else None

    def taken(self, call: Call) -> Hashable | None:
        return hashable(call.result) if call.name == "take" and call.is_known else None


def ends_of_takes(calls: Sequence[Call], model: Model) -> dict[Hashable, list[int]]:
    """For each value, the ends of the takes that returned it, in order."""
    ends: dict[Hashable, list[int]] = {}
    for call in calls:
        value = model.taken(call)
        if value is not None and call.end_us is not None:
            ends.setdefault(value, []).append(call.end_us)
    return {value: sorted(found) for value, found in ends.items()}


class Contents(NamedTuple):
    there: frozenset[Hashable] = frozenset()
    held: frozenset[Hashable] = frozenset()
    """Values that takes with unknown results hold."""


class Bag(TakenOnce):
    def start(self) -> Contents:
        return Contents()

    def after(self, state: Contents, call: Call) -> Contents | None:
        if call.name == "put":
            return state._replace(there=state.there | {hashable(call.argument)})
        if call.result is None:
            return None if state.there else state
        value = hashable(call.result)
        return state._replace(there=state.there - {value}) if value in state.there else None

    def effects(self, state: Contents, call: Call) -> Iterable[Contents]:
        if call.name == "put":
            yield state._replace(there=state.there | {hashable(call.argument)})
            return
        for value in state.there:
            yield Contents(state.there - {value}, state.held | {value})

    def events(self, state: Contents) -> Iterable[tuple[int, Contents]]:
        """A value that a dead process holds comes back."""
        for value in state.held:
            yield 0, Contents(state.there | {value}, state.held - {value})


class Item(NamedTuple):
    place: int
    key: Hashable
    value: Hashable


class Line(NamedTuple):
    puts: int = 0
    """Number of puts, which is the place of the next one."""
    there: frozenset[Item] = frozenset()
    held: frozenset[Item] = frozenset()
    """Items that takes with unknown results hold."""


class Fifo(TakenOnce):
    def __init__(self, *, keyed: bool = False) -> None:
        self._keyed = keyed

    def start(self) -> Line:
        return Line()

    def after(self, state: Line, call: Call) -> Line | None:
        if call.name == "put":
            return self._put(state, call)
        if call.result is None:
            return None if state.there else state
        wanted = hashable(call.result)
        found = [item for item in _first_of_keys(state) if item.value == wanted]
        return state._replace(there=state.there - set(found)) if found else None

    def effects(self, state: Line, call: Call) -> Iterable[Line]:
        if call.name == "put":
            yield self._put(state, call)
            return
        for item in _first_of_keys(state):
            yield Line(state.puts, state.there - {item}, state.held | {item})

    def events(self, state: Line) -> Iterable[tuple[int, Line]]:
        """An item that a dead process holds comes back to its old place."""
        for item in state.held:
            yield 0, Line(state.puts, state.there | {item}, state.held - {item})

    def _put(self, state: Line, call: Call) -> Line:
        value = hashable(call.argument)
        key = call.argument[0] if self._keyed else None
        return state._replace(puts=state.puts + 1, there=state.there | {Item(state.puts, key, value)})


def _first_of_keys(state: Line) -> Iterable[Item]:
    firsts: dict[Hashable, Item] = {}
    for item in state.there:
        other = firsts.get(item.key)
        if other is None or item.place < other.place:
            firsts[item.key] = item
    return firsts.values()


R = TypeVar("R")
SUFFIX = ".history"
REFUSED = "refused"
"""The result of a call that has raised an error by which the queue says that nothing was changed."""


class Recorder:
    """The calls of one process of a history, in the file `process`.history of `directory`.

    For each thread, use a recorder with a name of its own. The clock is the monotonic one, which all
    processes of a machine share. It does not go on over a restart of the machine.
    """

    def __init__(self, directory: Path, process: str, runtime: Runtime | None = None) -> None:
        self._process = process
        self._runtime = runtime or RealRuntime()
        path = directory / f"{process}{SUFFIX}"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
        self._number = 0

    def call(
        self,
        name: str,
        argument: Any,
        function: Callable[[], R],
        *,
        shown: Callable[[R], Any] = lambda result: result,
        refusals: tuple[type[Exception], ...] = (),
    ) -> R | None:
        """Call `function`, record it, and return its result; None if it has raised one of `refusals`.

        `argument`, and the value that `shown` makes of the result, must be values of JSON. A refusal is the
        result "refused". After any other error the result of the call is unknown.
        Raises: the errors of `function`, refusals aside.
        """
        number, self._number = self._number, self._number + 1
        self._write({"number": number, "begin_us": self._now_us(), "name": name, "argument": argument})
        try:
            result = function()
        except refusals:
            self._write({"number": number, "end_us": self._now_us(), "result": REFUSED})
            return None
        self._write({"number": number, "end_us": self._now_us(), "result": shown(result)})
        return result

    def close(self) -> None:
        os.close(self._file)

    def _now_us(self) -> int:
        return round(self._runtime.monotonic() * 1_000_000)

    def _write(self, event: dict[str, Any]) -> None:
        line = json.dumps({"process": self._process, **event}) + "\n"
        os.write(self._file, line.encode())


def read(directory: Path) -> list[Call]:
    """The calls of all recorders of a directory, by their begins."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    return calls_of(line for path in paths for line in path.read_text().splitlines())


def calls_of(lines: Iterable[str]) -> list[Call]:
    """The calls that lines tell of, in any order of their processes, by their begins."""
    begins: dict[tuple[str, int], dict[str, Any]] = {}
    ends: dict[tuple[str, int], dict[str, Any]] = {}
    for line in lines:
        event = json.loads(line)
        (begins if "begin_us" in event else ends)[event["process"], event["number"]] = event
    return in_order(_call(begin, ends.get(key)) for key, begin in begins.items())


def _call(begin: dict[str, Any], end: dict[str, Any] | None) -> Call:
    known = () if end is None else (end["end_us"], end["result"])
    return Call(begin["process"], begin["name"], begin["argument"], begin["begin_us"], *known)


def lines_of(calls: Iterable[Call]) -> Iterator[str]:
    """The lines from which `calls_of` makes these calls."""
    for number, call in enumerate(in_order(calls)):
        which = {"process": call.process, "number": number}
        begin = {"begin_us": call.begin_us, "name": call.name, "argument": call.argument}
        yield json.dumps(which | begin)
        if call.is_known:
            yield json.dumps(which | {"end_us": call.end_us, "result": call.result})


def edn_of(calls: Iterable[Call]) -> Iterator[str]:
    """The events of the calls in the order of their times: :invoke, then :ok, or :fail if it was refused.

    A call with an unknown result ends with :info behind all others, so it is concurrent with all after it.
    Jepsen takes a process for ended then, so the next call of its thread has the number of a new process.
    """
    for index, (_, kind, call, process) in enumerate(_events(calls)):
        yield _map(
            process=process,
            type=_Keyword(kind),
            f=_Keyword(call.name),
            value=call.argument if kind != "ok" else call.result,
            time=call.begin_us * 1000 if kind == "invoke" or call.end_us is None else call.end_us * 1000,
            index=index,
        )


def _events(calls: Iterable[Call]) -> list[tuple[tuple[int, int], str, Call, int]]:
    """Begins and ends, each with its place and the number of its process. Of one time, begins come first."""
    events = []
    for call, process in _numbered(calls):
        events.append(((call.begin_us, 0), "invoke", call, process))
        if call.end_us is None:
            events.append(((1 << 62, 1), "info", call, process))
        else:
            kind = "fail" if call.result == REFUSED else "ok"
            events.append(((call.end_us, 1), kind, call, process))
    return sorted(events, key=lambda event: event[0])


def _numbered(calls: Iterable[Call]) -> Iterator[tuple[Call, int]]:
    numbers: dict[str, int] = {}
    processes = 0
    for call in sorted(calls, key=lambda call: call.begin_us):
        if call.process not in numbers:
            numbers[call.process], processes = processes, processes + 1
        yield call, numbers[call.process]
        if not call.is_known:
            del numbers[call.process]


class _Keyword(str):
    """A name that EDN writes with a colon."""


def _map(**entries: Any) -> str:
    return "{" + ", ".join(f":{name} {_value(value)}" for name, value in entries.items()) + "}"


def _value(value: Any) -> str:
    if isinstance(value, _Keyword):
        return f":{value}"
    if value is None or isinstance(value, bool):
        return {None: "nil", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_value(name)} {_value(each)}" for name, each in value.items()) + "}"
    return repr(value)


class Task(NamedTuple):
    value: Hashable
    lease: Hashable = None
    """None for a task that is ready."""
    until_us: int = 0
    """The first moment at which the lease may end."""


Tasks = frozenset[Task]


class Leases:
    def __init__(self, ttr_us: int) -> None:
        self._ttr_us = ttr_us

    def start(self) -> Tasks:
        return frozenset()

    def after(self, state: Tasks, call: Call) -> Tasks | None:
        if call.name == "put":
            return state | {Task(hashable(call.argument))}
        if call.name == "take":
            return self._taken(state, call)
        held = _held(state, call)
        if (call.result == REFUSED) != (held is None):
            return None
        return state if held is None else self._ended(state, held, call)

    def effects(self, state: Tasks, call: Call) -> Iterable[Tasks]:
        """A take that told no lease has one that may end at once: no caller relies on it."""
        if call.name == "put":
            yield state | {Task(hashable(call.argument))}
        elif call.name == "take":
            for task in state:
                if task.lease is None:
                    lease = "unknown", call.process, call.begin_us
                    yield state - {task} | {Task(task.value, lease, call.begin_us)}
        elif call.name != "renew":  # an unknown renewal can only delay the end, which may come late anyway
            held = _held(state, call)
            if held is not None:
                yield self._ended(state, held, call)

    def events(self, state: Tasks) -> Iterable[tuple[int, Tasks]]:
        for task in state:
            if task.lease is not None:
                yield task.until_us, state - {task} | {Task(task.value)}

    def added(self, call: Call) -> Hashable | None:
        if call.name == "put":
            return hashable(call.argument)
        is_back = call.name == "release" and call.is_known and call.result != REFUSED
        return hashable(call.argument[0]) if is_back else None

    def taken(self, call: Call) -> Hashable | None:
        is_task = call.name == "take" and call.is_known and call.result is not None
        return hashable(call.result[0]) if is_task else None

    def _taken(self, state: Tasks, call: Call) -> Tasks | None:
        if call.result is None:
            return None if any(task.lease is None for task in state) else state
        value, lease = map(hashable, call.result)
        ready = Task(value)
        return state - {ready} | {self._leased(value, lease, call)} if ready in state else None

    def _ended(self, state: Tasks, held: Task, call: Call) -> Tasks:
        rest = state - {held}
        if call.name == "ack":
            return rest
        return rest | {
            Task(held.value) if call.name == "release" else self._leased(held.value, held.lease, call)
        }

    def _leased(self, value: Hashable, lease: Hashable, call: Call) -> Task:
        return Task(value, lease, call.begin_us + self._ttr_us)


def _held(state: Tasks, call: Call) -> Task | None:
    value, lease = map(hashable, call.argument)
    return next((task for task in state if task[:2] == (value, lease)), None)
