"""Calls of one process combine: one of them, the leader, goes to the database for all who wait.

A transaction costs the same round trips for one item as for sixty, so sixty threads that each pay for their
own get a sixtieth of what is possible. Whoever finds no leader leads: it *claims* the calls that it works
for, runs one round of work, *settles* them with their answers, and passes leadership to the first call that
is still pending. Before a round the leader waits a moment for the callers of the last one, who are on their
way back. A call that is not claimed may give up when its time is over; one that is claimed may be about to
get an item, and waits for the leader's word. A call that is stopped is not claimed any more.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate, pairwise
from typing import Any

from fdbqueue import limits
from fdbqueue.runtime import Event, Runtime
from fdbqueue.waiters import Waiter


class CallState(Enum):
    PENDING = auto()
    CLAIMED = auto()
    SETTLED = auto()
    LEFT = auto()  # its time was over, or it was stopped


class Call:
    """One caller's wish. `count` items or answers, `size_bytes` to write; `until` as runtime.monotonic()."""

    __slots__ = (
        "answer",
        "count",
        "error",
        "event",
        "leads",
        "payload",
        "size_bytes",
        "state",
        "stopped",
        "until",
    )

    def __init__(self, payload: Any, count: int, size_bytes: int, until: float | None) -> None:
        self.payload = payload
        self.count = count
        self.size_bytes = size_bytes
        self.until = until
        self.state = CallState.PENDING
        self.leads = False
        self.stopped = False
        self.event: Event | None = None
        self.answer: Any = None
        self.error: BaseException | None = None

    def is_settled(self) -> bool:
        return self.state is CallState.SETTLED

    def signal(self) -> None:
        if self.event is not None:
            self.event.set()


@dataclass
class _Round:
    """What came of one round of work: how many calls it settled, in what time, and when it ended."""

    count: int = 0
    took_s: float = 0.0
    ended: float = 0.0


