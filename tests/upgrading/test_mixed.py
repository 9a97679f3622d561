"""Two releases of one layout share a queue while their processes are killed: nothing is lost or dropped."""

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.records.keys import TaskKeys, record_of
from tests.spawned import crew
from tests.upgrading.mixed import (
    COUNT,
    DONE,
    NEWER,
    PUT,
    put_as_a_newer_release,
    seen,
    work_as_the_present_release,
)

KILLS = 2


def numbers(db: fdbqueue.Database, under: Subspace) -> set[int]:
    return {under.unpack(row.key)[0] for row in db.get_range(under.range().start, under.range().stop)}


def test_appended_parts_outlive_processes_that_do_not_know_them(tmp_path: object) -> None:
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db, crew() as processes:
        queue = TaskQueue.create(db, "q", "utubettl")
        for worker in range(2):
            processes.spawn(put_as_a_newer_release, url, worker, 2)
            processes.spawn(work_as_the_present_release, url)
        processes.kill_throughout(KILLS, lambda: seen(db) / COUNT)
        assert set(processes.finish()) == {0}
        assert processes.killed > 0
        assert numbers(db, PUT) == set(range(COUNT))
        assert numbers(db, DONE) == set(range(0, COUNT, 2))
        assert queue.statistics(db)["tasks"]["done"] == COUNT // 2
        keys = TaskKeys(queue.contents)
        left = [record_of(row.value) for row in db.get_range(keys.tasks.start, keys.tasks.stop)]
        assert len(left) == COUNT - COUNT // 2
        assert {record.extra and record.extra.more for record in left} == {NEWER}
        assert fdbqueue.verify(db).sound
