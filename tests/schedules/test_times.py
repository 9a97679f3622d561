"""Due times as functions of a time, and the turn of a schedule: which of its due times get a task."""

from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fdbqueue import InvalidArgument
from fdbqueue.core import limits
from fdbqueue.tasks.firing import (
    ALL,
    MISSED,
    ONCE,
    SECOND_US,
    CronTimes,
    EveryTimes,
    Turn,
    next_times,
    retry_us,
    rule_for,
    shown_time,
    times_from,
    turn_of,
    zone_named,
)

ROME = ZoneInfo("Europe/Rome")
ZONES = ["UTC", "Europe/Rome", "America/New_York", "America/Havana", "Asia/Kolkata", "Australia/Lord_Howe"]
"""Havana repeats midnight, Kolkata is half an hour off, Lord Howe moves its clocks by half an hour."""
EXPRESSIONS = [
    "0 3 * * *",
    "30 2 * * *",
    "0,30 2 * * *",
    "0 2,3 * * *",
    "15 0 * * *",
    "0 0 * * *",
    "*/20 * * * *",
    "*/20 2 * * *",
    "30 * * * *",
    "0 */2 * * *",
    "0 9 * * MON-FRI",
    "0 0 1 * *",
    "0 0 L * *",
    "0 0 29 2 *",
    "*/15 * * * * *",
    "30 30 2 * * *",
]


def us(text: str) -> int:
    """The time of an ISO text, in microseconds."""
    return round(datetime.fromisoformat(text).timestamp()) * SECOND_US


def local(expression: str, zone: str, start: str, count: int) -> list[str]:
    """The first due times behind a local time, as ISO texts."""
    times = CronTimes(expression, zone_named(zone))
    begin = round(datetime.fromisoformat(start).replace(tzinfo=zone_named(zone)).timestamp()) * SECOND_US
    return [shown_time(at, zone_named(zone)).isoformat() for at in next_times(times, begin, count)]


# The hour that does not exist: in Rome, 29 March 2026 goes from 02:00 to 03:00.


def test_a_time_in_the_missing_hour_is_due_at_its_end() -> None:
    assert local("30 2 * * *", "Europe/Rome", "2026-03-28T03:00", 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


# The hour that exists twice: in Rome, 25 October 2026 goes from 03:00 back to 02:00.


def test_a_time_in_the_doubled_hour_is_due_once() -> None:
    assert local("30 2 * * *", "Europe/Rome", "2026-10-24T03:00", 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_a_time_of_the_first_pass_is_not_due_again_in_the_second() -> None:
    in_the_second = us("2026-10-25T02:15:00+01:00")
    due = CronTimes("30 2 * * *", ROME).after(in_the_second)
    assert due == us("2026-10-26T02:30:00+01:00")


# Against the library, and against all times in order.

STARTS = st.one_of(
    st.integers(us("2026-01-01T00:00+00:00"), us("2028-12-31T00:00+00:00")),
    *(  # around changes of the clocks
        st.integers(us(day) - 4 * 3600 * SECOND_US, us(day) + 8 * 3600 * SECOND_US)
        for day in ("2026-03-29T00:00+00:00", "2026-10-25T00:00+00:00", "2026-03-08T05:00+00:00")
    ),
)


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), STARTS)
@example("30 2 * * *", "Europe/Rome", us("2026-10-25T00:15+00:00"))
def test_due_times_are_those_of_the_library(expression: str, zone: str, start_us: int) -> None:
    """They begin a day earlier, where no hour of the start is doubled, and go on in one pass."""
    times, place = CronTimes(expression, zone_named(zone)), zone_named(zone)
    earlier = datetime.fromtimestamp(start_us // SECOND_US - 86_400, UTC).astimezone(place)
    wanted = []
    for at in times_from(expression, earlier):
        due_us = round(at.timestamp()) * SECOND_US
        if due_us > start_us:
            wanted.append(due_us)
        if len(wanted) == 4:
            break
    assert next_times(times, start_us, 4) == wanted


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), STARTS)
def test_a_due_time_follows_from_every_moment_before_it(expression: str, zone: str, start_us: int) -> None:
    """So each process finds the same one, whenever it passes."""
    times = CronTimes(expression, zone_named(zone))
    due_us = times.after(start_us)
    assert due_us is not None
    for moment in (start_us, (start_us + due_us) // 2, due_us - SECOND_US, due_us - 1):
        if start_us <= moment < due_us:
            assert times.after(moment) == due_us


@given(st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES), STARTS, st.integers(0, 3 * 86_400))
def test_the_last_due_time_is_found_by_halves(
    expression: str, zone: str, start_us: int, lasts_s: int
) -> None:
    times = CronTimes(expression, zone_named(zone))
    first_us = times.after(start_us)
    assert first_us is not None
    until_us = first_us + lasts_s * SECOND_US
    found = times.last_until(until_us, first_us)
    following = times.after(found)
    assert first_us <= found <= until_us
    assert following > until_us
    assert found == first_us or times.after(found - 1) == found


