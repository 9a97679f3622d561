"""The turn of a schedule that is due: which due times get a task, and which one is next."""

from hypothesis import example, given
from hypothesis import strategies as st

from fdbqueue.core import limits
from fdbqueue.tasks.firing import ALL, MISSED, ONCE, SECOND_US, SKIP, EveryTimes, Turn, retry_us, turn_of

MISSED_AFTER_US = round(limits.SCHEDULE_MISSED_AFTER_S * SECOND_US)
MINUTE_US, HOUR_US = 60 * SECOND_US, 3_600 * SECOND_US


def turn(missed: str, every_us: int, late_us: int, due_us: int = 10 * HOUR_US) -> Turn:
    """The turn of a pass that comes `late_us` after a due time."""
    return turn_of(EveryTimes(every_us, due_us), missed, due_us, due_us + late_us)


@given(st.sampled_from(MISSED), st.integers(0, MISSED_AFTER_US))
def test_a_due_time_in_time_gets_a_task_by_each_rule(missed: str, late_us: int) -> None:
    assert turn(missed, HOUR_US, late_us) == Turn([10 * HOUR_US], 11 * HOUR_US)


def test_nothing_is_due_before_its_time() -> None:
    assert turn(ALL, HOUR_US, -1) == Turn([], 10 * HOUR_US)


def test_once_puts_one_task_for_the_last_due_time_of_an_outage() -> None:
    late_us = 5 * HOUR_US + 20 * MINUTE_US
    assert turn(ONCE, HOUR_US, late_us) == Turn((15 * HOUR_US,), 16 * HOUR_US)


def test_all_puts_one_task_for_each_due_time_after_an_outage() -> None:
    late_us = 2 * HOUR_US + 20 * MINUTE_US
    assert turn(ALL, HOUR_US, late_us) == Turn([10 * HOUR_US, 11 * HOUR_US, 12 * HOUR_US], 13 * HOUR_US)


def test_skip_puts_no_task_for_due_times_that_were_missed() -> None:
    assert turn(SKIP, HOUR_US, 5 * HOUR_US + 20 * MINUTE_US) == Turn([], 16 * HOUR_US)


def test_skip_puts_a_task_for_a_due_time_that_is_not_missed_yet() -> None:
    late_us = 5 * HOUR_US + MISSED_AFTER_US
    assert turn(SKIP, HOUR_US, late_us) == Turn([15 * HOUR_US], 16 * HOUR_US)


def test_once_puts_each_due_time_that_is_not_missed_yet() -> None:
    times = [10 * HOUR_US + number * MINUTE_US // 2 for number in range(3)]
    assert turn(ONCE, MINUTE_US // 2, MISSED_AFTER_US) == Turn(times, times[-1] + MINUTE_US // 2)


def test_one_turn_puts_a_bounded_number_of_tasks() -> None:
    found = turn(ALL, SECOND_US, 100 * HOUR_US)
    assert len(found.times_us) == limits.SCHEDULE_FIRED_MAX
    assert found.next_us == found.times_us[-1] + SECOND_US


@given(
    st.sampled_from(MISSED),
    st.integers(SECOND_US, 2 * HOUR_US),
    st.lists(st.integers(0, 3 * HOUR_US), min_size=1, max_size=10),
)
@example(ONCE, HOUR_US, [MISSED_AFTER_US, HOUR_US])
def test_turns_follow_a_plain_model(missed: str, every_us: int, waits_us: list[int]) -> None:
    """The model looks at each due time by itself; each pass takes turns until nothing is due."""
    times, first_us = EveryTimes(every_us, 0), every_us
    now_us, due_us = 0, first_us
    for wait_us in waits_us:
        now_us += wait_us
        put: list[int] = []
        wanted = modelled(missed, every_us, due_us, now_us)
        while due_us <= now_us:
            one = turn_of(times, missed, due_us, now_us)
            put += one.times_us
            assert one.next_us is not None
            assert one.next_us > due_us
            due_us = one.next_us
            if len(put) > 200:
                break
        if due_us > now_us:
            assert put == wanted
        else:
            assert put == wanted[: len(put)]
            return


def modelled(missed: str, every_us: int, due_us: int, now_us: int) -> list[int]:
    come = range(due_us, now_us + 1, every_us)
    if not come or now_us - come[0] <= MISSED_AFTER_US or missed == ALL:
        return list(come[:1_000])
    if missed == ONCE:
        return [come[-1]]
    return [due for due in come[-100:] if now_us - due <= MISSED_AFTER_US]


def test_tries_come_later_and_later_up_to_a_bound() -> None:
    waits_s = [(retry_us(0, tries) / SECOND_US) for tries in (1, 2, 3, 7, 10_000)]
    assert waits_s == [1.0, 2.0, 4.0, 60.0, 60.0]
