"""Looking at many large tasks or items: no transaction reads more than it may, and the list is whole."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, FairQueue, Queue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import every_page
from fdbqueue.tasks import change
from tests.partitions.support import PARTITIONS, key_in
from tests.tasks.support import MakeBench, SetLimits

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
    found, ask = Reads(), change.ask_payload

    def noting(tr: Any, keys: Any, record: Any) -> Any:
        found.note(tr, record.size_bytes)
        return ask(tr, keys, record)

    monkeypatch.setattr(change, "ask_payload", noting)
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


def test_a_page_of_large_tasks_is_bounded_in_bytes(db: Database, tasks: TaskQueue, reads: Reads) -> None:
    pages = list(every_page(lambda after: tasks.tasks(db, "r", 99, after=after)))
    assert [len(page) for page in pages] == PAGES
    assert [len(sizes) for sizes in reads.sizes_bytes] == PAGES
    assert [task.data for page in pages for task in page] == [payload(n) for n in range(COUNT)]


@pytest.mark.commits_by_hand
def test_a_transaction_lists_the_same_pages(db: Database, tasks: TaskQueue, reads: Reads) -> None:
    pages = list(every_page(lambda after: run(db, lambda tr: tasks.tasks(tr, "r", 99, after=after))))
    assert [len(page) for page in pages] == PAGES
    assert max(sum(sizes) for sizes in reads.sizes_bytes) == 3 * LARGE_BYTES


def test_a_page_of_large_items_is_bounded_in_bytes(db: Database, space: Subspace, reads: Reads) -> None:
    assert reads.sizes_bytes == []  # the bound is that of all listings
    queue = Queue(space)
    for number in range(COUNT):
        queue.enqueue(db, payload(number))
    pages = list(every_page(lambda after: queue.items(db, 99, after=after)))
    assert [len(page) for page in pages] == PAGES
    assert list(chain(*pages)) == [payload(n) for n in range(COUNT)]


@pytest.mark.commits_by_hand
def test_a_snapshot_of_large_items_is_bounded_in_bytes(db: Database, items: FairQueue, reads: Reads) -> None:
    pages = list(every_page(lambda after: items.snapshot(db, after=after)))
    assert [len(sizes) for sizes in reads.sizes_bytes] == PAGES
    assert [item for page in pages for _, line in page.lines for item in line] == [
        payload(n) for n in range(COUNT)
    ]
    assert pages[0] == ([], [("a", [payload(0), payload(1)])])


@pytest.mark.parametrize("limit", [1, 2, 3, 1_000])
def test_items_are_listed_in_pages(db: Database, space: Subspace, limit: int) -> None:
    queue = Queue(space)
    queue.enqueue_many(db, range(6))
    pages = list(every_page(lambda after: queue.items(db, limit, after=after)))
    assert list(chain(*pages)) == list(range(6))
    assert max(map(len, pages)) == min(limit, 6)


def test_more_items_than_a_page_may_have_are_listed(db: Database, space: Subspace) -> None:
    queue = Queue(space)
    for _ in range(2):
        queue.enqueue_many(db, range(limits.BATCH_ITEMS_MAX))
    pages = list(every_page(lambda after: queue.items(db, 10**9, after=after)))
    assert [len(page) for page in pages] == [limits.BATCH_ITEMS_MAX] * 2


def test_a_sweep_between_two_pages_loses_no_task_that_stays(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(DUE_BATCH=5)
    b = bench("fifottl")
    early = [b.put(n) for n in range(4)]
    late = [b.put(n, delay=10) for n in range(5)]
    b.clock.advance(20)
    first = b.queue.tasks(b.db, "r", 2)
    b.sweep()
    rest = list(every_page(lambda after: b.queue.tasks(b.db, "r", 2, after=after or first.next)))
    assert [task.id for page in [first, *rest] for task in page] == [*early, *late]


def test_the_end_of_a_due_task_hides_no_other_from_a_listing(bench: MakeBench, set_limits: SetLimits) -> None:
    """One of the timers that stand among the ready tasks goes between two pages."""
    set_limits(DUE_BATCH=2)
    b = bench("fifottl")
    ready, due = [b.put(n) for n in range(3)], [b.put(n, delay=1) for n in range(5)]
    b.clock.advance(2)
    first = run(b.db, lambda tr: b.queue.tasks(tr, "r", 1))
    b.queue.delete(b.db, due[0])
    rest = every_page(
        lambda after: run(b.db, lambda tr: b.queue.tasks(tr, "r", 1, after=after or first.next))
    )
    assert sorted(task.id for task in chain(first, *rest)) == sorted(ready + due[1:])


def test_pages_go_on_in_the_first_partition_that_has_tasks(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "utube", partitions=PARTITIONS, root=space)
    put = [queue.put(db, "x", key=key_in(partition)).id for partition in (2, 2, 2, 3, 3)]
    pages = every_page(lambda after: queue.tasks(db, "r", 1, after=after))
    assert [task.id for task in chain(*pages)] == put


def test_a_snapshot_is_taken_in_pages(db: Database, space: Subspace) -> None:
    queue = FairQueue(space, key=lambda item: item[0], capacity=None, root=space["root"])
    for item in ("a1", "a2", "b1", "c1", "b2"):
        queue.put(db, item)
    queue.get(db)
    whole = queue.snapshot(db)
    assert (whole, whole.next) == ((["b1", "c1"], [("a", ["a2"]), ("b", ["b2"])]), None)
    pages = list(every_page(lambda after: queue.snapshot(db, 2, after=after)))
    assert pages == [(["b1"], [("a", ["a2"])]), (["c1"], [("b", ["b2"])])]


@pytest.mark.parametrize("after", ["nonsense", 5, b"00", ["a"], "ff" * 40, "", "00"])
def test_a_place_that_no_page_has_given_is_refused(db: Database, space: Subspace, after: Any) -> None:
    queue = TaskQueue.create(db, "tasks", root=space["root"])
    with pytest.raises(InvalidArgument):
        queue.tasks(db, "r", 1, after=after)
    with pytest.raises(InvalidArgument):
        FairQueue(space["fair"], key=str).snapshot(db, after=after)
    with pytest.raises(InvalidArgument):
        Queue(space["plain"]).items(db, 1, after=after)


def test_a_place_is_of_one_state(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "tasks", root=space)
    queue.put_many(db, range(2))
    page = queue.tasks(db, "r", 1)
    with pytest.raises(InvalidArgument):
        queue.tasks(db, "t", 1, after=page.next)
