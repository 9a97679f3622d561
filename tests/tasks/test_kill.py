"""Workers, repartitions and waiters die by SIGKILL: each task is acked once, in order, and without delay."""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Queue, RepartitionUnderWay, Session, TaskQueue, transactional
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.seam import Transaction
from tests.conftest import DURABLE
from tests.spawned import crew
from tests.support import wait_until
from tests.tasks.workers import NAME, consume, hold_and_wait, produce, wait_for_item

pytestmark = pytest.mark.in_turn(4)

KEYS = 12

on_both = pytest.mark.parametrize("engine", DURABLE, indirect=True)


@on_both
def test_killed_workers_lose_nothing_and_double_nothing(
    url: str, db: fdbqueue.Database, space: Subspace, rounds: Callable[[object, object], tuple[int, int, int]]
) -> None:
    tasks, size, kills = rounds((600, 4, 8), (20_000, 16, 120))
    queue = TaskQueue.create(db, NAME, "fifottl", ttr=20, root=space)
    with crew() as producer, crew() as workers:
        producer.spawn(produce, url, space.key().hex(), tasks)
        for _ in range(size):
            workers.spawn(consume, url, space.key().hex(), tasks)
        workers.kill_throughout(kills, lambda: queue.statistics(db)["calls"]["ack"] / tasks)
        assert producer.finish() == [0]
        assert workers.finish() == [0] * size
    assert workers.killed >= 5
    effects = Counter(bytes(row.value)[0] for row in db.get_range_startswith(space["effects"].key()))
    assert effects == {1: tasks}
    found = queue.statistics(db)
    calls = found["calls"]
    states = ("ready", "taken", "buried", "delayed", "due", "unreadable", "cancelled", "total")
    nothing = dict.fromkeys(states, 0)
    assert found["tasks"] == {**nothing, "done": tasks}
    assert (calls["put"], calls["ack"]) == (tasks, tasks)
    # Whatever was taken and not acked, came back in one of these ways. So did tasks on their way to a killed
    # worker, which did not receive them: their takes do not count.
    assert calls["take"] <= tasks + calls["release"] + calls["ttr"] + calls["bury"]
    assert calls["bury"] == calls["kick"]


def _root(prefix: str) -> Subspace:
    return Subspace((), bytes.fromhex(prefix))


def produce_keys(url: str, prefix: str, count: int) -> None:
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


def consume_keys(url: str, prefix: str, expected: int) -> None:
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


@on_both
def test_killed_repartitions_keep_each_key_in_order(
    url: str, db: fdbqueue.Database, space: Subspace, rounds: Callable[[object, object], tuple[int, int, int]]
) -> None:
    each, size, kills = rounds((25, 3, 6), (1_000, 8, 80))
    queue, prefix = TaskQueue.create(db, NAME, "utube", root=space), space.key().hex()
    with crew() as producer, crew() as workers:
        producer.spawn(produce_keys, url, prefix, each * KEYS)
        for work in (*[consume_keys] * size, repartition):
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


SOON_S = 6.0
"""Seconds on a busy machine; the kernel needs none, signs of life 3. It took 10 to 18 s."""
TTR_S = {"embedded": 100.0, "fdb": 2.0}
"""A directory tells who is gone; on a cluster a lost task comes back with its ttr."""
WAIT_S = 60.0


@contextmanager
def killed_waiter(db: fdbqueue.Database, line: LineKeys, work: object, *arguments: object) -> Iterator[None]:
    """A process that does `work`, and is killed as soon as its request is in the line."""
    with crew() as workers:
        workers.spawn(work, *arguments)  # type: ignore[arg-type]
        wait_until(lambda: requests_in(db, line) == 1, 60)
        workers.end()
        yield


def requests_in(db: fdbqueue.Database, line: LineKeys) -> int:
    @fdbqueue.transactional
    def count(tr: Transaction) -> int:
        return len(tr.get_range(line.requests.start, line.requests.stop).to_list())

    return count(db)


@on_both
def test_tasks_pass_a_killed_worker_by(engine: str, url: str, db: fdbqueue.Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, NAME, "fifottl", ttr=TTR_S[engine], root=space)
    queue.put(db, "lost")
    line = LineKeys(queue._shape.keys.line)
    with killed_waiter(db, line, hold_and_wait, url, space.key().hex()):
        died = time.monotonic()
        assert queue.take(db, WAIT_S).data == "lost"
        assert time.monotonic() - died < SOON_S


@on_both
@pytest.mark.parametrize("of", ["tasks", "items"])
def test_a_new_value_passes_a_killed_process_by(
    url: str, db: fdbqueue.Database, space: Subspace, of: str
) -> None:
    tasks, items = TaskQueue.create(db, NAME, "fifottl", root=space), Queue(space["items"])
    keys, work = (
        (tasks._shape.keys.line, hold_and_wait) if of == "tasks" else (items._recipe.keys.line, wait_for_item)
    )
    with killed_waiter(db, LineKeys(keys), work, url, space.key().hex()):
        tasks.put(db, "new") if of == "tasks" else items.enqueue(db, "new")
        put = time.monotonic()
        found = tasks.take(db, WAIT_S).data if of == "tasks" else items.dequeue(db, timeout=WAIT_S)
        assert found == "new"
        assert time.monotonic() - put < SOON_S


@pytest.mark.parametrize("engine", ["embedded"], indirect=True)
def test_a_call_that_waits_sees_the_death_of_the_one_before(
    url: str, db: fdbqueue.Database, space: Subspace
) -> None:
    """Nothing wakes it but the kernel: the dead process had the place of the one that is woken."""
    queue = Queue(space["items"])
    line = LineKeys(queue._recipe.keys.line)
    got: list[float] = []
    with crew() as workers:
        workers.spawn(wait_for_item, url, space.key().hex())
        wait_until(lambda: requests_in(db, line) == 1, 60)
        waiter = db.runtime.spawn(lambda: got.append(queue.dequeue(db, timeout=WAIT_S)), "waits")
        wait_until(lambda: requests_in(db, line) == 2, 60)
        workers.end()
        wait_until(lambda: requests_in(db, line) == 1, SOON_S)
        queue.enqueue(db, "new")
        waiter.join(SOON_S)
    assert got == ["new"]
