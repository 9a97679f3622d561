"""The calls of one process on one database: how they combine, how they wait, and what ends a wait early.

Calls combine: one thread, the leader, goes to the database for all callers. A transaction costs the same
round trips for one item as for sixty. Sixty threads with a transaction each would reach a sixtieth of the
possible rate. A call that finds no leader leads. The leader *claims* a batch of waiting calls, does the work
for them and deals out the answers. Then it passes the lead to the first call that still waits.

Before a batch the leader waits a moment for the callers of the last batch, which are on their way back. A
call that is not claimed leaves when its time is over. A claimed call waits for its answer, because the
transaction may be getting an item for it. A stopped call is not claimed again, unless the result of an
attempt is unknown: that one may have got its answer.

Two things end a wait early. The caller's `stop` event ends one call, closing the database ends them all. A
wait ends in the thread that waits, which first leaves the line and gives back the results that lie ready. So
closing has to wait for them: sessions may end, and the engine may close, only when no call can take anything
any more.

`listen` callbacks run in the thread that sets the event, perhaps in a signal handler that has interrupted one
of these calls. On that way nothing here takes a lock but `Event.set`, which holds its own for an instant.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from msgspec import Struct, field

from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed, WaitStopped
from fdbqueue.core.runtime import Event, Runtime, Stop
from fdbqueue.core.seam import Future
from fdbqueue.core.visible import SURVIVED

T = TypeVar("T")


class Waiter(Struct, eq=False):
    """One call that may wait. A `Waitable`: ready when its wait has to end."""

    _waiters: "Waiters"
    _stops: Sequence[Stop | None] = ()
    thread_id: int = 0
    _forget: list[Callable[[], None]] = field(default_factory=list)
    reason: type[DatabaseClosed | WaitStopped] | None = None
    """The error that ends the wait; None as long as it may go on."""
    _callback: Callable[[Any], None] | None = None

    def __enter__(self) -> "Waiter":
        """Raises DatabaseClosed, WaitStopped if `stop` is set already, InvalidArgument if it is no event."""
        self.thread_id = self._waiters.runtime.thread_id()
        self._waiters.inside[self] = None
        try:
            # Looked at after entering: either this call sees the closing, or the closing sees this call.
            if self._waiters.left is not None:
                raise DatabaseClosed
            for stop in self._stops:
                if stop is not None:
                    self._forget.append(self._waiters.listen(stop, lambda: self.end(WaitStopped)))
            if self.reason is not None:
                raise self.reason
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for forget in self._forget:
            forget()
        waiters = self._waiters
        waiters.inside.pop(self, None)
        if waiters.left is not None:
            waiters.left.set()

    def is_ready(self) -> bool:
        return self.reason is not None

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        """The last callback counts: a call waits for one future at a time."""
        self._callback = callback
        if self.reason is not None:  # between the question and this
            callback(self)

    def end(self, reason: type[DatabaseClosed | WaitStopped]) -> None:
        """End the wait. The first reason is the one that the call raises."""
        self.reason = self.reason or reason
        callback = self._callback
        if callback is not None:
            callback(self)

    def check(self) -> None:
        """Raises WaitStopped, DatabaseClosed if the wait has to end."""
        if self.reason is not None:
            raise self.reason

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`. Raises WaitStopped, DatabaseClosed."""
        self._waiters.runtime.wait_any([self], max(0.0, seconds))
        self.check()

    def sleep(self, watches: Sequence[Future], seconds: float) -> None:
        """Wait up to `seconds` for one of `watches`, and cancel them. Raises WaitStopped, DatabaseClosed."""
        try:
            self._waiters.runtime.wait_any([*watches, self], max(0.0, seconds))
        finally:  # an interrupted wait, too: a watch with a callback outlives its last reference
            for watch in watches:
                watch.cancel()
        self.check()


class Waiters:
    """The waiting calls of one database in this process."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        # A dict for its order, which simulation must be able to repeat.
        self.inside: dict[Waiter, None] = {}
        self.left: Event | None = None
        """Set by each call that returns while the database closes; None before."""
        self._deaf = DeafStops(runtime)

    def listen(self, stop: Stop, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when `stop` is set, at once if it is; returns a function that takes that back."""
        # isinstance(stop, Event) takes 60 us, as it looks for each method of the protocol.
        hears = getattr(stop, "listen", None)
        if hears is None:
            return self._deaf.listen(stop, callback)
        forget: Callable[[], None] = hears(callback)
        return forget

    def close(self, timeout_s: float) -> None:
        """End all waits, and wait up to `timeout_s` for the calls to return. No call enters any more."""
        left = self.left = self.runtime.event()
        for waiter in list(self.inside):
            waiter.end(DatabaseClosed)
        until = self.runtime.monotonic() + timeout_s
        # A call of this very thread is below us on the stack, under a signal handler: it cannot return now.
        mine = self.runtime.thread_id()
        mine_inside = sum(waiter.thread_id == mine for waiter in list(self.inside))
        while len(self.inside) > mine_inside:
            patience_s = until - self.runtime.monotonic()
            if patience_s <= 0:
                return
            left.wait(patience_s)
            left.clear()


