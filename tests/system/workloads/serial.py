"""Processes whose transactions make every call of the engine; a plain model repeats them in one serial order.

Each process has several transactions open at once. Some read at a version that another one has got, have a
timeout or a bound of attempts, watch a key, or go on after a refusal.

Some of its checks need no model: a read or a commit fails by its timeout exactly if that is over, a version
can be read for five seconds, a transaction has its number of attempts, and each watch fires.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.limits import TRANSACTION_AGE_MAX_S
from fdbqueue.core.seam import MAYBE_COMMITTED, FDBError
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.engine import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.processes import processes_of
from tests.system.workloads.process_checks import DONE, NAME, versions_grow
from tests.system.workloads.processes import END_S, POINTS_MAX, committed, strike_near_commits
from tests.system.workloads.serial_calls import (
    PREFIX,
    STAMP,
    Attempt,
    Call,
    Conflict,
    Get,
    Handle,
    Option,
    Write,
    drawn,
    in_one_order,
    key_by_chance,
)

THREADS_MAX = 1
CONFLICT, TOO_OLD, TIMED_OUT, CANCELLED = 1020, 1007, 1031, 1025
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
