"""Workers and repartitions die by SIGKILL: each task key stays in order, and each task is acked once."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import RepartitionUnderWay, Session, TaskQueue, transactional
from fdbqueue.core.errors import NotTaken, UnknownSession
from tests.conftest import DURABLE
from tests.spawned import crew

NAME, KEYS = "partitioned", 12


def _root(prefix: str) -> Subspace:
    return Subspace((), bytes.fromhex(prefix))


def produce(url: str, prefix: str, count: int) -> None:
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, NAME, root=_root(prefix))
        for number in range(count):
            queue.put(db, number // KEYS, key=number % KEYS)


def repartition(url: str, prefix: str, expected: int) -> None:
    """Change the number of partitions until `expected` tasks are done."""
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, NAME, root=_root(prefix))
        while queue.statistics(db)["tasks"]["done"] < expected:
            try:
                queue.repartition(db, random.randrange(1, 9))
            except RepartitionUnderWay:
                db.runtime.sleep(0.05)


def consume(url: str, prefix: str, expected: int) -> None:
    """Work until `expected` tasks are done."""
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, NAME, root=_root(prefix))
        while queue.statistics(db)["tasks"]["done"] < expected:
            try:
                with Session(db, ttr=1.5, root=_root(prefix)) as session:
                    _consume(db, queue, session, _root(prefix)["effects"])
            except UnknownSession:
                pass  # taken for dead, on a machine that is busy


def _consume(db: fdbqueue.Database, queue: TaskQueue, session: Session, effects: Subspace) -> None:
    @transactional
    def finish(tr: Any, task: fdbqueue.Task) -> None:
        queue.ack(tr, task, session=session)
        key = effects[task.key].key()
        before = int.from_bytes(tr[key].value or b"", "big")
        # The number of tasks of this key that are done: also that of the next one.
        tr[key] = (before + 1 if before == task.data else 10**9).to_bytes(8, "big")

    while (task := queue.take(db, 0.5, session=session)) is not None:
        try:
            if random.random() < 0.05:
                queue.release(db, task)
            else:
                finish(db, task)
        except NotTaken:
            pass  # another session has it


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_killed_repartitions_keep_each_key_in_order(
    url: str, db: fdbqueue.Database, space: Subspace, rounds: Callable[[object, object], tuple[int, int, int]]
) -> None:
    each, size, kills = rounds((25, 3, 6), (1_000, 8, 80))
    queue, prefix = TaskQueue.create(db, NAME, "utube", root=space), space.key().hex()
    with crew() as producer, crew() as workers:
        producer.spawn(produce, url, prefix, each * KEYS)
        for work in (*[consume] * size, repartition):
            workers.spawn(work, url, prefix, each * KEYS)
        workers.kill_throughout(kills, lambda: queue.statistics(db)["calls"]["ack"] / (each * KEYS))
        assert producer.finish() == [0]
        assert workers.finish() == [0] * (size + 1)
    done = [
        int.from_bytes(bytes(row.value), "big") for row in db.get_range_startswith(space["effects"].key())
    ]
    assert done == [each] * KEYS
    assert queue.statistics(db)["tasks"]["total"] == 0
    assert fdbqueue.verify(db, queue).findings == ()
