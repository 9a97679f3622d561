"""The rules of schedules, on each engine: firing, pauses, changes, runs by hand, errors of one of them."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fdbqueue
import fdbqueue.embedded
from fdbqueue import (
    InvalidArgument,
    Limit,
    PayloadTooLarge,
    QueueKindMismatch,
    QueueNotFound,
    Schedule,
    ScheduleNotFound,
    Task,
    TaskQueue,
    UnsupportedOption,
    fire_due,
    list_schedules,
)
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.registry import Registry
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks import schedules
from fdbqueue.tasks.firing import VERSION, state_of
from tests.queue_support import FATES, faulty
from tests.schedules.support import ScheduleBench

HOUR_S = 3_600

# Firing.


def test_a_schedule_puts_a_task_at_each_due_time(bench: ScheduleBench) -> None:
    bench.create(data={"report": 7})
    assert bench.pass_after(HOUR_S - 1) == 0
    assert bench.pass_after(1) == 1
    assert bench.pass_after(HOUR_S) == 1
    assert bench.data() == [{"report": 7}, {"report": 7}]


def test_a_task_has_the_schedule_and_the_due_time_in_its_headers(bench: ScheduleBench) -> None:
    bench.create(headers={"tenant": "acme"})
    at = bench.at(HOUR_S)
    bench.pass_after(HOUR_S + 7)
    assert dict(bench.tasks()[0].headers) == {"tenant": "acme", "schedule": "nightly", "scheduled-for": at}


@pytest.mark.parametrize("fate", FATES)
def test_a_pass_counts_its_tasks_after_any_result_of_commits(
    bench: ScheduleBench, fdb_module: ModuleType, fate: str
) -> None:
    """It goes on until the missed due times end."""
    bench.create(every=1, missed="all")
    bench.clock.advance(250)
    unsure, engine = faulty(bench.db, fdb_module.FDBError, bench.clock)
    engine.fate = FATES[fate]
    assert fdbqueue.fire_due(unsure, root=bench.root) == 250
    assert len(bench.queue.tasks(bench.db, "r", 1_000)) == 250


# Options of the put.

OPTIONS: list[tuple[str, dict[str, Any], Callable[[Task], Any], Any]] = [
    ("fifottl", {"pri": 7}, lambda task: task.pri, 7),
    ("fifottl", {"ttl": 50}, lambda task: task.expires is not None, True),
    ("fifottl", {"delay": 60}, lambda task: task.state.name, "DELAYED"),
    ("bag", {"delay": 60}, lambda task: task.state.name, "DELAYED"),
    ("utube", {"key": ("a", 1)}, lambda task: task.key, ("a", 1)),
    ("fair", {"key": "a", "cost": 3}, lambda task: task.key, "a"),
    ("fifo", {"headers": {"a": "b"}}, lambda task: task.headers["a"], "b"),
    ("fifo", {"result_ttl": 90}, lambda task: task.result_ttl, 90),
    ("fifo", {"unique": "u"}, lambda task: task.unique, "u"),
    ("limfifottl", {"unique": 1, "scope": "queued"}, lambda task: task.unique, 1),
    ("utubettl", {"key": 5, "pri": 2, "ttr": 4}, lambda task: (task.key, task.pri), (5, 2)),
]


def test_a_schedule_names_limits_of_its_queue(bench: ScheduleBench) -> None:
    Limit.set(bench.db, "api", slots=1, root=bench.root)
    queue = bench.queue_of("fifo", "other", task_limits=["api"])
    with pytest.raises(InvalidArgument, match="task_limits"):
        bench.create(queue="other", limits=["none"])
    schedule = bench.create(queue="other", limits=["api"])

    assert bench.pass_after(HOUR_S) == 1
    assert [dict(task.limits) for task in bench.tasks("r", queue)] == [{"api": None}]
    assert schedule.status(bench.db).options == {"limits": ("api",)}


@pytest.mark.parametrize(("kind", "options", "seen", "wanted"), OPTIONS)
@pytest.mark.parametrize("partitions", [1, 3])
def test_the_options_of_a_put_go_along(
    bench: ScheduleBench,
    kind: str,
    options: dict[str, Any],
    seen: Callable[[Task], Any],
    wanted: Any,
    partitions: int,
) -> None:
    queue = bench.queue_of(kind, "other", partitions=partitions)
    schedule = bench.create(queue="other", **options)
    assert bench.pass_after(HOUR_S) == 1
    (task,) = bench.tasks("r", queue) + bench.tasks("~", queue)
    assert seen(task) == wanted
    assert schedule.status(bench.db).options == options


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        ("fifo", "pri", 1),
        ("fifo", "delay", 5),
        ("fifottl", "key", "a"),
        ("utube", "ttl", 5),
        ("bag", "pri", 1),
        ("fifo", "cost", 2),
        ("fifo", "timeout", 2),
    ],
)
def test_an_option_that_the_kind_lacks_is_refused(
    bench: ScheduleBench, kind: str, option: str, value: Any
) -> None:
    bench.queue_of(kind, "other")
    with pytest.raises(UnsupportedOption):
        bench.create(queue="other", **{option: value})
    assert bench.names() == []


def test_a_unique_task_that_exists_counts_for_its_due_time(bench: ScheduleBench) -> None:
    schedule = bench.create(unique="one at a time")
    bench.pass_after(HOUR_S)
    bench.pass_after(HOUR_S)
    assert len(bench.tasks()) == 1
    assert schedule.status(bench.db).fired == 2


@pytest.mark.parametrize("codec", ["json", "msgpack", "bytes"])
def test_data_are_encoded_by_the_codec_of_the_queue(bench: ScheduleBench, codec: str) -> None:
    data = b"\x00\xff" if codec == "bytes" else {"a": [1, None]}
    queue = bench.queue_of("fifo", "other", codec=codec)
    schedule = bench.create(queue="other", data=data)
    bench.pass_after(HOUR_S)
    assert [task.data for task in bench.tasks(queue=queue)] == [data]
    assert schedule.status(bench.db).data == data
    assert schedule.run(bench.db).data == data


# Pauses, changes, runs by hand.


def test_none_takes_back_an_option(bench: ScheduleBench) -> None:
    schedule = bench.create(pri=3, unique="u", scope="queued", delay=5)
    schedule.change(bench.db, unique=None, delay=None)
    assert schedule.status(bench.db).options == {"pri": 3}


@pytest.mark.parametrize("engine", ["memory", "embedded"], indirect=True)
def test_a_change_that_stood_still_begins_when_it_goes_on(
    bench: ScheduleBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the due times that others have fired meanwhile would come again."""
    schedule, clock = bench.create(every=60), bench.clock
    change, stands_s = schedules.change, [3600.0]

    def stand_still_and_change(*given: Any) -> None:
        """The process has looked at its clock."""
        clock.advance(stands_s.pop() if stands_s else 0.0)
        change(*given)

    monkeypatch.setattr(schedules, "change", stand_still_and_change)
    schedule.change(bench.db, every=50)
    due = schedule.status(bench.db).due
    assert due > clock.now()


