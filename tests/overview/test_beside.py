"""An overview tells limits, schedules and groups beside the queues, with no round trip more."""

from collections.abc import Iterator
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Group, Limit, Overview, Schedule, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips, trips_of


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def still(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def limit_of(db: Database, name: str, **options: Any) -> Any:
    return next((one for one in Overview(**options).figures(db).limits if one.name == name), None)


def test_a_limit_of_slots_tells_its_use_and_the_tasks_that_wait(db: Database, space: Subspace) -> None:
    Limit.set(db, "api", slots=2, root=space)
    for name in ("orders", "refunds"):
        queue = TaskQueue.create(db, name, limits=["api"], root=space)
        queue.put_many(db, range(3))
    queue.take(db, 0)
    found = limit_of(db, "api", root=space)
    assert (found.slots, found.used, found.free, found.waiting) == (2, 1, 1, 0)
    assert found.queues == ("orders", "refunds")
    queue.take(db, 0)
    found = limit_of(db, "api", root=space)
    assert (found.used, found.free, found.waiting) == (2, 0, 4)


def test_tasks_that_may_name_a_limit_do_not_all_wait_for_it(db: Database, space: Subspace) -> None:
    Limit.set(db, "api", slots=1, root=space)
    queue = TaskQueue.create(db, "orders", task_limits=["api"], root=space)
    queue.put_many(db, range(3))
    queue.put_many(db, range(2), limits=["api"])
    queue.take_many(db, 9)
    found = limit_of(db, "api", root=space)
    assert (found.used, found.free, found.waiting) == (1, 0, 0)
    assert found.queues == ("orders",)


def test_a_limit_of_starts_tells_its_tokens(still: Database, clock: StillClock) -> None:
    Limit.set(still, "mails", rate=60, per=60, burst=2)
    queue = TaskQueue.create(still, "q", limits=["mails"])
    queue.put_many(still, range(5))
    found = limit_of(still, "mails")
    assert (found.rate, found.per_s, found.burst, found.free) == (60, 60.0, 2, 2)
    queue.take_many(still, 2)
    found = limit_of(still, "mails")
    assert (found.free, found.waiting, found.next) == (0, 3, pytest.approx(clock.now() + 1))


def test_a_limit_of_slots_and_a_rate_tells_both(still: Database, clock: StillClock) -> None:
    Limit.set(still, "host", slots=3, rate=1, per=10, burst=2)
    queue = TaskQueue.create(still, "q", limits=["host"])
    queue.put_many(still, range(5))
    first, _ = queue.take_many(still, 5)
    queue.ack(still, first)
    found = limit_of(still, "host")
    assert (found.slots, found.used, found.rate, found.tokens) == (3, 1, 1, 0)
    assert (found.free, found.waiting, found.next) == (0, 3, pytest.approx(clock.now() + 10))


def test_a_missing_limit_is_told_if_a_queue_names_it(db: Database, space: Subspace) -> None:
    for name in ("api", "unused"):
        Limit.set(db, name, slots=1, root=space)
    TaskQueue.create(db, "orders", limits=["api"], root=space)
    for name in ("api", "unused"):
        Limit.delete(db, name, root=space)
    [found] = Overview(root=space).figures(db).limits
    assert (found.name, found.free, found.queues, found.waiting) == ("api", None, ("orders",), 0)


def test_a_missing_limit_of_tasks_is_told(db: Database, space: Subspace) -> None:
    Limit.set(db, "gone", slots=1, root=space)
    TaskQueue.create(db, "mixed", task_limits=["gone"], root=space)
    Limit.delete(db, "gone", root=space)
    found = limit_of(db, "gone", root=space)
    assert (found.free, found.queues) == (None, ("mixed",))


def test_schedules_tell_due_times_and_errors(still: Database, clock: StillClock) -> None:
    TaskQueue.create(still, "q")
    began = clock.now()
    for name in ("a", "b", "c"):
        Schedule.create(still, name, every=10, queue="q", paused=name == "b")
    clock.advance(13)
    a, b, c = Overview().figures(still).schedules
    assert (a.name, a.queue, a.due, a.late_s) == ("a", "q", began + 10, 3.0)
    assert (b.paused, b.due, b.late_s) == (True, None, 0.0)
    assert (c.error, c.fired) == (None, 0)
    keys = RootKeys(DEFAULT_ROOT)
    still[keys.schedule("c")] = b"damaged"
    del still[keys.schedule_state("a")]
    a, _, c = Overview().figures(still).schedules
    assert (a.due, a.late_s) == (None, 0.0)
    assert "'c'" in (c.error or "")


def test_a_schedule_is_not_late_before_its_due_time(still: Database) -> None:
    TaskQueue.create(still, "q")
    Schedule.create(still, "a", every=10, queue="q")
    [found] = Overview().figures(still).schedules
    assert found.late_s == 0.0


def test_groups_tell_those_that_burials_hold(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", root=space)
    groups = [Group.create(db, wait_for_buried=holds, root=space) for holds in (True, True, False)]
    for group in groups[1:]:
        group.put_many(db, queue, list("ab"))
        queue.bury(db, queue.take_many(db, 2)[0])
    found = Overview(root=space).figures(db).groups
    assert (found.unfinished, found.held, found.is_whole) == (3, 1, True)
    assert [(one.id, one.buried) for one in found.first_held] == [(groups[1].id, 1)]
    groups[0].close(db)
    assert groups[0].wait(db, 60).ended is not None
    assert Overview(root=space).figures(db).groups.unfinished == 2


def test_too_many_rows_are_told_as_such(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    TaskQueue.create(db, "q", root=space)
    for number in range(4):
        Limit.set(db, f"l{number}", slots=1, root=space)
        Schedule.create(db, f"s{number}", every=10, queue="q", root=space)
        Group.create(db, root=space)
    found = Overview(root=space).figures(db)
    assert (len(found.limits), len(found.schedules), found.groups.unfinished) == (4, 4, 4)
    assert (found.is_whole, found.groups.is_whole) == (True, True)
    for name in ("FIGURES_LIMITS", "FIGURES_SCHEDULES", "FIGURES_GROUP_ROWS"):
        monkeypatch.setattr(limits, name, 3)
    found = Overview(root=space).figures(db)
    assert (len(found.limits), len(found.schedules), found.groups.unfinished) == (3, 3, 3)
    assert (found.is_whole, found.groups.is_whole) == (False, False)


def test_a_named_overview_tells_those_of_its_queues(db: Database, space: Subspace) -> None:
    for name in ("a", "b"):
        Limit.set(db, name, slots=1, root=space)
        TaskQueue.create(db, name, limits=[name], root=space)
        Schedule.create(db, name, every=10, queue=name, root=space)
    Group.create(db, root=space)
    found = Overview("b", root=space).figures(db)
    assert [one.name for one in (*found.limits, *found.schedules)] == ["b", "b"]
    assert found.groups.unfinished == 0
    only = Overview(queues_only=True, root=space).figures(db)
    assert (only.limits, only.schedules, only.groups.unfinished, len(only.queues)) == ((), (), 0, 2)


def test_a_look_beside_the_queues_costs_no_round_trip_more(clock: StillClock) -> None:
    with fdbqueue.open("memory:", runtime=clock) as inner:
        engine = Trips(inner.engine)
        db, overview = Database(engine, clock), Overview()  # type: ignore[arg-type]
        for number in range(3):
            Limit.set(db, f"l{number}", slots=1, rate=1, per=1)
            TaskQueue.create(db, f"q{number}", limits=[f"l{number}"])
            Schedule.create(db, f"s{number}", every=10, queue="q0")
            Group.create(db)
        assert [trips_of(engine, db, overview.figures)[0] for _ in range(3)] == [2, 1, 1]
        Limit.set(db, "l9", slots=1)
        assert [trips_of(engine, db, overview.figures)[0] for _ in range(2)] == [2, 1]


def test_the_oldest_of_the_held_groups_are_told(still: Database, clock: StillClock) -> None:
    queue, groups = TaskQueue.create(still, "q"), list[Group]()
    for _ in range(limits.HELD_GROUPS_TOLD + 3):
        groups.append(Group.create(still, wait_for_buried=True))
        groups[-1].put(still, queue, "x")
        queue.bury(still, queue.take(still, 0))
        clock.advance(1)
    found = Overview().figures(still).groups
    assert found.held == len(groups)
    oldest = groups[: limits.HELD_GROUPS_TOLD]
    assert [one.id for one in found.first_held] == [group.id for group in oldest]


def test_a_limit_of_each_key_tells_the_room_of_an_unused_key(db: Database, space: Subspace) -> None:
    """Tasks without a key use slots of their own."""
    Limit.set(db, "tenant", slots=2, per_key=True, root=space)
    queue = TaskQueue.create(db, "q", task_limits=["tenant"], root=space)
    queue.put(db, 1, limits=["tenant"])
    queue.take(db, 0)
    found = limit_of(db, "tenant", root=space)
    assert (found.free, found.used, found.next) == (2, 1, None)
