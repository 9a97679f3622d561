"""Passes beside other calls, other clocks and other processes, and failures beside changes."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Limit, QueueNotFound, Schedule, list_schedules
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks import firing
from fdbqueue.tasks.firing import NotHere
from tests.schedules.support import ScheduleBench, StillClock
from tests.support import TIMED_OUT

HOUR_S = 3_600
CHANGES: dict[str, Callable[[ScheduleBench, Schedule], object]] = {
    "pause": lambda bench, schedule: schedule.pause(bench.db),
    "change": lambda bench, schedule: schedule.change(bench.db, every=60, queue="reports"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_failure_is_not_noted_beside_a_change(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The try was of a due time that no longer stands."""
    gone, fire = bench.queue_of("fifo", "gone"), firing.fire
    schedule = bench.create(queue="gone")
    gone.drop(bench.db)

    def fail_and_change(*given: Any, **named: Any) -> Any:
        try:
            return fire(*given, **named)
        except QueueNotFound:
            CHANGES[change](bench, schedule)
            raise

    monkeypatch.setattr(firing, "fire", fail_and_change)
    assert bench.pass_after(HOUR_S) == 0
    found = schedule.status(bench.db)
    assert (found.error, found.tries, found.next_try) == (None, 0, found.due)
    assert bench.texts_of_verify() == []


def test_another_time_zone_moves_the_due_time(bench: ScheduleBench) -> None:
    schedule = bench.create("0 3 * * *")
    schedule.change(bench.db, timezone="Europe/Rome")
    bench.pass_after(6 * HOUR_S)
    assert bench.due_times() == ["2026-05-29T03:00:00+02:00"]


def test_a_failing_schedule_is_deleted_with_all_its_keys(bench: ScheduleBench) -> None:
    gone = bench.queue_of("fifo", "gone")
    schedule = bench.create(queue="gone")
    gone.drop(bench.db)
    bench.pass_after(HOUR_S)
    schedule.delete(bench.db)
    under = bench.keys.schedules_due
    assert list(bench.db.get_range(under.start, under.stop)) == []


