"""The checks of limits and groups: missing limits, slots of dead sessions, groups that burials hold."""

from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue import Check, Database, Group, Limit, Session, Severity, TaskQueue, diagnose
from fdbqueue.core import limits
from tests.tasks.support import StillClock


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def still(clock: StillClock) -> Iterator[Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def told(db: Database, name: str) -> list[Check]:
    return [one for one in diagnose(db, watch_s=0).checks if one.name == name]


def test_sound_limits_are_counted(still: Database) -> None:
    assert told(still, "limits") == []
    Limit.set(still, "api", slots=1)
    queue = TaskQueue.create(still, "q", ttr=600, kind="fifottl", limits=["api"])
    queue.put_many(still, list("ab"))
    queue.take(still, 0)  # full, with a holder that lives
    assert [(one.severity, one.text) for one in told(still, "limits")] == [(Severity.FINE, "1 limit")]


def test_a_missing_limit_that_queues_name_is_told(still: Database) -> None:
    Limit.set(still, "api", slots=1)
    for name in ("orders", "refunds"):
        TaskQueue.create(still, name, limits=["api"])
    Limit.delete(still, "api")
    [found] = told(still, "limits")
    assert found.severity == Severity.WARNING
    assert found.text == "the limit api does not exist, so tasks of orders and 1 more queue run without it"
    assert found.cure == "fdbqueue limit set api --slots N"


def test_slots_of_dead_sessions_are_told(still: Database, clock: StillClock) -> None:
    Limit.set(still, "api", slots=1)
    queue = TaskQueue.create(still, "orders", "fifottl", ttr=600, limits=["api"])
    queue.put_many(still, list("abc"))
    assert queue.take(still, 0, session=Session(still, ttr=5)) is not None
    clock.advance(60)
    [found] = told(still, "limits")
    assert found.severity == Severity.WARNING
    assert "no free slot, and 1 of its first 1 holders are tasks of dead sessions" in found.text
    assert (found.data["dead"], found.data["waiting"]) == (1, 2)


@pytest.mark.parametrize(("slots", "severity"), [(1, Severity.WARNING), (2, Severity.FINE)])
def test_a_limit_without_a_token_and_with_a_slot_is_fine(
    still: Database, clock: StillClock, slots: int, severity: Severity
) -> None:
    Limit.set(still, "host", slots=slots, rate=1, per=600, per_key=True)
    queue = TaskQueue.create(still, "orders", "fifottl", ttr=600, task_limits=["host"])
    queue.put(still, "x", limits={"host": "a"})
    assert queue.take(still, 0, session=Session(still, ttr=5)) is not None
    clock.advance(60)
    assert [one.severity for one in told(still, "limits")] == [severity]


def test_slots_of_a_key_that_dead_sessions_hold_are_told(still: Database, clock: StillClock) -> None:
    """A key with a free slot is left out, and so is one whose tasks run."""
    Limit.set(still, "tenant", slots=2, per_key=True)
    queue = TaskQueue.create(still, "orders", "fifottl", ttr=600, task_limits=["tenant"])
    dead, alive = Session(still, ttr=5), Session(still, ttr=600)
    for key, session, tasks in (("acme", dead, 2), ("brown", dead, 1), ("crow", alive, 2)):
        for _ in range(tasks):
            queue.put(still, "x", limits={"tenant": key})
            assert queue.take(still, 0, session=session) is not None
    clock.advance(60)
    [found] = told(still, "limits")
    assert found.severity == Severity.WARNING
    assert found.text == (
        "the key 'acme' of the limit tenant has no free slot, and 2 of its first 2 holders are tasks of dead"
        " sessions, such as one of orders"
    )
    assert found.data["dead"] == 2


def test_slots_of_dead_tasks_without_a_key_are_told(still: Database, clock: StillClock) -> None:
    Limit.set(still, "tenant", slots=1, per_key=True)
    queue = TaskQueue.create(still, "orders", "fifottl", ttr=600, task_limits=["tenant"])
    queue.put(still, "x", limits=["tenant"])
    assert queue.take(still, 0, session=Session(still, ttr=5)) is not None
    clock.advance(60)
    [found] = told(still, "limits")
    assert found.severity == Severity.WARNING
    assert found.text == (
        "the limit tenant, of tasks that name it without a key, has no free slot, and 1 of its first 1"
        " holders are tasks of dead sessions, such as one of orders"
    )


def test_a_free_slot_of_tasks_without_a_key_is_no_trouble(still: Database, clock: StillClock) -> None:
    """Though a dead session holds the other one."""
    Limit.set(still, "tenant", slots=2, per_key=True)
    queue = TaskQueue.create(still, "orders", "fifottl", ttr=600, task_limits=["tenant"])
    queue.put(still, "x", limits=["tenant"])
    assert queue.take(still, 0, session=Session(still, ttr=5)) is not None
    clock.advance(60)
    assert [one.severity for one in told(still, "limits")] == [Severity.FINE]


def test_a_session_has_time_to_be_ended_before_it_is_told(still: Database, clock: StillClock) -> None:
    Limit.set(still, "api", slots=1)
    queue = TaskQueue.create(still, "orders", "fifottl", ttr=600, limits=["api"])
    queue.put(still, "x")
    assert queue.take(still, 0, session=Session(still, ttr=5)) is not None
    clock.advance(5 + limits.OVERDUE_WARNING_S - 1)
    assert [one.severity for one in told(still, "limits")] == [Severity.FINE]
    clock.advance(2)
    assert [one.severity for one in told(still, "limits")] == [Severity.WARNING]


def test_a_group_that_burials_hold_is_told(still: Database) -> None:
    assert told(still, "groups") == []
    queue, group = TaskQueue.create(still, "q"), Group.create(still)
    group.put_many(still, queue, list("ab"))
    assert [(one.severity, one.text) for one in told(still, "groups")] == [
        (Severity.FINE, "1 unfinished group")
    ]
    task = queue.take(still, 0)
    assert task is not None
    queue.bury(still, task)
    [found] = told(still, "groups")
    assert found.severity == Severity.WARNING
    assert (
        found.text == f"1 group is held by buried members, such as {group.id} by 1 of them: it does not end"
    )
    assert found.cure == f"fdbqueue group show {group.id}"
