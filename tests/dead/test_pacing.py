"""The pace of a redrive, by pure functions: its rate is never exceeded, whatever the clocks."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue import Redrive, RedriveState
from fdbqueue.core import limits
from fdbqueue.tasks.redrive import Place, step_size, stepped, turn_of

RUNNING = Redrive(RedriveState.RUNNING, 10.0, left=1_000_000)
NOW = 1_000.0


@pytest.mark.parametrize(
    ("rate_per_s", "size"), [(0.01, 1), (1, 1), (10, 2), (500, 100), (1e6, limits.VERB_BATCH)]
)
def test_a_step_has_the_tasks_of_its_time(rate_per_s: float, size: int) -> None:
    assert step_size(replace(RUNNING, rate_per_s=rate_per_s)) == size


def test_a_step_before_its_time_waits() -> None:
    turn = turn_of(replace(RUNNING, due=NOW + 0.1), NOW)
    assert (turn.count, turn.wait_s) == (0, pytest.approx(0.1))


def test_a_wrong_clock_does_not_stop_a_redrive() -> None:
    """A process with a clock an hour ahead has made the last step, and died."""
    ahead = replace(RUNNING, due=NOW + 3_600)
    assert turn_of(ahead, NOW).count == 2
    assert stepped(ahead, NOW, [Place(0, b"a"), Place(2, b"b")], 2, 0, is_last=False).due == pytest.approx(
        NOW + 0.2
    )


def test_a_process_with_a_slow_clock_waits_for_a_step() -> None:
    """Clocks may differ that much."""
    due = NOW + limits.CLOCK_SKEW_S
    assert turn_of(replace(RUNNING, due=due), NOW).count == 0


@pytest.mark.parametrize("late_s", [0.1, 3_600])
def test_a_late_step_makes_up_for_a_short_time(late_s: float) -> None:
    after = stepped(replace(RUNNING, due=NOW - late_s), NOW, [Place(0, b"a")], 2, 0, is_last=False)
    assert after.due == pytest.approx(NOW - min(late_s, limits.REDRIVE_STEP_S) + 0.2)


def test_a_step_stays_within_limit_and_number() -> None:
    assert turn_of(replace(RUNNING, left=1), NOW).count == 1
    assert turn_of(replace(RUNNING, limit=8, moved=7), NOW).count == 1


@pytest.mark.parametrize(
    ("before", "moved", "is_last"),
    [
        (replace(RUNNING, left=2), 1, False),
        (replace(RUNNING, limit=3, moved=1), 2, False),
        (RUNNING, 1, True),
    ],
)
def test_a_redrive_is_done_at_its_end(before: Redrive, moved: int, is_last: bool) -> None:
    after = stepped(before, NOW, [Place(0, b"a"), Place(2, b"b")], moved, 2 - moved, is_last=is_last)
    assert (after.state, after.moved) == (RedriveState.DONE, before.moved + moved)
    assert (after.partition, after.cursor) == (2, b"b")


def test_a_step_that_moves_nothing_costs_no_time() -> None:
    after = stepped(replace(RUNNING, due=NOW), NOW, [Place(0, b"a")], 0, 1, is_last=False)
    assert (after.due, after.passed, after.left) == (NOW, 1, RUNNING.left - 1)


@given(
    st.floats(0.1, 2_000),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, limits.VERB_BATCH)), min_size=1, max_size=60),
)
def test_no_span_has_more_tasks_than_its_rate_allows(
    rate_per_s: float, looks: list[tuple[float, int]]
) -> None:
    redrive = replace(RUNNING, rate_per_s=rate_per_s, due=NOW)
    now, moves = NOW, []
    for pause_s, most in looks:
        now += pause_s
        turn = turn_of(redrive, now)
        moved = min(turn.count, most)
        if moved:
            redrive = stepped(redrive, now, [Place(0, b"x")] * moved, moved, 0, is_last=False)
            moves.append((now, moved))
    for n, (began, _) in enumerate(moves):
        for m, (ended, _) in enumerate(moves[n:], n):
            total = sum(moved for _, moved in moves[n : m + 1])
            allowed = rate_per_s * (ended - began + limits.REDRIVE_STEP_S) + step_size(redrive)
            assert total <= allowed + 1e-6