class Combiner:
    """The calls of one kind, with equal options, of one process on one queue.

    `work(combiner, leader)` does one round for the calls that it claims. It must return, and may be called
    again, until the leader is settled; a leader with a deadline also stops leading when that has passed.
    If it returns True it has begun something that must not be left lying: then somebody goes on leading.
    """

    def __init__(
        self,
        runtime: Runtime,
        work: Callable[["Combiner", Call], bool | None],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` ends a sleep of the leader inside `work`, to look at the time of its call again."""
        self._runtime = runtime
        self._work = work
        self._wake = wake
        self._lock = runtime.lock()
        self._led = False
        self._pending: list[Call] = []
        self._claimed: list[Call] = []
        self._last = _Round()
        self._gathered: Event | None = None

    def call(
        self,
        payload: Any,
        count: int = 1,
        size_bytes: int = 0,
        until: float | None = None,
        waiter: Waiter | None = None,
    ) -> Call:
        """Have the call worked on, by this thread or another. Raises the error of the work.

        Returns it SETTLED with its answer, or, if `until` passed or `waiter` is to end, LEFT.
        """
        mine = Call(payload, count, size_bytes, until)
        try:
            with self._lock:
                self._pending.append(mine)
                if self._gathered is not None and len(self._pending) >= self._last.count:
                    self._gathered.set()
                mine.leads, self._led = not self._led, True
                if not mine.leads:
                    mine.event = self._runtime.event()
            if waiter is not None:
                waiter.on_ready(lambda _: self._stop(mine))
            if not mine.leads:
                self._follow(mine)
            if mine.leads:
                self._lead(mine)
        except BaseException:
            self._forget(mine)
            raise
        if mine.error is not None:
            raise mine.error
        return mine

    def anyone_else(self, leader: Call) -> bool:
        """True if another call than `leader` waits for the end of the work that has begun."""
        with self._lock:
            return any(call is not leader and not call.stopped for call in self._pending)

    # For the work.

    def claim(self, count_max: int, size_bytes_max: int) -> list[Call]:
        """Claim waiting calls, the oldest first, as far as the bounds allow, but one in any case. None are
        left if all have been stopped.

        Claims of an attempt that failed are counted in again, so that a retried body may simply ask anew.
        """
        with self._lock:
            for call in (*self._claimed, *self._pending):
                if call.stopped:
                    self._leave(call)
                    call.signal()
            waiting = [call for call in (*self._claimed, *self._pending) if call.state is not CallState.LEFT]
            self._claimed = waiting[: _fitting(waiting, count_max, size_bytes_max)]
            self._pending = waiting[len(self._claimed) :]
            _mark(self._claimed, CallState.CLAIMED)
            _mark(self._pending, CallState.PENDING)
            return list(self._claimed)

    def deal(self, answers: Sequence[Any], *, to_all: bool) -> None:
        """Deal `answers` out to the claimed calls, in order, to each at most as many as it asked for.

        Those left dry are settled with nothing if `to_all`, else they are pending again.
        """
        with self._lock:
            dealt = shares(answers, [call.count for call in self._claimed])
            settled = [call for call, share in zip(self._claimed, dealt, strict=True) if share or to_all]
            dry = self._claimed[len(settled) :]
            for call, share in zip(settled, dealt, strict=False):
                call.answer, call.state = share, CallState.SETTLED
            self._unclaim(dry)
            self._last.count += len(settled)
        for call in settled:
            call.signal()

    def fail(self, error: Exception) -> None:
        """Raise `error` in every claimed call, each its own copy: tracebacks are not shared."""
        with self._lock:
            failed, self._claimed = self._claimed, []
            for call in failed:
                call.error, call.state = copy(error), CallState.SETTLED
        for call in failed:
            call.signal()

    def end_waits(self) -> None:
        """The time of every call is over, as if its `until` had passed."""
        with self._lock:
            calls = [*self._claimed, *self._pending]
            for call in calls:
                call.until = None if call.until is None else float("-inf")
        for call in calls:
            call.signal()

    def release(self) -> None:
        """Make claimed calls pending again."""
        with self._lock:
            self._unclaim(self._claimed)

    def _unclaim(self, calls: list[Call]) -> None:
        present = [call for call in calls if call.state is not CallState.LEFT]
        self._pending = [*present, *self._pending]
        self._claimed = []
        _mark(present, CallState.PENDING)
        for call in present:  # one whose time is over meanwhile may leave now
            call.signal()

    # For the callers.

    def _lead(self, mine: Call) -> None:
        try:
            while not self._round(mine):
                pass
        except BaseException:
            self._pass_on(mine)
            raise

    def _round(self, mine: Call) -> bool:
        """One round of work; whether `mine` leads no longer.

        Also one whose time is over leads at least one, to end what its predecessor has begun.
        """
        begun = False
        self._gather()
        self._last = round_ = _Round()
        began = self._runtime.monotonic()
        try:
            begun = bool(self._work(self, mine))
        except Exception as error:
            self.fail(error)
            if not mine.is_settled():
                raise
        round_.ended = self._runtime.monotonic()
        round_.took_s = round_.ended - began
        if mine.is_settled():
            return self._pass_on(mine)
        return self._is_over(mine) and self._pass_on(mine, only_to_another=begun)

    def _gather(self) -> None:
        """Wait a moment for those whom the last round has settled: they are on their way back.

        Else the first one back goes alone, and all others in the round after it: two where one would do.
        """
        moment_s = min(self._last.took_s * limits.GATHER_SHARE, limits.GATHER_MAX_S)
        if self._last.count < 2 or moment_s < limits.GATHER_MIN_S:
            return
        if self._runtime.monotonic() > self._last.ended + moment_s:  # who was coming back has come
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
        event = mine.event
        assert event is not None
        while True:
            event.wait(self._patience(mine))
            with self._lock:
                event.clear()
                if mine.leads or mine.state in (CallState.SETTLED, CallState.LEFT):
                    return
                if mine.state is CallState.PENDING and self._is_over(mine):
                    self._leave(mine)
                    return

    def _patience(self, mine: Call) -> float | None:
        if mine.until is None or mine.state is CallState.CLAIMED:
            return None
        left = mine.until - self._runtime.monotonic()
        return min(max(0.0, left), limits.PATIENCE_MAX_S)

    def _is_over(self, mine: Call) -> bool:
        return mine.until is not None and self._runtime.monotonic() >= mine.until

    def _stop(self, mine: Call) -> None:
        # No lock: a signal handler may set the event of a call that it has interrupted in here.
        mine.stopped, mine.until = True, float("-inf")
        mine.signal()
        if mine.leads:
            self._wake()

    def _leave(self, mine: Call) -> None:
        mine.state = CallState.LEFT
        if mine in self._pending:
            self._pending.remove(mine)

    def _pass_on(self, mine: Call, only_to_another: bool = False) -> bool:
        """Let the next one lead. False, and nothing is done, if there is none but has to be."""
        with self._lock:
            if only_to_another and not any(call is not mine for call in (*self._claimed, *self._pending)):
                return False
            self._unclaim(self._claimed)
            mine.leads = False
            if not mine.is_settled():
                self._leave(mine)
            self._led = bool(self._pending)
            if self._pending:
                self._pending[0].leads = True
                self._pending[0].signal()
            return True

    def _forget(self, mine: Call) -> None:
        """Interrupted: nobody is to wait for this call to lead. If claimed, its place in the round stays."""
        with self._lock:
            promoted = mine.leads
            self._leave(mine)
        if promoted:
            self._pass_on(mine)


def _mark(calls: Sequence[Call], state: CallState) -> None:
    for call in calls:
        call.state = state


def _fitting(calls: Sequence[Call], count_max: int, size_bytes_max: int) -> int:
    """How many of `calls` are within both bounds; the first is always one of them."""
    count = size_bytes = 0
    for number, call in enumerate(calls):
        count += call.count
        size_bytes += call.size_bytes
        if number and (count > count_max or size_bytes > size_bytes_max):
            return number
    return len(calls)


def shares(answers: Sequence[Any], counts: Sequence[int]) -> list[Sequence[Any]]:
    """`answers` cut into consecutive shares of at most `counts` each; the last ones may be empty."""
    ends = list(accumulate(counts, initial=0))
    return [answers[start:end] for start, end in pairwise(ends)]
