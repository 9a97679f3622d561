"""Calls of one process combine: answers, leadership, errors, deadlines."""

import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import pytest

from fdbqueue.core import limits
from fdbqueue.core.calls import Call, CallState, Combiner, Waiter, Waiters
from fdbqueue.core.errors import WaitStopped
from fdbqueue.core.runtime import RealRuntime
from tests.support import PATIENCE_S, ManualClock, wait_until


class Together:
    """Runs calls in threads; the work for the first batch waits until the others have queued up behind it."""

    def __init__(
        self, work: Callable[[Combiner, list[Call]], None], runtime: RealRuntime | None = None
    ) -> None:
        self.batches: list[int] = []
        self.first_batch = threading.Event()
        self.go_on = threading.Event()
        self._work = work
        self.combiner = Combiner(runtime or RealRuntime(), self._do)
        self.outcomes: dict[int, Any] = {}
        self.threads: list[threading.Thread] = []

    def _do(self, crew: Combiner, _: Call) -> None:
        if not self.batches:
            self.first_batch.set()
            self.go_on.wait(10)
        calls = crew.claim(1000, 1000)
        self.batches.append(len(calls))
        self._work(crew, calls)

    def start(self, number: int, times: int = 1, **options: Any) -> None:
        def call() -> None:
            try:
                for _ in range(times):
                    done = self.combiner.call(number, **options)
                    self.outcomes[number] = done.answer if done.state is CallState.DONE else "left"
            except Exception as error:
                self.outcomes[number] = error

        thread = threading.Thread(target=call)
        thread.start()
        self.threads.append(thread)

    def start_all(self, calls: int, **options: Any) -> None:
        """Start the calls 0, 1, ...: the first one leads, and the others queue up in this order."""
        for number in range(calls):
            self.start(number, **options)
            self.first_batch.wait(10)
            wait_for_pending(self.combiner, number + 1)

    def finish(self) -> dict[int, Any]:
        self.go_on.set()
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()
        return self.outcomes


def echo(crew: Combiner, calls: list[Call]) -> None:
    crew.deal([call.payload for call in calls], to_all=True)


def interrupted_after(wait: Callable[[threading.Event], object]) -> RealRuntime:
    """A runtime in which each wait for an event is `wait`, and ends with an interrupt."""

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002  # that of an event
            wait(self)
            raise KeyboardInterrupt

    class Interrupting(RealRuntime):
        def event(self) -> threading.Event:
            return Interrupted()

    return Interrupting()


def test_calls_that_come_while_a_leader_works_share_its_do() -> None:
    together = Together(echo)
    together.start_all(8)
    assert together.finish() == {number: [number] for number in range(8)}
    assert together.batches == [8]


