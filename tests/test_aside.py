"""Values that were set aside: their ids, their pages and their removal."""

from collections.abc import Iterator

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.seam import Transaction
from tests.support import NOT_COMMITTED, ManualClock, begin, commit_code


@pytest.fixture
def still() -> Iterator[Database]:
    """A database with a clock that stands still."""
    with fdbqueue.open("memory:", runtime=ManualClock()) as database:
        yield database


def set_aside(db: Database, queue: Queue, *sizes_bytes: int) -> None:
    """Set a value of each size aside, the first one first."""
    prefix = queue._recipe.keys.prefix

    def body(tr: Transaction) -> None:
        for number, size_bytes in enumerate(sizes_bytes):
            queue._recipe.aside.put(tr, prefix + b"%d" % number, [bytes(size_bytes)], "damaged")

    run(db, body)


def test_values_set_aside_at_one_moment_are_told_apart(still: Database) -> None:
    queue = Queue.named(still, "q")
    queue.enqueue_many(still, [1, 2, 3])
    under = queue._recipe.keys.items
    for row in still.get_range(under.start, under.stop):
        still[row.key] = b"damage"
    assert queue.dequeue(still) is None
    found = queue.aside(still, 9)
    assert (len({one.id for one in found}), len({one.key for one in found})) == (3, 3)
    assert queue.remove_aside(still, [found[1].id]) == 1
    assert queue.aside(still, 9) == [found[0], found[2]]


def test_of_two_removals_of_a_value_one_counts(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    set_aside(db, queue, 1, 1)
    first, _ = queue.aside(db, 2)
    transactions = [begin(db) for _ in range(2)]
    assert [queue.remove_aside(tr, [first.id]) for tr in transactions] == [1, 1]
    assert [commit_code(tr) for tr in transactions] == [0, NOT_COMMITTED]
    assert queue.unreadable(db) == len(queue.aside(db, 9)) == 1


def test_a_full_batch_of_values_is_removed(still: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    queue = Queue.named(still, "q")
    set_aside(still, queue, 1, 1, 1)
    ids = [found.id for found in queue.aside(still, 3)]
    with pytest.raises(InvalidArgument, match="at most 2 ids"):
        queue.remove_aside(still, ids)
    assert queue.remove_aside(still, ids[1:]) == 2


@pytest.mark.parametrize(
    ("sizes_bytes", "pages"),
    [((10, 10, 10), [2, 1]), ((30, 10), [1, 1]), ((10, 30, 10), [1, 1, 1]), ((11, 10, 10), [1, 2])],
)
def test_a_page_of_values_set_aside_is_bounded_in_bytes(
    still: Database, monkeypatch: pytest.MonkeyPatch, sizes_bytes: tuple[int, ...], pages: list[int]
) -> None:
    """One value that is larger than the bound is a page of its own, and hides none behind it."""
    monkeypatch.setattr(limits, "BATCH_BYTES_MAX", 20)
    queue = Queue.named(still, "q")
    for size_bytes in sizes_bytes:
        set_aside(still, queue, size_bytes)
        still.runtime.sleep(1)
    found = [queue.aside(still, 9)]
    while found[-1].next is not None:
        found.append(queue.aside(still, 9, after=found[-1].next))
    assert [len(page) for page in found] == pages
    assert [len(one.values[0]) for page in found for one in page] == list(sizes_bytes)


def test_a_value_that_is_removed_twice_at_once_counts_once(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    set_aside(db, queue, 1, 1)
    first, second = queue.aside(db, 2)
    assert queue.remove_aside(db, [first.id, first.id]) == 1
    assert (queue.unreadable(db), queue.aside(db, 2)) == (1, [second])


def test_all_parts_of_a_value_come_and_go_with_it(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    aside, prefix = queue._recipe.aside, queue._recipe.keys.prefix
    run(db, lambda tr: aside.put(tr, prefix + b"key", [b"a", b"b", b"c"], "damaged"))
    [found] = queue.aside(db, 2)
    assert (found.key, list(found.values)) == (b"key", [b"a", b"b", b"c"])
    queue.remove_aside(db, [found.id])
    assert list(db.get_range_startswith(aside.part(b""))) == []


def test_the_parts_of_a_value_set_aside_are_bounded(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ASIDE_PARTS_MAX", 3)
    queue, under = Queue.named(db, "q", root=space), space["pieces"]
    for number in range(4):
        db[under[number].key()] = b"%d" % number
    pieces = under.range()
    run(db, lambda tr: queue._recipe.aside.put(tr, under.key(), [b"value"], "damaged", pieces))
    [found] = queue.aside(db, 2)
    assert found.values == [b"value", b"0", b"1"]


def test_a_damaged_entry_is_listed_and_removed(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    set_aside(db, queue, 1, 1)
    first, second = queue.aside(db, 2)
    [row, _] = db.get_range_startswith(queue._recipe.aside.entry(b""))
    db[row.key] = b"\xff"
    damaged, other = queue.aside(db, 2)
    assert (damaged.id, damaged.values, other) == (first.id, first.values, second)
    assert "cannot be read" in damaged.reason
    assert queue.remove_aside(db, [damaged.id]) == 1