@pytest.mark.parametrize("engine", ["memory", "embedded"], indirect=True)
@pytest.mark.parametrize("turn", ["resume", "change"])
def test_a_wrong_clock_is_forgotten_after_a_turn(bench: ScheduleBench, turn: str) -> None:
    """A process with a clock that is hours ahead has fired due times."""
    schedule = bench.create(missed="once")
    assert bench.pass_after(5 * HOUR_S) == 1
    bench.clock.advance(-5 * HOUR_S)
    if turn == "resume":
        schedule.pause(bench.db)
        schedule.resume(bench.db)
    else:
        schedule.change(bench.db, every=HOUR_S - 1)
    due = schedule.status(bench.db).due
    assert 0 < due - bench.clock.now() <= HOUR_S


def test_a_change_to_another_queue_encodes_the_data_anew(bench: ScheduleBench) -> None:
    queue = bench.queue_of("fifo", "other", codec="msgpack")
    schedule = bench.create(data=[1, "a"])
    schedule.change(bench.db, queue="other")
    bench.pass_after(HOUR_S)
    assert [task.data for task in bench.tasks(queue=queue)] == [[1, "a"]]


def test_a_change_that_the_other_queue_refuses_changes_nothing(bench: ScheduleBench) -> None:
    bench.queue_of("fifo", "other")
    schedule = bench.create(pri=3)
    before = schedule.status(bench.db)
    with pytest.raises(UnsupportedOption):
        schedule.change(bench.db, queue="other")
    assert schedule.status(bench.db) == before


def test_a_deleted_schedule_leaves_its_tasks_and_no_key(bench: ScheduleBench) -> None:
    schedule = bench.create()
    bench.pass_after(HOUR_S)
    schedule.delete(bench.db)
    assert (bench.pass_after(HOUR_S), len(bench.tasks()), bench.names()) == (0, 1, [])
    assert stored(bench) == 0
    for verb in (schedule.delete, schedule.pause, schedule.resume, schedule.run, schedule.status):
        with pytest.raises(ScheduleNotFound):
            verb(bench.db)


