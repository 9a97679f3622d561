"""Tasks that a redrive puts into another queue."""

from fdbqueue import Failure, TaskQueue
from fdbqueue.records.keys import id_bytes
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