def test_a_do_waits_for_those_of_the_last_one_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wait, the first caller that is back would go alone, and the others in the next batch."""
    monkeypatch.setattr(limits, "GATHER_MIN_S", 0.0)
    monkeypatch.setattr(limits, "GATHER_SHARE", math.inf)
    monkeypatch.setattr(limits, "GATHER_MAX_S", PATIENCE_S)
    together = Together(echo)
    together.start_all(4, times=5)
    together.finish()
    assert together.batches == [4, 4, 4, 4, 4]


def test_a_leader_waits_only_a_moment_for_callers_to_return() -> None:
    together = Together(echo)
    together.start_all(2)
    together.finish()
    together.start(2)
    assert together.finish()[2] == [2]
    assert together.batches == [2, 1]


def test_an_error_of_the_work_is_raised_in_every_call_as_its_own() -> None:
    def fail(_crew: Combiner, _calls: list[Call]) -> None:
        raise ValueError("broken")

    together = Together(fail)
    together.start_all(2)
    first, second = together.finish().values()
    assert str(first) == str(second) == "broken"
    assert first is not second


@pytest.mark.parametrize("is_dry", [False, True])
def test_a_claimed_call_whose_time_is_over_leaves_once_released(is_dry: bool) -> None:
    """While it was claimed, it was told that its time is over, and it waited for its answer."""

    def work(crew: Combiner, calls: list[Call]) -> None:
        if len(calls) > 1:
            crew.end_waits()
            wait_until(lambda: calls[1].overdue)
            if is_dry:
                crew.deal((), to_all=False)
            else:
                crew.release()
            wait_until(lambda: 1 in together.outcomes)
        echo(crew, crew.claim(1000, 1000))

    together = Together(work)
    together.start(0)
    together.first_batch.wait(10)
    together.start(1, until=math.inf)
    wait_for_pending(together.combiner, 1)
    assert together.finish() == {0: [0], 1: "left"}


def test_a_call_that_left_while_claimed_is_not_claimed_again() -> None:
    """Its answer would have no caller, and its thread would lead no other call."""
    is_claimed = threading.Event()

    def follow() -> None:
        with pytest.raises(KeyboardInterrupt):
            combiner.call("interrupted")

    def work(crew: Combiner, _: Call) -> None:
        follower.start()
        wait_for_pending(crew, 2)
        claims.append([call.payload for call in crew.claim(1000, 1000)])
        is_claimed.set()
        follower.join(PATIENCE_S)
        claims.append([call.payload for call in crew.claim(1000, 1000)])  # as after a conflict
        crew.deal([1], to_all=True)

    claims: list[list[str]] = []
    combiner, follower = (
        Combiner(interrupted_after(lambda _: is_claimed.wait(PATIENCE_S)), work),
        threading.Thread(target=follow),
    )
    combiner.call("leader")
    assert claims == [["leader", "interrupted"], ["leader"]]


def test_the_answer_of_a_call_that_left_goes_to_no_other() -> None:
    """Its part of the batch has happened. So its answer is among those of the batch, and is dropped."""
    is_claimed = threading.Event()

    class Interrupting(RealRuntime):
        def event(self) -> threading.Event:
            return Interrupted() if threading.current_thread().name == "interrupted" else threading.Event()

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:  # noqa: ARG002  # that of an event
            is_claimed.wait(PATIENCE_S)
            raise KeyboardInterrupt

    def follow() -> None:
        name = threading.current_thread().name
        with suppress(KeyboardInterrupt):
            answers[name] = combiner.call(name).answer

    def work(crew: Combiner, _: Call) -> None:
        for number, follower in enumerate(followers):
            follower.start()
            wait_for_pending(crew, number + 2)
        calls = crew.claim(1000, 1000)
        is_claimed.set()
        followers[0].join(PATIENCE_S)
        crew.deal([call.payload for call in calls], to_all=True)

    answers: dict[str, Any] = {}
    combiner = Combiner(Interrupting(), work)
    followers = [threading.Thread(target=follow, name=name) for name in ("interrupted", "next")]
    leader = combiner.call("leader")
    followers[1].join(PATIENCE_S)
    assert (leader.answer, answers) == (["leader"], {"next": ["next"]})


def test_claims_are_bounded_but_one_call_is_always_served() -> None:
    sizes: list[int] = []

    def work(crew: Combiner, _: Call) -> None:
        calls = crew.claim(10, 100)
        sizes.append(len(calls))
        echo(crew, calls)

    combiner = Combiner(RealRuntime(), work)
    assert combiner.call("big", size_bytes=1000).answer == ["big"]
    assert sizes == [1]


@pytest.mark.parametrize("options", [{"size_bytes": 400}, {"count": 500}], ids=repr)
def test_claims_of_several_calls_are_bounded(options: dict[str, int]) -> None:
    """In bytes and in answers: as many as the bound still fit."""
    together = Together(lambda crew, _: crew.deal([], to_all=True))
    together.start_all(4, **options)
    together.finish()
    assert together.batches == [2, 2]


def test_a_stopped_call_is_not_claimed() -> None:
    """Its own thread has not woken yet, and could not return the answer."""
    together = Together(echo)
    together.start_all(2)
    [stopped] = [call for call in together.combiner._pending if call.payload == 1]
    stopped.stopped = True
    assert together.finish() == {0: [0], 1: "left"}
    assert together.batches == [1]


def test_a_call_that_joins_an_attempt_in_doubt_waits() -> None:
    """That attempt may be the one that committed: its answer of nothing says nothing about the new call."""

    def work(crew: Combiner, leader: Call) -> None:
        claims.append([call.payload for call in crew.claim(1000, 1000)])
        if leader.payload == "leader" and len(claims) == 1:
            crew.hold()
            follower.start()
            wait_for_pending(crew, 1)
            claims.append([call.payload for call in crew.claim(1000, 1000)])
        crew.deal(["an item"] if "late" in claims[-1] else [], to_all=True)

    def follow() -> None:
        answers.extend(combiner.call("late").answer)

    claims: list[list[str]] = []
    answers: list[str] = []
    combiner, follower = Combiner(RealRuntime(), work), threading.Thread(target=follow)
    assert combiner.call("leader").answer == []
    follower.join(PATIENCE_S)
    assert claims == [["leader"], ["leader"], ["late"]]
    assert answers == ["an item"]


def test_a_call_stopped_after_its_release_is_not_claimed() -> None:
    """An attempt with an unknown result had held it until then."""

    def work(crew: Combiner, calls: list[Call]) -> None:
        crew.hold()
        crew.release()
        calls[-1].stopped = True
        echo(crew, crew.claim(1000, 1000))

    together = Together(work)
    together.start_all(2)
    assert together.finish() == {0: [0], 1: "left"}


def test_a_call_with_an_ended_wait_leaves_at_once() -> None:
    combiner = Combiner(RealRuntime(), lambda crew, _: echo(crew, crew.claim(1000, 1000)))
    with Waiter(Waiters(RealRuntime()), ()) as waiter:
        waiter.end(WaitStopped)
        assert combiner.call(0, until=math.inf, waiter=waiter).state is CallState.LEFT


def test_a_call_that_joins_after_the_end_of_waits_leaves() -> None:
    work = Mock(side_effect=[False, AssertionError("it waits")])
    combiner = Combiner(RealRuntime(), work, has_ended=lambda: True)
    assert combiner.call(0, until=math.inf).state is CallState.LEFT


def wait_for_pending(combiner: Combiner, count: int) -> None:
    """Until `count` calls are queued up; a private look, for want of a signal that production needs."""
    for _ in range(10_000):
        with combiner._lock:
            if len(combiner._pending) >= count:
                return
        RealRuntime.sleep(0.001)
    raise AssertionError("the calls never queued up")


def payloads(calls: Sequence[Call]) -> list[Any]:
    return [call.payload for call in calls]


def test_calls_are_claimed_again_before_later_ones_and_in_order() -> None:
    """As after a conflict. Otherwise new callers would keep an old one out of each batch."""

    def call(number: int) -> None:
        combiner.call(number)

    def join(crew: Combiner, number: int, pending: int) -> None:
        followers.append(threading.Thread(target=call, args=(number,)))
        followers[-1].start()
        wait_for_pending(crew, pending)

    def work(crew: Combiner, _: Call) -> None:
        if not claims:
            join(crew, 1, 2)
            claims.append(payloads(crew.claim(2, 1000)))
            join(crew, 2, 1)
            claims.append(payloads(crew.claim(2, 1000)))
        echo(crew, crew.claim(1000, 1000))

    claims: list[list[int]] = []
    followers: list[threading.Thread] = []
    combiner = Combiner(RealRuntime(), work)
    call(0)
    for follower in followers:
        follower.join(PATIENCE_S)
    assert claims == [[0, 1], [0, 1]]


def test_an_error_before_the_claim_ends_the_leading_call() -> None:
    """Later calls are led anew, and the failed one gets no answer."""

    def work(crew: Combiner, _: Call) -> None:
        batches.append([])
        if len(batches) == 1:
            raise ValueError("before the claim")
        calls = crew.claim(1000, 1000)
        batches[-1] += payloads(calls)
        echo(crew, calls)

    batches: list[list[int]] = []
    combiner = Combiner(RealRuntime(), work)
    with pytest.raises(ValueError, match="before the claim"):
        combiner.call(0)
    next_call = threading.Thread(target=combiner.call, args=(1,), daemon=True)
    next_call.start()
    next_call.join(PATIENCE_S)
    assert batches == [[], [1]]


def test_a_leader_past_its_time_stays_with_its_claim() -> None:
    """It counts once, so there is no other call to go on with the work that has begun."""

    def work(crew: Combiner, _: Call) -> bool:
        claims.append(payloads(crew.claim(1000, 1000)))
        return len(claims) < 3

    claims: list[list[int]] = []
    assert Combiner(RealRuntime(), work).call(0, until=0.0).state is CallState.LEFT
    assert claims == [[0], [0], [0]]


def test_a_call_that_left_while_claimed_is_not_pending_again() -> None:
    """It would get the lead and never work, so all later calls would wait for ever."""
    is_claimed = threading.Event()

    def follow() -> None:
        with pytest.raises(KeyboardInterrupt):
            combiner.call("interrupted")

    def work(crew: Combiner, leader: Call) -> None:
        if leader.payload == "first":
            follower.start()
            wait_for_pending(crew, 2)
        claims.append(payloads(crew.claim(1000, 1000)))
        if leader.payload == "first":
            is_claimed.set()
            follower.join(PATIENCE_S)
        crew.deal([1], to_all=False)

    claims: list[list[str]] = []
    combiner, follower = (
        Combiner(interrupted_after(lambda _: is_claimed.wait(PATIENCE_S)), work),
        threading.Thread(target=follow),
    )
    combiner.call("first")
    next_call = threading.Thread(target=combiner.call, args=("next",), daemon=True)
    next_call.start()
    next_call.join(PATIENCE_S)
    assert claims == [["first", "interrupted"], ["next"]]


class Waits(ManualClock):
    """A manual clock that notes the waits with a timeout, those of leaders, and ends them at once."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[float] = []

    def event(self) -> threading.Event:
        return _Noted(self.noted)


