"""Two releases of one layout share a queue while their processes are killed: nothing is lost or dropped."""

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys, record_of
from tests.conftest import DURABLE
from tests.releases.mixed import (
    COUNT,
    NEWER,
    marks_of_acks,
    marks_of_puts,
    put_as_a_newer_release,
    root_of,
    seen,
    work_as_the_present_release,
)
from tests.spawned import crew

KILLS = 2


def numbers(db: Database, under: Subspace) -> set[int]:
    return {under.unpack(row.key)[0] for row in db.get_range_startswith(under.key())}


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_appended_parts_outlive_processes_that_do_not_know_them(
    url: str, db: Database, space: Subspace
) -> None:
    queue = TaskQueue.create(db, "q", "utubettl", root=root_of(space))
    with crew() as processes:
        for worker in range(2):
            processes.spawn(put_as_a_newer_release, url, space.key().hex(), worker, 2)
            processes.spawn(work_as_the_present_release, url, space.key().hex())
        processes.kill_throughout(KILLS, lambda: seen(db, queue) / COUNT)
        assert set(processes.finish()) == {0}
        assert processes.killed > 0
    assert numbers(db, marks_of_puts(space)) == set(range(COUNT))
    assert numbers(db, marks_of_acks(space)) == set(range(0, COUNT, 2))
    assert queue.statistics(db)["tasks"]["done"] == COUNT // 2
    keys = TaskKeys(queue.contents)
    left = [record_of(row.value) for row in db.get_range(keys.tasks.start, keys.tasks.stop)]
    assert len(left) == COUNT - COUNT // 2
    assert {record.extra and record.extra.more for record in left} == {NEWER}
    assert fdbqueue.verify(db, root=root_of(space)).sound
