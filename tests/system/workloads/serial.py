"""Processes whose transactions make every call of the engine; a plain model repeats them in one serial order.

Each process has several transactions open at once. Some read at a version that another one has got, have a
timeout or a bound of attempts, watch a key, or go on after a refusal.

Some of its checks need no model: a read or a commit fails by its timeout exactly if that is over, a version
can be read for five seconds, a transaction has its number of attempts, and each watch fires.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.database import Database
from fdbqueue.core.limits import TRANSACTION_AGE_MAX_S
from fdbqueue.core.seam import MAYBE_COMMITTED, TIMED_OUT, FDBError
from fdbqueue.embedded.surface import StreamingMode
from fdbqueue.embedded.view import KeySelector
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.engine import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace
from tests.system import plain_engine
from tests.system.plain_engine import OPERATIONS, Mutation, Selector, Transaction, after
from tests.system.processes import processes_of
from tests.system.workloads.common import checker
from tests.system.workloads.processes import (
    DONE,
    END_S,
    NAME,
    POINTS_MAX,
    Record,
    committed,
    records,
    strike_near_commits,
    versions_grow,
)

STEM = b"ab" + b"x" * 480
# The storage of long keys changes at 503/504 and 511/512 bytes; a shared prefix must not confuse it.
LONG = [STEM + b"y" * (size - len(STEM) - 1) + tail for size in (503, 504, 511, 512) for tail in (b"a", b"b")]
KEYS = [b"a", b"a\x00", b"aa", b"aaa", b"ab", b"ac", b"ad"]
VALUES = [b"", b"\x01", b"\x02\x01", b"abc", b"\xff\xff", b"v" * 3_000]
OPERANDS = [b"", b"\x01", b"\xff", b"\x01\x02", b"abc"]
_OFFSET_MAX = 3
_LONG_P, _SNAPSHOT_P, _SILENT_P = 0.15, 0.3, 0.5
_CONFLICT = 1020
# A commit that is not finished at its timeout may be stored after it, as on a cluster.
_MAYBE_STORED = MAYBE_COMMITTED | {TIMED_OUT}
STAMP, PREFIX = bytes(10), b"stamp "
_ROUNDING_S = 1e-9


@dataclass(frozen=True)
class Get:
    key: bytes
    snapshot: bool

    def on(self, tr: Any) -> Any:
        return _reader(tr, self.snapshot).get(self.key).value

    def plain(self, plain: Transaction) -> Any:
        return plain.get(self.key, self.snapshot)


@dataclass(frozen=True)
class GetKey:
    selector: Selector
    snapshot: bool

    def on(self, tr: Any) -> Any:
        return _reader(tr, self.snapshot).get_key(_selector(self.selector)).value

    def plain(self, plain: Transaction) -> Any:
        return plain.get_key(self.selector, self.snapshot)


@dataclass(frozen=True)
class GetRange:
    begin: Selector
    end: Selector
    limit: int
    reverse: bool
    mode: int | None
    """The size of its batches; None: all at once."""
    snapshot: bool

    def on(self, tr: Any) -> Any:
        begin, end, reader = _selector(self.begin), _selector(self.end), _reader(tr, self.snapshot)
        if self.mode is None:
            rows = reader.get_range(begin, end, self.limit, self.reverse).to_list()
        else:
            rows = list(reader.get_range(begin, end, self.limit, self.reverse, self.mode))
        return [(row.key, row.value) for row in rows]

    def plain(self, plain: Transaction) -> Any:
        return plain.get_range(self.begin, self.end, self.limit, self.reverse, self.snapshot)


@dataclass(frozen=True)
class Write:
    mutation: Mutation
    """Its operation is that of the plain model, or "clear key"."""
    silent: bool

    def on(self, tr: Any) -> None:
        if self.silent:
            tr.options.set_next_write_no_write_conflict_range()
        one = self.mutation
        if one.operation == "set":
            tr[one.begin] = one.operand
        elif one.operation == "clear key":
            del tr[one.begin]
        elif one.operation == "clear":
            tr.clear_range(one.begin, one.end)
        else:
            getattr(tr, one.operation)(one.begin, one.operand)

    def plain(self, plain: Transaction) -> None:
        operation = self.mutation.operation.removesuffix(" key")
        plain.write(replace(self.mutation, operation=operation), self.silent)


@dataclass(frozen=True)
class Conflict:
    """A conflict range that the transaction adds, of a read or of a write."""

    begin: bytes
    end: bytes
    of_read: bool

    def on(self, tr: Any) -> None:
        add = tr.add_read_conflict_range if self.of_read else tr.add_write_conflict_range
        add(self.begin, self.end)

    def plain(self, plain: Transaction) -> None:
        if self.of_read:
            plain.has_read((self.begin, self.end))
        elif self.begin < self.end:
            plain.written.append((self.begin, self.end))


@dataclass(frozen=True)
class Option:
    """An option of reads, set before the first call."""

    name: str

    def on(self, tr: Any) -> None:
        getattr(tr.options, f"set_{self.name}")()

    def plain(self, plain: Transaction) -> None:
        plain.sees_own = plain.sees_own and self.name != "read_your_writes_disable"
        plain.snapshots_see_own = plain.snapshots_see_own and self.name != "snapshot_ryw_disable"


Call = Get | GetKey | GetRange | Write | Conflict | Option


def _reader(tr: Any, snapshot: bool) -> Any:
    return tr.snapshot if snapshot else tr


def _selector(selector: Selector) -> KeySelector:
    return KeySelector(selector.key, selector.or_equal, selector.offset)


def drawn(random: Random, *, may_be_silent: bool) -> Call:
    """Return a call of any kind."""
    chance, snapshot = random.random(), random.random() < _SNAPSHOT_P
    if chance < 0.15:
        return Get(key_by_chance(random), snapshot)
    if chance < 0.25:
        return GetKey(_any_selector(random), snapshot)
    if chance < 0.45:
        return _range(random, snapshot)
    if chance < 0.55:
        return Conflict(*_two_keys(random), random.random() < 0.5)
    return Write(_mutation(random), may_be_silent and random.random() < _SILENT_P)


def key_by_chance(random: Random) -> bytes:
    return random.choice(LONG if random.random() < _LONG_P else KEYS)


def _two_keys(random: Random) -> tuple[bytes, bytes]:
    one, other = sorted((key_by_chance(random), key_by_chance(random)))
    return one, other


def _any_selector(random: Random) -> Selector:
    offset = random.randint(1 - _OFFSET_MAX, _OFFSET_MAX)
    return Selector(key_by_chance(random), random.random() < 0.5, offset)


def _range(random: Random, snapshot: bool) -> GetRange:
    """A range in batches has plain keys as its ends: each batch of another one reads more than its part."""
    limit, reverse = random.choice((0, 0, 1, 2, 3, 100)), random.random() < 0.5
    if random.random() < 0.3:
        return GetRange(_any_selector(random), _any_selector(random), limit, reverse, None, snapshot)
    begin, end = (Selector(key, False, 1) for key in _two_keys(random))
    mode = random.choice((None, StreamingMode.small, StreamingMode.iterator, StreamingMode.medium))
    return GetRange(begin, end, limit, reverse, mode, snapshot)


def _mutation(random: Random) -> Mutation:
    chance, key = random.random(), key_by_chance(random)
    if chance < 0.35:
        return Mutation(key, after(key), "set", random.choice(VALUES))
    if chance < 0.45:
        return Mutation(key, after(key), "clear key")
    if chance < 0.6:
        return Mutation(*_two_keys(random))
    return Mutation(key, after(key), random.choice(sorted(OPERATIONS)), random.choice(OPERANDS))


# Checkers.


@dataclass
class Attempt:
    name: bytes
    read_version: int | None = None
    read_s: float = inf
    """The time just before it got that version."""
    is_blind: bool = False
    """True if it has only writes, and no read version."""
    calls: list[tuple[Call, Any]] = field(default_factory=list)
    stamped: bytes | None = None
    """The key to which it writes the versionstamp."""
    record: bytes = b""
    """The value under its versionstamp; empty until it commits."""
    place: tuple[int, int] | None = None
    """The version that its commit has told, and the order there."""
    code: int | None = None
    """The error that has ended it."""

    @property
    def may_watch(self) -> bool:
        sees_own = not any(call == Option("read_your_writes_disable") for call, _ in self.calls)
        return sees_own and not self.is_blind


@dataclass
class Handle:
    """A transaction, its present attempt, and the settings that on_error keeps."""

    tr: Any
    attempt: Attempt
    created_s: float
    timeout_s: float = inf
    retry_limit: float = inf
    retries: int = 0

    def left_s(self, now_s: float) -> float:
        return self.timeout_s - (now_s - self.created_s)

    def is_over(self, now_s: float) -> bool:
        """True if its timeout may end it at that time."""
        return self.left_s(now_s) <= _ROUNDING_S

    def is_long_over(self, now_s: float) -> bool:
        """True if its timeout must have ended it."""
        return self.left_s(now_s) <= -_ROUNDING_S

    def begin_anew(self, now_s: float) -> None:
        """Forget all, as a reset does."""
        self.created_s, self.timeout_s, self.retry_limit, self.retries = now_s, inf, inf, 0


@checker
def in_one_order(
    _: Trace, database: Database, log: Sequence[Attempt], *, may_be_unknown: bool, is_silent: bool
) -> Iterator[str]:
    """Make a checker: the answers, the refusals and the final contents are those of one serial order."""
    stored = records(database)
    yield from _told_as_stored(log, stored, may_be_unknown=may_be_unknown)
    yield from Replay(log, is_silent=is_silent).of(stored, database)


def _told_as_stored(
    log: Sequence[Attempt], stored: Sequence[Record], *, may_be_unknown: bool
) -> Iterator[str]:
    places = {record.name: record.place for record in stored}
    if len(places) != len(stored):
        yield "an attempt is stored twice"
    for one in log:
        place = places.get(one.name)
        if one.place is not None and one.place != place:
            yield f"{one.name!r} was told {one.place}, and is stored at {place}"
        if one.code is not None and one.code not in _MAYBE_STORED and place is not None:
            yield f"{one.name!r} raised {one.code}, and is stored at {place}"
        if one.code in MAYBE_COMMITTED and not may_be_unknown:
            yield f"the result of {one.name!r} stayed unknown"


class Replay:
    def __init__(self, log: Sequence[Attempt], *, is_silent: bool) -> None:
        """`is_silent`: some writes conflict with no read."""
        self._is_silent = is_silent
        self._log = {one.name: one for one in log}
        self._plain = plain_engine.Database()
        self._versions = [0]
        """The version of each commit of the plain model."""

    def of(self, stored: Sequence[Record], database: Database) -> Iterator[str]:
        for record in stored:
            one = self._log.pop(record.name)
            tr = self._begun(one)
            yield from _answers(one, tr)
            if not tr.may_commit() or not (self._is_silent or tr.would_do_the_same_now()):
                yield f"{one.name!r} was committed, and something that it read had changed"
            _stamp(one, record, tr)
            tr.commit()
            self._versions.append(record.version)
        for one in self._log.values():
            tr = self._begun(one)
            yield from _answers(one, tr)
            if one.code == _CONFLICT and not tr.database.conflict(tr.reads + tr.maybe_reads, tr.version):
                yield f"{one.name!r} was refused, and nothing that it read had changed"
        found = {entry.key: entry.value for entry in database.get_range(b"", b"\xff")}
        for key in sorted(found.keys() ^ self._plain.latest.keys()):
            yield f"after all, {key!r} is in one of the two only"
        for key, value in self._plain.latest.items():
            if found.get(key, value) != value:
                yield f"after all, {key!r} is {found[key]!r}, where {value!r} was written"

    def _begun(self, one: Attempt) -> Transaction:
        last = len(self._versions) - 1
        version = last if one.read_version is None else bisect_right(self._versions, one.read_version) - 1
        return Transaction(self._plain, version)


def _answers(one: Attempt, tr: Transaction) -> Iterator[str]:
    for call, answer in one.calls:
        expected = call.plain(tr)
        if answer != expected:
            yield f"{one.name!r} made {call}, and got {answer!r}, not {expected!r}"


def _stamp(one: Attempt, record: Record, tr: Transaction) -> None:
    """Write the record and the stamp of the commit."""
    stamp = record.version.to_bytes(8, "big") + record.order.to_bytes(2, "big")
    if one.stamped is not None:
        tr.write(Mutation(one.stamped, after(one.stamped), "set", PREFIX + stamp))
    tr.write(Mutation(DONE + stamp, after(DONE + stamp), "set", one.record))


THREADS_MAX = 1
CONFLICT, TOO_OLD, CANCELLED = 1020, 1007, 1025
RETRYABLE = (CONFLICT, TOO_OLD)
OPEN_MAX, WATCH_S, WAITS = 2, 5.0, 5


@workload(clients=3, steps=30, never=("slow_reply",))
def serial(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.end_at(END_S)
    simulation.scheduler.points_max = 4 * POINTS_MAX
    random, log = Random(f"{simulation.seed} serial"), list[Attempt]()
    is_silent, threads = random.random() < 0.3, [random.randint(0, THREADS_MAX) for _ in range(size.clients)]

    def process(number: int, client: Client) -> None:
        beside = [client.thread(partial(work, f"{one}"), f"{one}") for one in range(threads[number])]
        work("main", client)
        for thread in beside:
            thread.join()

    def work(thread: str, client: Client) -> None:
        Caller(client, f"{client.name}.{thread}", log, is_silent=is_silent).work(size.steps)

    is_private = random.random() < 0.25
    if is_private:  # one process: no other one looks for it, and nothing fails
        simulation.faults = NONE
    begin = simulation.client if is_private else processes_of(simulation).add
    for number in range(size.clients):
        begin(partial(process, number), f"process-{number}")
    fails = not is_private and strike_near_commits(simulation)
    return [in_one_order(log, may_be_unknown=fails, is_silent=is_silent), versions_grow]


def read_version(tr: Any) -> tuple[int, tuple[()]]:
    return tr.get_read_version().wait(), ()


class Caller:
    """A thread with a few open transactions."""

    def __init__(self, client: Client, name: str, log: list[Attempt], *, is_silent: bool) -> None:
        self._client, self._name, self._log, self._is_silent = client, name, log, is_silent
        self._random, self._now = client.random, client.runtime.monotonic
        self._open: list[Handle] = []
        self._count = 0
        self._got: list[tuple[int, float]] = []
        """Versions that it has got, and the times before that."""
        self._watches: list[tuple[bytes, bytes | None, Any]] = []

    def work(self, steps: int) -> None:
        for _ in range(steps):
            if not self._open or (len(self._open) < OPEN_MAX and self._random.random() < 0.4):
                self._tried(self._new(), self._begin)
            else:
                one = self._random.choice(self._open)
                self._tried(one, self._end if self._random.random() < 0.35 else self._go_on)
            if self._watches and self._random.random() < 0.3:
                self._look_at_watches()
            self._client.pause(0.05)
        for one in [*self._open]:
            self._tried(one, self._end)
        self._look_at_watches()

    def _tried(self, one: Handle, function: Callable[[Handle], None]) -> None:
        """Make the calls; after an error, end the transaction, or try it again."""
        try:
            function(one)
        except FDBError as error:
            self._failed(one, error)

    def _made(self, one: Handle, function: Callable[[], Any]) -> Any:
        """Call the engine. A transaction fails by its timeout if that is over, and only then."""
        began_s = self._now()
        try:
            result = function()
        except FDBError as error:
            if error.code == TIMED_OUT and not one.is_over(self._now()):
                raise AssertionError(
                    f"{one.attempt.name!r} failed {one.left_s(self._now())} s early"
                ) from None
            if error.code == TOO_OLD and self._now() < one.attempt.read_s + TRANSACTION_AGE_MAX_S:
                raise AssertionError(f"{one.attempt.name!r} was too old after less than 5 s") from None
            raise
        assert not one.is_long_over(began_s), f"{one.attempt.name!r} went on after its timeout"
        return result

    # One transaction.

    def _new(self) -> Handle:
        one = Handle(self._client.db.create_transaction(), self._attempt(), self._now())
        self._open.append(one)
        if self._random.random() < 0.2:
            one.timeout_s = self._random.choice((0.01, 0.1, 1.0))
            one.tr.options.set_timeout(round(1000 * one.timeout_s))
        if self._random.random() < 0.3:
            one.retry_limit = self._random.randint(0, 2)
            one.tr.options.set_retry_limit(one.retry_limit)
        return one

    def _attempt(self) -> Attempt:
        attempt = Attempt(f"{self._name}.{self._count}".encode())
        self._count += 1
        self._log.append(attempt)
        return attempt

    def _begin(self, one: Handle) -> None:
        """Get a read version, the newest one or one of before. An attempt that only writes gets none."""
        attempt = one.attempt
        attempt.is_blind = self._random.random() < 0.1
        for name in ("read_your_writes_disable", "snapshot_ryw_disable"):
            if self._random.random() < 0.1:
                self._call(one, Option(name))
        if attempt.is_blind:
            return
        if self._got and self._random.random() < 0.15:
            attempt.read_version, attempt.read_s = self._random.choice(self._got[-4:])
            one.tr.set_read_version(attempt.read_version)
            return
        attempt.read_s = self._now()
        read = partial(self._made, one, partial(read_version, one.tr))
        attempt.read_version, _ = self._client.call(NAME, "read", attempt.name, read)
        self._got.append((attempt.read_version, attempt.read_s))

    def _go_on(self, one: Handle) -> None:
        for _ in range(self._random.choice((1, 1, 3, 6))):
            call = drawn(self._random, may_be_silent=self._is_silent)
            if isinstance(call, Write) or not one.attempt.is_blind:
                self._call(one, call)

    def _call(self, one: Handle, call: Call) -> Any:
        makes = partial(call.on, one.tr)
        answer = makes() if isinstance(call, Conflict | Write | Option) else self._made(one, makes)
        one.attempt.calls.append((call, answer))
        return answer

    # Its end.

    def _end(self, one: Handle) -> None:
        chance = self._random.random()
        if chance < 0.75:
            self._commit(one)
        elif chance < 0.85:
            one.tr.reset()
            one.begin_anew(self._now())
            self._next(one)
        else:
            one.tr.cancel()
            self._open.remove(one)
            self._require_cancelled(one)

    def _next(self, one: Handle) -> None:
        one.attempt = self._attempt()
        self._begin(one)

    def _require_cancelled(self, one: Handle) -> None:
        """Read in a cancelled transaction. Its timeout may have ended it before."""
        try:
            one.tr.get(b"a").wait()
        except FDBError as error:
            is_right = error.code == CANCELLED or (error.code == TIMED_OUT and one.is_over(self._now()))
            if not is_right:
                raise AssertionError(f"{one.attempt.name!r} was cancelled, and raised {error!r}") from None
        else:
            raise AssertionError(f"{one.attempt.name!r} was cancelled, and reads")

    def _commit(self, one: Handle) -> None:
        attempt, tr, watch = one.attempt, one.tr, None
        if attempt.may_watch and self._random.random() < 0.3:
            key = key_by_chance(self._random)
            watch = (key, self._call(one, Get(key, False)), tr.watch(key))
        if self._random.random() < 0.2:
            attempt.stamped = key_by_chance(self._random)
            tr.set_versionstamped_value(attempt.stamped, PREFIX + STAMP + len(PREFIX).to_bytes(4, "little"))
        attempt.record = layer.pack((attempt.name, -1, (), (), ()))
        tr.set_versionstamped_key(DONE + STAMP + len(DONE).to_bytes(4, "little"), attempt.record)
        committing = partial(self._made, one, partial(committed, tr))
        attempt.place = self._client.call(NAME, "commit", (attempt.name,), committing)
        self._open.remove(one)
        if watch is not None:
            self._watches.append(watch)

    def _failed(self, one: Handle, error: FDBError) -> None:
        attempt, attempt.code = one.attempt, error.code
        assert error.code in (*RETRYABLE, TIMED_OUT, *MAYBE_COMMITTED), f"{attempt.name!r} raised {error!r}"
        if self._random.random() < 0.5:
            self._open.remove(one)
            return
        must_fail = error.code == TIMED_OUT or one.retries >= one.retry_limit
        one.retries += 1
        try:
            one.tr.on_error(error).wait()
        except FDBError as found:
            self._open.remove(one)
            is_right = must_fail if found.code == error.code else found.code == TIMED_OUT
            if not is_right or (found.code == TIMED_OUT and not one.is_over(self._now())):
                raise
        else:
            assert not must_fail, f"{attempt.name!r} goes on after attempt {one.retries} of {one.retry_limit}"
            self._tried(one, self._next)

    def _look_at_watches(self) -> None:
        """Check that a watch fires if its value has changed, and does not change back."""
        for key, seen, watch in self._watches:
            changed = self._client.db[key] != seen
            if changed and not self._fires(watch) and (found := self._client.db[key]) != seen:
                raise AssertionError(f"a watch of {key!r} at {seen!r} did not fire, and {found!r} is there")
        self._watches = [one for one in self._watches if not one[2].is_ready()]

    def _fires(self, watch: Any) -> bool:
        """A wait may end in a stop of the process: then the watch has some more time to fire."""
        return any(self._client.runtime.wait_any([watch], WATCH_S) for _ in range(WAITS))