SPANS_US = st.integers(SECOND_US, 10 * 86_400 * SECOND_US)


@given(SPANS_US, st.integers(0, 10**15), st.integers(0, 10**15))
def test_every_has_one_distance_from_its_anchor(every_us: int, anchor_us: int, later_us: int) -> None:
    times = EveryTimes(every_us, anchor_us)
    found = next_times(times, anchor_us + later_us, 4)
    assert all(later - earlier == every_us for earlier, later in pairwise(found))
    assert all((due - anchor_us) % every_us == 0 for due in found)
    assert 0 < found[0] - anchor_us - later_us <= every_us


@given(SPANS_US, st.integers(0, 10**15), st.integers(0, 10**13))
def test_the_last_time_of_every_is_the_one_before_the_next(
    every_us: int, anchor_us: int, later_us: int
) -> None:
    times = EveryTimes(every_us, anchor_us)
    first_us = anchor_us + every_us
    found = times.last_until(first_us + later_us, first_us)
    assert (found - anchor_us) % every_us == 0
    assert found <= first_us + later_us < found + every_us


# Refusals.


@given(st.text(max_size=30))
@example("* * * * * * *")
@example("61 * * * *")
@example("* * * * ٣#1")
@example("@daily")
def test_an_expression_that_is_none_is_refused(text: str) -> None:
    with suppress(InvalidArgument):  # and no other error
        CronTimes(text, UTC).after(0)


@given(st.text(max_size=20))
@example("Europe")
@example("/etc/passwd")
@example("../UTC")
@example("\x00")
@example("Rome")
@example("")
def test_a_time_zone_that_is_none_is_refused(text: str) -> None:
    with suppress(InvalidArgument):  # and no other error
        zone_named(text)


def test_an_expression_without_a_time_in_fifty_years_has_none() -> None:
    assert CronTimes("* * */20 * 1L", UTC).after(0) is None


@pytest.mark.parametrize("year", [9999, 20_000])
def test_there_is_no_time_beyond_the_last_year(year: int) -> None:
    assert CronTimes("0 0 1 1 *", ROME).after((year - 1970) * 31_557_600 * SECOND_US) is None


@pytest.mark.parametrize(
    ("nickname", "fields", "following"),
    [
        ("@yearly", "0 0 1 1 *", "2027-01-01T00:00"),
        ("@annually", "0 0 1 1 *", "2027-01-01T00:00"),
        ("@monthly", "0 0 1 * *", "2026-04-01T00:00"),
        ("@weekly", "0 0 * * 0", "2026-03-22T00:00"),
        ("@daily", "0 0 * * *", "2026-03-18T00:00"),
        ("@midnight", "0 0 * * *", "2026-03-18T00:00"),
        ("@hourly", "0 * * * *", "2026-03-17T13:00"),
    ],
)
def test_a_nickname_stands_for_five_fields(nickname: str, fields: str, following: str) -> None:
    now_us = us("2026-03-17T12:34+01:00")
    rule = rule_for(nickname, None, "Europe/Rome", "once", now_us)
    assert rule.expression == fields
    found = rule.times().after(now_us)
    assert found is not None
    assert shown_time(found, ROME).isoformat()[:16] == following


@pytest.mark.parametrize("nickname", ["@reboot", "@every 5m", "@DAILY", "@"])
def test_other_nicknames_are_refused(nickname: str) -> None:
    with pytest.raises(InvalidArgument):
        rule_for(nickname, None, "UTC", "once", 0)


# Turns.

MISSED_AFTER_US = round(limits.SCHEDULE_MISSED_AFTER_S * SECOND_US)
MINUTE_US, HOUR_US = 60 * SECOND_US, 3_600 * SECOND_US


def turn(missed: str, every_us: int, late_us: int, due_us: int = 10 * HOUR_US) -> Turn:
    """The turn of a pass that comes `late_us` after a due time."""
    return turn_of(EveryTimes(every_us, due_us), missed, due_us, due_us + late_us)


def test_nothing_is_due_before_its_time() -> None:
    assert turn(ALL, HOUR_US, -1) == Turn([], 10 * HOUR_US)


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