class DeafStops:
    """Events that cannot call back, as `threading.Event`: one thread looks at them while a call waits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._callbacks: dict[object, tuple[Stop, Callable[[], None]]] = {}
        self._is_looking = False

    def listen(self, stop: Stop, callback: Callable[[], None]) -> Callable[[], None]:
        if stop.is_set():
            callback()
        key = object()
        with self._lock:
            self._callbacks[key] = stop, callback
            if not self._is_looking:
                self._is_looking = True
                self._runtime.spawn(self._look, "fdbqueue-stops")
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        with suppress(KeyError):
            del self._callbacks[key]

    def _look(self) -> None:
        pause = self._runtime.event()
        try:
            while self._anyone_listens():
                for stop, callback in list(self._callbacks.values()):
                    if _is_set(stop):
                        callback()
                pause.wait(limits.STOP_LOOK_S)
        except BaseException:
            self._runtime.spawn(self._look, "fdbqueue-stops")  # something ends this thread (GreenletExit)
            raise

    def _anyone_listens(self) -> bool:
        with self._lock:
            self._is_looking = bool(self._callbacks)
            return self._is_looking


def _is_set(stop: Stop) -> bool:
    """True also for a broken event: a wait for it might never end."""
    try:
        return bool(stop.is_set())
    except SURVIVED:
        return True


class Nudge:
    """Wakes the leader that sleeps in the line, or ends the next sleep at once. A `Waitable`."""

    def __init__(self) -> None:
        self._given = False
        self._callback: Callable[[Any], None] | None = None

    def is_ready(self) -> bool:
        return self._given

    def on_ready(self, callback: Callable[[Any], None]) -> None:
        self._callback = callback
        if self._given:  # after the sleeper has asked `is_ready`
            callback(self)

    def give(self) -> None:
        self._given = True
        callback = self._callback
        if callback is not None:
            callback(self)

    def forget(self) -> None:
        self._given, self._callback = False, None


class CallState(Enum):
    PENDING = auto()
    CLAIMED = auto()
    DONE = auto()  # it has its answer, or its error
    LEFT = auto()  # its time was over, or it was stopped


PENDING, CLAIMED, DONE, LEFT = CallState  # Python 3.11 looks a member up by a function


class Call(Struct, eq=False):
    """A caller's wish for `count` answers. `size_bytes`: bytes to write; `until`: as runtime.monotonic()."""

    payload: Any
    count: int
    size_bytes: int
    until: float | None
    state: CallState = PENDING
    overdue: bool = False  # its time was over when it last looked
    stopped: bool = False
    held: bool = False  # an attempt with an unknown result may have got an answer for it
    event: Event | None = None
    answer: Any = None
    error: BaseException | None = None

    def signal(self) -> None:
        if self.event is not None:
            self.event.set()


@dataclass
class _Batch:
    """The result of the work for one batch: number of calls answered, duration, and time of its end."""

    count: int = 0
    took_s: float = 0.0
    ended: float = 0.0


