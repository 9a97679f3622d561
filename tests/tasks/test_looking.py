"""Looking at many large tasks or items: no transaction reads more than it may, and the list is whole."""

from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, FairQueue, TaskQueue, limits
from fdbqueue.database import run
from fdbqueue.errors import TooMuchForOneTransaction
from fdbqueue.tasks import tasks_of

COUNT = 10
LARGE_BYTES = 400
SIZES_BYTES = [LARGE_BYTES] * 7 + [3 * LARGE_BYTES] + [LARGE_BYTES] * 2
"""Of their payloads: one alone is more than a transaction may read."""
PAGES = [2, 2, 2, 1, 1, 2]


class Reads:
    """The sizes of the payloads that each transaction reads, and what happens during the second one."""

    def __init__(self) -> None:
        self.sizes_bytes: list[list[int]] = []
        self.meanwhile: Callable[[], Any] = lambda: None
        self._last: Any = None

    def note(self, tr: Any, size_bytes: int) -> None:
        if tr is not self._last:
            self._last = tr
            self.sizes_bytes.append([])
            if len(self.sizes_bytes) == 2:
                self.meanwhile()
        self.sizes_bytes[-1].append(size_bytes)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    found, ask = Reads(), tasks_of.ask_payload

    def noting(tr: Any, keys: Any, record: Any) -> Any:
        found.note(tr, record.size_bytes)
        return ask(tr, keys, record)

    monkeypatch.setattr(tasks_of, "ask_payload", noting)
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 2 * LARGE_BYTES)
    return found


def payload(number: int) -> str:
    """Its JSON has two bytes more."""
    return f"a{number}".ljust(SIZES_BYTES[number] - 2)


@pytest.fixture
def tasks(db: Database, space: Subspace) -> TaskQueue:
    queue = TaskQueue.create(db, "large", "fifottl", root=space)
    for number in range(COUNT):
        queue.put(db, payload(number))
    return queue


@pytest.fixture
def items(db: Database, space: Subspace) -> FairQueue:
    queue = FairQueue(space, key=lambda item: item[0], root=space["root"])
    for number in range(COUNT):
        queue.put(db, payload(number))
    return queue


def test_many_large_tasks_are_read_in_several_transactions(
    db: Database, tasks: TaskQueue, reads: Reads
) -> None:
    assert [task.data for task in tasks.tasks(db, "r", 99)] == [payload(n) for n in range(COUNT)]
    assert [len(sizes) for sizes in reads.sizes_bytes] == PAGES
    reads.sizes_bytes.clear()
    assert len(tasks.tasks(db, "r", 1)) == 1
    assert len(reads.sizes_bytes) == 1


def test_a_task_that_has_left_its_state_meanwhile_is_not_listed(
    db: Database, tasks: TaskQueue, reads: Reads
) -> None:
    ids = [task.id for task in tasks.tasks(db, "r", COUNT)]
    reads.sizes_bytes.clear()

    def meanwhile() -> None:
        tasks.delete(db, ids[0])
        tasks.delete(db, ids[4])
        tasks.bury(db, ids[6])

    reads.meanwhile = meanwhile
    assert [task.id for task in tasks.tasks(db, "r", COUNT)] == [*ids[:4], ids[5], *ids[7:]]


def test_a_transaction_lists_what_it_may_read_and_refuses_more(
    db: Database, tasks: TaskQueue, reads: Reads
) -> None:
    assert len(run(db, lambda tr: tasks.tasks(tr, "r", 2))) == 2
    with pytest.raises(TooMuchForOneTransaction) as raised:
        run(db, lambda tr: tasks.tasks(tr, "r", 3))
    assert (raised.value.count, raised.value.size_bytes) == (3, 3 * LARGE_BYTES)
    for _ in range(7):
        task = tasks.take(db, 0)
        assert task is not None
        tasks.ack(db, task)
    assert len(run(db, lambda tr: tasks.tasks(tr, "r", 1))) == 1
    assert max(sum(sizes) for sizes in reads.sizes_bytes) == 3 * LARGE_BYTES


def test_a_snapshot_of_many_large_items_is_read_in_several_transactions(
    db: Database, items: FairQueue, reads: Reads
) -> None:
    whole = [payload(n) for n in range(COUNT)]
    assert items.snapshot(db) == ([], [("a", whole)])
    assert [len(sizes) for sizes in reads.sizes_bytes] == PAGES
    assert items.get(db) == whole[0]


def test_an_item_that_is_taken_meanwhile_is_not_in_the_snapshot(
    db: Database, items: FairQueue, reads: Reads
) -> None:
    """Those of the first transactions are as they were then."""
    whole = [payload(n) for n in range(COUNT)]
    reads.meanwhile = lambda: [items.get(db) for _ in range(6)]
    assert items.snapshot(db) == ([], [("a", whole[:4] + whole[6:])])


def test_a_transaction_refuses_a_snapshot_that_is_too_much(
    db: Database, items: FairQueue, reads: Reads
) -> None:
    with pytest.raises(TooMuchForOneTransaction):
        run(db, items.snapshot)
    assert sum(map(sum, reads.sizes_bytes)) <= limits.BATCH_BYTES_MAX
    for _ in range(8):
        items.get(db)
    assert run(db, items.snapshot) == ([], [("a", [payload(8), payload(9)])])