class _Noted(threading.Event):
    def __init__(self, noted: list[float]) -> None:
        super().__init__()
        self._noted = noted

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return super().wait()
        self._noted.append(timeout)
        return False


def after_a_batch_of_two(clock: Waits, joining: int) -> Together:
    """Two calls have shared a batch that took two seconds. `joining` calls have come meanwhile."""

    def work(crew: Combiner, calls: list[Call]) -> None:
        if len(together.batches) == 1:
            for number in range(joining):
                together.start(2 + number)
                wait_for_pending(crew, 1 + number)
            clock.advance(2.0)
        echo(crew, calls)

    together = Together(work, clock)
    together.start_all(2)
    together.finish()
    return together


def test_a_leader_waits_for_none_after_a_long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The callers of the last batch have had the time to come back."""
    monkeypatch.setattr(limits, "GATHER_MAX_S", math.inf)
    clock = Waits()
    together = after_a_batch_of_two(clock, joining=0)
    clock.advance(2.0 * limits.GATHER_SHARE + 1)
    assert together.combiner.call(2).answer == [2]
    assert clock.noted == []


def test_a_leader_waits_for_none_once_all_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GATHER_MAX_S", math.inf)
    clock = Waits()
    together = after_a_batch_of_two(clock, joining=2)
    assert together.batches == [2, 2]
    assert clock.noted == []


def test_the_wait_for_callers_is_a_share_of_the_last_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GATHER_MAX_S", PATIENCE_S)
    clock = Waits()
    together = after_a_batch_of_two(clock, joining=0)
    together.combiner.call(2)
    assert clock.noted == [pytest.approx(2.0 * limits.GATHER_SHARE)]