class Combiner:
    """The calls of one kind, with equal options, of one process on one queue.

    `work(combiner, leader)` does the work for one batch, the calls that it claims. It is called again until
    the leader has its answer, or until the leader's time is over. If `work` returns True, it has begun
    something that another call has to go on with: then the leader stays until there is another.
    """

    def __init__(
        self,
        runtime: Runtime,
        work: Callable[["Combiner", Call], bool | None],
        wake: Callable[[], None] = lambda: None,
        has_ended: Callable[[], bool] = lambda: False,
    ) -> None:
        """`wake` ends a sleep of the leader inside `work`; then `work` looks at the leader's time again.

        `has_ended`: true from a moment before `end_waits`, for calls that join too late to be met by it.
        """
        self._runtime = runtime
        self._work = work
        self._wake = wake
        self._has_ended = has_ended
        self._lock = runtime.lock()
        self._leader: Call | None = None
        """One store passes on the lead: an interrupt comes before it, or behind."""
        # Ordered, the oldest first: with ten thousand waiting calls, each step costs what one call costs.
        self._pending: OrderedDict[Call, None] = OrderedDict()
        self._claimed: list[Call] = []
        self._last = _Batch()
        self._gathered: Event | None = None

    def call(
        self,
        payload: Any,
        count: int = 1,
        size_bytes: int = 0,
        until: float | None = None,
        waiter: Waiter | None = None,
    ) -> Call:
        """Have the call worked on, by this thread or another.

        Returns the call: DONE with its answer, or LEFT if `until` passed or the wait of `waiter` was
        ended.
        Raises: the error of the work.
        """
        mine = Call(payload, count, size_bytes, until)
        try:
            with self._lock:
                self._pending[mine] = None
                if self._gathered is not None and len(self._pending) >= self._last.count:
                    self._gathered.set()
                if self._leader is None:
                    self._leader = mine
                else:
                    mine.event = self._runtime.event()
            # Asked when `end_waits` can meet the call: one of the two ends its time, whichever comes first.
            if until is not None and self._has_ended():
                mine.until = float("-inf")
            if waiter is not None:
                waiter.on_ready(lambda _: self._stop(mine))
            if self._leader is not mine:
                self._follow(mine)
            while self._leader is mine and not self._work_once(mine):
                pass
        except BaseException:
            self._forget(mine)
            raise
        if mine.error is not None:
            raise mine.error
        return mine

    def alone(self, work: Callable[[], T]) -> T | None:
        """Do the work of one caller, if no other leads; calls that begin meanwhile combine behind it. None if
        another leads, or the last batch had several callers, which are on their way back.
        """
        mine = Call(None, 0, 0, None)
        try:
            with self._lock:
                if self._leader is not None or self._last.count > 1:
                    return None
                self._leader = mine
            try:
                return work()
            finally:
                self._pass_on(mine)
        except BaseException:
            self._forget(mine)  # an interrupt may come to `_pass_on`, too
            raise

    @property
    def is_led(self) -> bool:
        return self._leader is not None

    def anyone_else(self, leader: Call) -> bool:
        """True if another call than `leader` waits for the end of the work that has begun."""
        with self._lock:
            return any(call is not leader and not call.stopped for call in self._pending)

    # For the work.

    def claim(self, count_max: int, size_bytes_max: int) -> list[Call]:
        """Claim waiting calls within the bounds, the oldest first; at least one, unless all have been
        stopped.

        The claims of a failed attempt are included, so a retried transaction simply claims again. A call that
        was stopped meanwhile leaves, unless it is held. Held claims stay alone: the answer may be that of the
        attempt in doubt, which did not look for calls that have joined since.
        """
        with self._lock:
            if self._claimed:
                is_in_doubt = self._claimed[0].held
                self._claimed = [call for call in self._claimed if call.state is not LEFT]
                if is_in_doubt:
                    return list(self._claimed)
                self._prepend(self._claimed)
                self._claimed = []
            count = size_bytes = 0
            while self._pending:
                call = next(iter(self._pending))
                if call.stopped and not call.held:
                    self._leave(call)
                    call.signal()
                    continue
                count, size_bytes = count + call.count, size_bytes + call.size_bytes
                if self._claimed and (count > count_max or size_bytes > size_bytes_max):
                    break
                del self._pending[call]
                self._claimed.append(call)
                call.state = CLAIMED
            return list(self._claimed)

    def hold(self) -> None:
        """Hold the claimed calls until they are answered or released: an attempt in doubt may serve them."""
        for call in self._claimed:  # no lock: only the leader claims
            call.held = True

    def _prepend(self, calls: Sequence[Call]) -> None:
        for call in reversed(calls):
            self._pending[call] = None
            self._pending.move_to_end(call, last=False)
            call.state = PENDING

    def deal(self, answers: Sequence[Any], *, to_all: bool) -> None:
        """Deal `answers` out to the claimed calls, in order, at most `count` to each.

        A call that gets none is answered with an empty sequence if `to_all`; otherwise it is pending again.
        """
        done: list[Call] = []
        dry: list[Call] = []
        with self._lock:
            end = 0
            for call in self._claimed:
                begin, end = end, end + call.count
                part = answers[begin:end]
                if part or to_all:
                    call.answer, call.state = part, DONE
                    done.append(call)
                else:
                    dry.append(call)
            self._claimed = []
            if dry:
                self._put_back(dry)
            self._last.count += len(done)
        for call in done:
            if call.event is not None:  # the leader waits for none
                call.event.set()

    def fail(self, error: Exception) -> None:
        """Raise a copy of `error` in each claimed call: threads must not share a traceback."""
        with self._lock:
            failed, self._claimed = self._claimed, []
            for call in failed:
                call.error, call.state = copy(error), DONE
        for call in failed:
            call.signal()

    def end_waits(self) -> None:
        """End the time of every call, as if its `until` had passed."""
        with self._lock:
            calls = [*self._claimed, *self._pending]
            for call in calls:
                call.until = None if call.until is None else float("-inf")
        for call in calls:
            call.signal()

    def release(self) -> None:
        with self._lock:
            self._unclaim()

    def _unclaim(self) -> None:
        self._put_back(self._claimed)
        self._claimed = []  # behind it: after an interrupt, the next try puts them back

    def _put_back(self, calls: Sequence[Call]) -> None:
        """Make `calls` pending again. Overdue ones are signalled, so that they leave."""
        present = [call for call in calls if call.state is not LEFT]
        self._prepend(present)
        for call in present:
            call.held = False
            if call.overdue:
                call.signal()

    # For the callers.

    def _work_once(self, mine: Call) -> bool:
        """Do the work for one batch. True if `mine` has passed on the lead.

        A leader past its deadline still works for one batch: its predecessor may have begun work.
        """
        begun = False
        if self._last.count > 1:
            self._gather()
        self._last = batch = _Batch()
        began = self._runtime.monotonic()
        try:
            begun = bool(self._work(self, mine))
        except Exception as error:
            self.fail(error)
            if mine.state is not DONE:
                raise
        batch.ended = self._runtime.monotonic()
        batch.took_s = batch.ended - began
        if mine.state is DONE:
            return self._pass_on(mine)
        return self._is_over(mine) and self._pass_on(mine, only_to_another=begun)

    def _gather(self) -> None:
        """Wait a moment for the callers of the last batch, which are on their way back.

        Without the wait the first one back goes alone, and all others in the batch after it: two for one.
        """
        moment_s = min(self._last.took_s * limits.GATHER_SHARE, limits.GATHER_MAX_S)
        if moment_s < limits.GATHER_MIN_S:
            return
        if self._runtime.monotonic() > self._last.ended + moment_s:  # they had the time to come back
            return
        gathered = self._runtime.event()
        with self._lock:
            if len(self._pending) >= self._last.count:
                return
            self._gathered = gathered
        gathered.wait(moment_s)
        with self._lock:
            self._gathered = None

    def _follow(self, mine: Call) -> None:
        """Wait until `mine` has its answer, leads, or leaves."""
        event = mine.event
        assert event is not None
        while True:
            event.wait(self._patience(mine))
            with self._lock:
                event.clear()
                if self._leader is mine or mine.state in (DONE, LEFT):
                    return
                mine.overdue = self._is_over(mine)
                if mine.state is PENDING and mine.overdue:
                    self._leave(mine)
                    return

    def _patience(self, mine: Call) -> float | None:
        """Seconds that a follower waits before it looks at its time again; None without a limit.

        An overdue call is claimed, and waits for its answer. If it becomes pending again, it is signalled.
        """
        if mine.until is None or mine.overdue:
            return None
        left = mine.until - self._runtime.monotonic()
        return min(max(0.0, left), limits.PATIENCE_MAX_S)

    def _is_over(self, mine: Call) -> bool:
        return mine.until is not None and self._runtime.monotonic() >= mine.until

    def _stop(self, mine: Call) -> None:
        # No lock: a signal handler may set the stop event while the thread that it interrupted holds the
        # lock.
        mine.stopped, mine.until = True, float("-inf")
        mine.signal()
        if self._leader is mine:
            self._wake()

    def _leave(self, mine: Call) -> None:
        mine.state = LEFT
        self._pending.pop(mine, None)

    def _pass_on(self, mine: Call, only_to_another: bool = False) -> bool:
        """Pass on the lead. False if `only_to_another` and there is no other: then `mine` still leads."""
        with self._lock:
            present = len(self._pending) + len(self._claimed)
            if only_to_another and present == (mine in self._pending) + (mine in self._claimed):
                return False
            if self._claimed:
                self._unclaim()
            if mine.state is not DONE:
                self._leave(mine)
            first = next(iter(self._pending), None)
            if first is not None:
                first.signal()  # it looks once it has the lock
            self._leader = first
            return True

    def _forget(self, mine: Call) -> None:
        """Withdraw an interrupted call: it must not lead. If it is claimed, the batch still counts it."""
        with self._lock:
            promoted = self._leader is mine
            self._leave(mine)
        if promoted:
            self._pass_on(mine)
