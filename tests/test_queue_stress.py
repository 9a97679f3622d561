"""Many processes and many threads at one queue: nothing lost, nothing twice, and in order on average."""

import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue
from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.queues.recipe.items import QueueKeys
from tests.conftest import CLUSTER_FILE, ENGINES, TEST_ROOT
from tests.queue_support import in_threads
from tests.queue_workers import (
    DONE,
    numbers_in,
    put_and_take,
    queue_in,
    take_into_file,
    take_into_transaction,
)

SPAWN = multiprocessing.get_context("spawn")
RAM_DISK = Path("/dev/shm")
Rounds = Callable[[int, int], int]


@pytest.fixture(params=[engine for engine in ENGINES if engine != "memory"])
def shared_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database that several processes open; in memory where possible: these tests are not about fsync."""
    if request.param == "fdb":
        yield f"fdb:{CLUSTER_FILE}"
        return
    directory = tempfile.mkdtemp(dir=RAM_DISK if RAM_DISK.is_dir() else None)
    yield f"embedded:{directory}"
    shutil.rmtree(directory)


@pytest.fixture
def shared_space(shared_url: str) -> Iterator[Subspace]:
    space = TEST_ROOT[os.urandom(8)]
    yield space
    with fdbqueue.open(shared_url) as db:
        db.clear_range_startswith(space.key())


def test_eight_processes(shared_url: str, shared_space: Subspace, rounds: Rounds) -> None:
    items, answers = rounds(300, 1000), SPAWN.Queue()
    workers = [
        SPAWN.Process(target=put_and_take, args=(shared_url, shared_space.key(), number, items, answers))
        for number in range(8)
    ]
    for worker in workers:
        worker.start()
    taken = [value for _ in workers for value in answers.get(timeout=300)]
    for worker in workers:
        worker.join()
    assert Counter(taken) == Counter(range(8 * items))


class Consumers:
    """Consumer processes that are killed one after another, and replaced."""

    def __init__(self, start: Callable[[], Any], count: int) -> None:
        self._start = start
        self._running = [start() for _ in range(count)]
        self.kills = 0

    def kill_one(self) -> None:
        victim = self._running.pop(random.randrange(len(self._running)))
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        self.kills += 1
        self._running.append(self._start())

    def stop(self) -> None:
        for process in self._running:
            os.kill(process.pid, signal.SIGKILL)
            process.join()


def start_process(target: Callable[..., None], *args: Any) -> Any:
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def feed_and_kill(
    db: Database, queue: Queue, consumers: Consumers, items: int, kills: int, done: Callable[[], int]
) -> None:
    """Put the items in portions, kill a consumer in the middle of each; return when all are `done`."""
    portion = items // kills
    for begin in range(0, items, portion):
        queue.enqueue_many(db, range(begin, begin + portion))
        until_still(db, lambda begin=begin: done() >= begin + portion // 3)
        consumers.kill_one()
    until_still(db, lambda: done() >= items)
    consumers.stop()


def until_still(db: Database, enough: Callable[[], bool]) -> None:
    """Until it is enough, or it has not been for longer than anything takes to come back from the dead."""
    until = time.monotonic() + limits.REQUEST_DEADLINE_S * 2
    while not enough() and time.monotonic() < until:
        db.runtime.sleep(0.002)


def test_consumers_that_are_killed_in_their_transactions(
    shared_url: str, shared_space: Subspace, rounds: Rounds
) -> None:
    items, kills = rounds(600, 8000), rounds(4, 40)
    noted = shared_space.range((DONE,))
    with fdbqueue.open(shared_url) as db:
        start = lambda: start_process(take_into_transaction, shared_url, shared_space.key())  # noqa: E731
        consumers = Consumers(start, 4)
        feed_and_kill(
            db,
            queue_in(shared_space),
            consumers,
            items,
            kills,
            lambda: len(list(db.get_range(noted.start, noted.stop))),
        )
        notes = list(db.get_range(noted.start, noted.stop))
        assert [shared_space.unpack(note.key)[1] for note in notes] == list(range(items))
        assert {int.from_bytes(note.value, "little") for note in notes} == {1}
        assert queue_in(shared_space).size(db) == 0


@pytest.mark.parametrize("wait", [False, True], ids=["poll", "wait"])
def test_consumers_that_are_killed_anywhere(
    shared_url: str, shared_space: Subspace, rounds: Rounds, tmp_path: Path, wait: bool
) -> None:
    """An item is missing only if its taker was killed between its commit and its note of it."""
    items, kills = rounds(1000, 8000), rounds(5, 40)
    path = tmp_path / "taken"
    with fdbqueue.open(shared_url) as db:
        start = lambda: start_process(take_into_file, shared_url, shared_space.key(), str(path), wait)  # noqa: E731
        consumers = Consumers(start, 4)
        feed_and_kill(
            db, queue_in(shared_space), consumers, items, kills, lambda: len(numbers_in(path)) + kills
        )
        taken, left = numbers_in(path), drain(db, queue_in(shared_space), shared_space)
    assert max(Counter(taken + left).values()) == 1
    assert len(set(range(items)) - set(taken) - set(left)) <= consumers.kills + 4


def drain(db: Database, queue: Queue, space: Subspace) -> list[Any]:
    """Everything, including the results of dead requests."""
    found: list[Any] = []
    due = LineKeys(QueueKeys(space[0]).line).due
    while not queue.empty(db) or list(db.get_range(due.start, due.stop)):
        found.append(queue.dequeue(db, timeout=1))
    return [value for value in found if value is not None]


@pytest.mark.parametrize("contended", ["staged", "simple"])
def test_threads_of_one_process(db: Database, space: Subspace, rounds: Rounds, contended: str) -> None:
    queue, items, threads = queue_in(space, contended), rounds(40, 500), 16
    taken: list[Any] = []

    def work(number: int) -> None:
        for item in range(items):
            queue.enqueue(db, number * items + item)
            taken.append(queue.dequeue(db, timeout=20))

    in_threads(threads, work)
    assert Counter(taken) == Counter(range(threads * items))
    assert queue.size(db) == 0


def test_many_consumers_overtake_each_other_only_a_little(
    db: Database, space: Subspace, rounds: Rounds
) -> None:
    """No item is left behind by more later ones than there are consumers and enqueuers."""
    queue, items, consumers = queue_in(space), rounds(200, 5000), 8
    calls: list[tuple[int, float, float]] = []

    def consume(_: int) -> None:
        client = Database(db.engine, db.runtime)  # of its own, so that nothing combines
        while True:
            began = time.monotonic()
            value = queue.dequeue(client, timeout=1)
            if value is None:
                return
            calls.append((value, began, time.monotonic()))

    putter = threading.Thread(target=lambda: [queue.enqueue(db, number) for number in range(items)])
    putter.start()
    in_threads(consumers, consume)
    putter.join()
    assert sorted(value for value, _, _ in calls) == list(range(items))
    assert max(overtakers(calls)) <= consumers + 1


def overtakers(calls: list[tuple[int, float, float]]) -> Iterator[int]:
    """For each item: how many later ones had been handed out before its own call even began."""
    for value, began, _ in calls:
        yield sum(1 for other, _, ended in calls if other > value and ended < began)