def test_a_process_tries_a_schedule_again_that_it_left(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacked a library, and may have it after its next deployment."""
    tries, fire = list[float](), firing.fire

    def fail_first(*given: Any, **named: Any) -> Any:
        tries.append(bench.clock.now())
        if len(tries) == 1:
            raise NotHere("no library")
        return fire(*given, **named)

    monkeypatch.setattr(firing, "fire", fail_first)
    bench.create()
    bench.clock.advance(HOUR_S)
    for _ in range(round(limits.SCHEDULE_RETRY_MAX_S) + 5):
        keeper_of(bench.db, bench.keys).tick()
        bench.clock.advance(1)
    first, second = tries
    assert second - first >= limits.SCHEDULE_RETRY_MAX_S
    assert len(bench.tasks()) == 1


def test_a_pass_removes_an_entry_that_nothing_stands_for(bench: ScheduleBench) -> None:
    """It would cost a transaction of each pass."""
    bench.create()
    left = bench.keys.schedule_due(round(bench.clock.now() * 1e6), "gone")
    bench.db[left] = b""
    assert bench.pass_after(HOUR_S) == 1
    assert bench.db[left] is None


def test_an_outage_is_no_failure_of_a_schedule(
    bench: ScheduleBench, fdb_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(*_: Any, **__: Any) -> Any:
        raise fdb_module.FDBError(TIMED_OUT)

    bench.create()
    before = bench.status()
    with monkeypatch.context() as patch:
        patch.setattr(firing, "fire", time_out)
        with pytest.raises(fdb_module.FDBError):
            bench.pass_after(HOUR_S)
    assert bench.status() == before
    assert bench.pass_after(0) == 1


def test_a_change_of_a_schedule_with_a_damaged_state_fires(bench: ScheduleBench) -> None:
    """Its due times stay, also if the change repeats the period."""
    schedule = bench.create()
    due = bench.status().due
    bench.db[bench.keys.schedule_state("nightly")] = b"\xc1"
    bench.clock.advance(7)
    schedule.change(bench.db, data=2, every=HOUR_S)
    assert bench.status().due == due
    assert bench.pass_after(HOUR_S - 7) == 1


def test_a_key_of_another_program_ends_no_pass(bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one of the keys of a full page."""
    monkeypatch.setattr(limits, "SCHEDULES_DUE_READ", 2)
    bench.db[bench.keys.schedules_due.start] = b""
    for name in "abc":
        bench.create(name=name)
    assert bench.pass_after(HOUR_S) == 3


def test_a_process_without_the_library_notes_no_failure(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next process may have it, and fires the schedule at once."""
    schedule = bench.create("0 3 * * *")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "cronsim", None)
        assert bench.pass_after(24 * HOUR_S) == 0
    assert (schedule.status(bench.db).error, bench.pass_after(0)) == (None, 1)


def test_a_pass_beyond_its_bound_goes_on_in_the_next_round(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not after the pause between two looks."""
    monkeypatch.setattr(limits, "SCHEDULES_FIRED_PER_PASS", 1)
    monkeypatch.setattr(limits, "SCHEDULES_DUE_READ", 1)
    for name in "ab":
        bench.create(name=name)
    bench.clock.advance(HOUR_S)
    for _ in range(2):
        keeper_of(bench.db, bench.keys).tick()
    assert len(bench.tasks()) == 2


def test_a_change_keeps_limits_with_and_without_keys(bench: ScheduleBench) -> None:
    named = {"api": None, "tenant": "a"}
    for name in named:
        Limit.set(bench.db, name, slots=1, per_key=name == "tenant", root=bench.root)
    queue = bench.queue_of("fifo", "other", task_limits=list(named))
    schedule = bench.create(queue="other", limits=named)
    schedule.change(bench.db, missed="all")
    assert schedule.status(bench.db).options == {"limits": named}
    assert bench.pass_after(HOUR_S) == 1
    assert [dict(task.limits) for task in bench.tasks("r", queue)] == [named]


@pytest.mark.parametrize("foreign", [1, 2, 5])
@pytest.mark.parametrize("lost", [False, True])
def test_keys_of_other_programs_hide_no_schedule(bench: ScheduleBench, foreign: int, lost: bool) -> None:
    """They fill pages. A schedule without its state has one key less."""
    for name in "abc":
        bench.create(name=name)
    if lost:
        del bench.db[bench.keys.schedule_state("a")]
    for number in range(foreign):
        bench.db[bench.keys.schedules_after("").start + b"\x00" * number] = b""
    found, after = list[tuple[str, bool]](), ""
    while True:
        page = list_schedules(bench.db, 1, after=after, root=bench.root)
        assert len(page) <= 1
        found += [(one.name, one.due is not None) for one in page]
        if page.next is None:
            break
        after = page.next
    assert found == [("a", not lost), ("b", True), ("c", True)]


def test_a_stop_ends_a_pass_between_two_schedules(bench: ScheduleBench) -> None:
    for name in "ab":
        bench.create(name=name)
    bench.clock.advance(HOUR_S)
    stopping = firing._Alone(bench.db, bench.keys)
    stopping.is_stopping = True
    assert firing.Pass(bench.db, bench.keys).fire_all(stopping) == 1
    assert bench.pass_after(0) == 1


def test_a_pass_goes_on_behind_a_schedule_left_to_others(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays due, on a page of its own."""
    monkeypatch.setattr(limits, "SCHEDULES_DUE_READ", 1)
    fire = firing.fire

    def fire_but_a(*given: Any, **named: Any) -> Any:
        if named["due"].name == "a":
            raise NotHere("no library")
        return fire(*given, **named)

    monkeypatch.setattr(firing, "fire", fire_but_a)
    for name in "ab":
        bench.create(name=name)
    assert bench.pass_after(HOUR_S) == 1


def test_an_old_entry_brings_no_try_forward(bench: ScheduleBench) -> None:
    """A pass may have read it before another process failed, and put the next try off."""
    gone = bench.queue_of("fifo", "gone")
    schedule = bench.create(queue="gone")
    due = schedule.status(bench.db).due
    assert due is not None
    gone.drop(bench.db)
    bench.pass_after(HOUR_S)
    bench.queue_of("fifo", "gone")
    old = bench.keys.schedule_due(round(due * 1e6), "nightly")
    bench.db[old] = b""
    assert (bench.pass_after(0), bench.db[old]) == (0, None)
    assert bench.pass_after(limits.SCHEDULE_RETRY_FIRST_S) == 1


def test_a_process_leaves_several_schedules_to_others(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks a library for each of them, and tries none of them again at once."""
    tried = list[str]()

    def fail(*_: Any, due: firing.Due, **__: Any) -> Any:
        tried.append(due.name)
        raise NotHere("no library")

    monkeypatch.setattr(firing, "fire", fail)
    for name in "abc":
        bench.create(name=name)
    bench.clock.advance(HOUR_S)
    for _ in range(5):
        keeper_of(bench.db, bench.keys).tick()
        bench.clock.advance(1)
    assert tried == ["a", "b", "c"]


def test_a_debounce_shorter_than_the_delay_is_refused(bench: ScheduleBench) -> None:
    """A put with these options would be refused, too."""
    options: dict[str, Any] = {"unique": "k", "on_conflict": "debounce", "delay": 10, "debounce_max": 5}
    with pytest.raises(InvalidArgument, match="debounce_max"):
        bench.create(**options)
    bench.create(**options | {"debounce_max": 20})
    assert bench.pass_after(HOUR_S) == 1


def test_a_call_in_a_transaction_has_the_clock_of_its_database(bench: ScheduleBench) -> None:
    """The handle is one of another database, which has a schedule of that name, too."""
    clock = StillClock(bench.clock.now() + 1_000 * HOUR_S)
    with fdbqueue.open("memory:", runtime=clock) as other:
        ScheduleBench(other, clock, bench.root).create()
        [due] = bench.create().next_times(other.create_transaction(), 1)
    assert due.timestamp() == clock.now() + HOUR_S


def test_the_number_of_next_times_has_a_bound(bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SCHEDULE_TIMES_MAX", 2)
    assert len(bench.create().next_times(bench.db, 5)) == 2


def test_headers_leave_room_for_the_due_time(bench: ScheduleBench) -> None:
    """The tasks have it as a header, too: they would be refused at each due time."""
    with pytest.raises(InvalidArgument, match="headers"):
        bench.create(headers={"a": "x" * 950})
    bench.create(headers={"a": "x" * 900})
    assert bench.pass_after(HOUR_S) == 1


def test_the_error_of_a_schedule_is_stored_in_short(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("x" * 200_000)

    bench.create()
    monkeypatch.setattr(firing, "put_for", fail)
    assert bench.pass_after(HOUR_S) == 0
    error = bench.status().error
    assert error.startswith("ValueError: xxx")
    assert len(error) <= limits.SCHEDULE_ERROR_LENGTH_MAX


def test_data_of_exactly_the_bound_are_put(bench: ScheduleBench) -> None:
    data = "x" * (limits.SCHEDULE_DATA_BYTES_MAX - len('""'))
    bench.create(data=data)
    assert bench.pass_after(HOUR_S) == 1
    assert bench.data() == [data]