def stored(bench: ScheduleBench) -> int:
    """The number of keys of schedules."""
    ranges = (bench.keys.schedules, bench.keys.schedules_due)
    return sum(len(list(bench.db.get_range(under.start, under.stop))) for under in ranges)


# Creating.


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"every": 0.5}, "every"),
        ({"every": float("inf")}, "every"),
        ({"every": None}, "every"),
        ({"every": 5, "expression": "* * * * *"}, "every"),
        ({"every": 5, "timezone": "Europe/Rome"}, "timezone"),
        ({"expression": "61 * * * *"}, "expression"),
        ({"expression": "* * */20 * 1L"}, "expression"),
        ({"expression": "* * * * *", "timezone": "Nowhere/Else"}, "timezone"),
        ({"missed": "twice"}, "missed"),
        ({"if_exists": "replace"}, "if_exists"),
        ({"headers": {"schedule": "mine"}}, "headers"),
        ({"headers": {"a": "x" * 980}}, "headers"),
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"unique": None, "scope": "queued"}, "unique"),
        ({"unique": "u", "scope": "always"}, "scope"),
        ({"unique": "u", "on_conflict": "drop"}, "on_conflict"),
        ({"unique": "u", "on_conflict": "debounce"}, "debounce_max"),
        ({"ttl": 0}, "ttl"),
        ({"pri": -1}, "pri"),
    ],
)
def test_a_wrong_argument_is_refused(bench: ScheduleBench, options: dict[str, Any], name: str) -> None:
    given = {"name": "nightly", "expression": None, "queue": "reports", "root": bench.root, **options}
    if given["expression"] is None and "every" not in given:
        given["every"] = 60
    with pytest.raises(InvalidArgument) as refused:
        Schedule.create(bench.db, **given)
    assert refused.value.name == name
    assert bench.names() == []


def test_data_that_are_too_large_are_refused(bench: ScheduleBench) -> None:
    with pytest.raises(PayloadTooLarge):
        bench.create(data="x" * limits.SCHEDULE_DATA_BYTES_MAX)


def test_data_that_the_codec_cannot_carry_are_refused(bench: ScheduleBench) -> None:
    with pytest.raises(TypeError):
        bench.create(data={1, 2})


def test_the_queue_must_exist_and_hold_tasks(bench: ScheduleBench) -> None:
    fdbqueue.Queue.named(bench.db, "items", root=bench.root)
    with pytest.raises(QueueNotFound):
        bench.create(queue="missing")
    with pytest.raises(QueueKindMismatch):
        bench.create(queue="items")


def test_huge_numbers_are_stored_as_for_ever(bench: ScheduleBench) -> None:
    bench.create(ttl=10**30, ttr=float("inf"))
    assert bench.pass_after(HOUR_S) == 1


# In transactions.


@pytest.mark.commits_by_hand
def test_all_verbs_work_in_one_transaction(bench: ScheduleBench) -> None:
    # By the database: `run` in a transaction of the binding would start a thread of its own.
    schedule = bench.create("0 0 * * *", data=1)

    def body(tr: Transaction) -> None:
        schedule.pause(tr)
        schedule.resume(tr)
        schedule.change(tr, every=60, data=2)
        schedule.run(tr)
        assert Schedule.open(tr, "nightly", root=bench.root).status(tr).data == 2
        assert len(schedule.next_times(tr)) == 5
        assert [found.name for found in list_schedules(tr, root=bench.root)] == ["nightly"]
        Schedule.create(tr, "gone", every=5, queue="reports", root=bench.root).delete(tr)

    bench.catch_up()
    run(bench.db, body)
    assert bench.names() == ["nightly"]
    assert bench.pass_after(60) == 1
    assert bench.data() == [2, 2]


def test_a_schedule_and_its_queue_come_in_one_transaction(bench: ScheduleBench) -> None:
    def body(tr: Transaction) -> None:
        fdbqueue.TaskQueue.create(tr, "new", root=bench.root)
        Schedule.create(tr, "nightly", every=60, queue="new", root=bench.root)

    bench.catch_up()
    run(bench.db, body)
    assert bench.pass_after(60) == 1


# Errors of one schedule.


def test_a_queue_made_again_with_another_codec_is_an_error(bench: ScheduleBench) -> None:
    other = bench.queue_of("fifo", "other")
    schedule = bench.create(queue="other")
    other.drop(bench.db)
    bench.queue_of("fifo", "other", codec="msgpack")
    assert bench.pass_after(HOUR_S) == 0
    assert "ScheduleUnfit" in str(schedule.status(bench.db).error)
    schedule.change(bench.db, data=5)
    assert bench.pass_after(0) == 1


