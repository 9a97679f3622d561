"""Tasks that a redrive puts into another queue."""

from fdb.subspace_impl import Subspace

from fdbqueue import Database, Failure, Limit, TaskQueue
from fdbqueue.core import limits
from fdbqueue.tasks.stored.records import id_bytes
from tests.dead.conftest import Grave


def test_each_task_brings_its_own_failures_behind_one_that_stays(grave: Grave) -> None:
    """The payload of the first one cannot be read."""
    into, db = TaskQueue.create(grave.db, "other", root=grave.root), grave.db
    lost, *ids = [grave.bury("A", f"of {n}", "x" * 1_000) for n in range(3)]
    under = grave.queue._shape.keys.payloads_of(id_bytes(lost))
    db.clear_range(under.start, under.stop)
    grave.letters.begin_redrive(db, into="other", rate_per_s=1e6)
    assert grave.letters.run_redrive(db).moved == len(ids)
    told: list[list[str]] = []
    while (task := into.take(db, 0)) is not None:
        told.append([failure.message for failure in into.failures(db, task)])
        into.bury(db, task, failure=Failure("B"))
    assert told == [["of 1"], ["of 2"]]
    assert grave.listed() == [lost]


def test_a_task_names_no_limit_that_the_other_queue_lacks(db: Database, space: Subspace) -> None:
    for name in ("api", "tenant"):
        Limit.set(db, name, slots=1, per_key=name == "tenant", root=space)
    grave = Grave(db, space, task_limits=["api", "tenant"])
    into = TaskQueue.create(db, "other", root=space, task_limits=["api"])
    grave.bury(limits={"api": None, "tenant": "a"})
    grave.letters.begin_redrive(db, into="other", rate_per_s=1e6)
    assert grave.letters.run_redrive(db).moved == 1
    task = into.take(db, 0)
    assert task is not None
    assert dict(task.limits) == {"api": None}


def test_a_step_into_a_full_queue_tells_when_to_look_again(grave: Grave) -> None:
    TaskQueue.create(grave.db, "other", "limfifottl", capacity=1, root=grave.root).put(grave.db, 1)
    grave.bury()
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=1e6)
    step = grave.letters.step_redrive(grave.db)
    assert (step.is_full, step.wait_s) == (True, limits.REDRIVE_LOOK_S)
