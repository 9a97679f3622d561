"""Calls of one process combine: the order of claims, the lead after errors, the wait for the last callers."""

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fdbqueue.core import limits
from fdbqueue.core.calls.combine import Call, CallState, Combiner
from fdbqueue.core.runtime import RealRuntime
from tests.support import PATIENCE_S, ManualClock
from tests.test_combine import Together, echo, interrupted_after, wait_for_pending


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


def test_a_follower_interrupted_with_the_lead_passes_it_on() -> None:
    """It has got the lead, and has not woken yet. Later calls would wait for a leader for ever."""

    def follow() -> None:
        with pytest.raises(KeyboardInterrupt):
            combiner.call("interrupted")

    def work(crew: Combiner, leader: Call) -> None:
        if leader.payload == "first":
            follower.start()
            wait_for_pending(crew, 2)
        calls = crew.claim(1, 1000)
        served.extend(payloads(calls))
        echo(crew, calls)

    served: list[str] = []
    combiner, follower = (
        Combiner(interrupted_after(lambda event: threading.Event.wait(event, PATIENCE_S)), work),
        threading.Thread(target=follow),
    )
    combiner.call("first")
    follower.join(PATIENCE_S)
    next_call = threading.Thread(target=combiner.call, args=("next",), daemon=True)
    next_call.start()
    next_call.join(PATIENCE_S)
    assert served == ["first", "next"]


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
    together.start(0)
    together.first_batch.wait(PATIENCE_S)
    together.start(1)
    wait_for_pending(together.combiner, 2)
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