def test_a_damaged_schedule_stops_no_other(bench: ScheduleBench) -> None:
    bench.create(name="a")
    bench.create(name="b")
    bench.db[bench.keys.schedule("a")] = b"\xc1"
    assert bench.pass_after(HOUR_S) == 1
    damaged, sound = list_schedules(bench.db, root=bench.root)
    assert "ScheduleUnreadable" not in str(sound.error)
    assert "cannot be read" in str(damaged.error)
    Schedule(bench.db, "a", Registry(bench.root)).delete(bench.db)
    assert bench.names() == ["b"]


def test_a_schedule_of_a_newer_release_is_left_to_it(bench: ScheduleBench) -> None:
    bench.create()
    key = bench.keys.schedule("nightly")
    newer = bytes([0x99, VERSION + 1]) + bytes(bench.db[key])[2:] + b"\x01"
    bench.db[key] = newer
    before = bytes(bench.db[bench.keys.schedule_state("nightly")])
    assert bench.pass_after(HOUR_S) == 0
    assert (bytes(bench.db[key]), bytes(bench.db[bench.keys.schedule_state("nightly")])) == (newer, before)


def test_a_damaged_state_begins_anew(bench: ScheduleBench) -> None:
    bench.create()
    bench.db[bench.keys.schedule_state("nightly")] = b"\xc1"
    assert bench.pass_after(HOUR_S) == 1
    assert state_of(bytes(bench.db[bench.keys.schedule_state("nightly")])) is not None
    assert bench.pass_after(HOUR_S) == 1


# Listing.


def test_schedules_are_listed_in_order_page_by_page(bench: ScheduleBench) -> None:
    names = [f"{number:03}" for number in range(limits.SCHEDULES_LISTED_MAX + 3)]
    for name in reversed(names):
        bench.create(name=name)
    first = list_schedules(bench.db, 1_000, root=bench.root)
    assert first.next == names[limits.SCHEDULES_LISTED_MAX - 1]
    second = list_schedules(bench.db, 1_000, after=first.next, root=bench.root)
    assert [found.name for found in (*first, *second)] == names
    assert second.next is None


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_pages_of_any_size_list_each_schedule_once(bench: ScheduleBench, limit: int) -> None:
    names = ["a", "a\x00", "a\x00b", "ab", "b"]
    for name in names:
        bench.create(name=name)
    bench.db.clear(bench.keys.schedule_state("ab"))
    found, after = [], ""
    while True:
        page = list_schedules(bench.db, limit, after=after, root=bench.root)
        found += [(one.name, one.due is not None) for one in page]
        if page.next is None:
            break
        after = page.next
    assert found == [(name, name != "ab") for name in names]


def test_fire_due_of_another_root_fires_nothing_here(bench: ScheduleBench) -> None:
    bench.create()
    bench.clock.advance(HOUR_S)
    assert fire_due(bench.db, root=bench.root["elsewhere"]) == 0


def test_the_thread_of_a_process_fires_what_is_due(url: str) -> None:
    """With a clock that goes on by itself."""
    with fdbqueue.open(url) as db:
        queue = fdbqueue.TaskQueue.create(db, "reports", if_not_exists=True)
        schedule = Schedule.create(db, "tick", every=1, queue="reports", if_exists="change")
        task = queue.take(db, 60)
        schedule.delete(db)
        assert task.headers["schedule"] == "tick"


def test_a_schedule_in_a_transaction_starts_no_thread(bench: ScheduleBench, tmp_path: Path) -> None:
    """Only its `run`, as a put of a queue."""
    with fdbqueue.open(f"embedded:{tmp_path}/raw") as made:
        TaskQueue.create(made, "reports", root=bench.root)
    raw, before = fdbqueue.embedded.open(str(tmp_path / "raw")), set(threading.enumerate())
    tr = raw.create_transaction()
    schedule = Schedule.create(tr, "tick", every=60, queue="reports", root=bench.root)
    for call in (schedule.pause, schedule.resume, schedule.status, schedule.next_times):
        call(tr)
    assert _keepers(before) == []
    assert schedule.run(tr).headers == {"schedule": "tick"}
    assert len(_keepers(before)) == 1
    tr.commit().wait()
    fdbqueue.open(raw).close()  # which ends that thread


def _keepers(before: set[threading.Thread]) -> list[threading.Thread]:
    return [one for one in set(threading.enumerate()) - before if one.name == "fdbqueue-keeper"]
