"""Conflicts of a fair queue: a look at it has none, and puts of different keys have none with each other."""

from fdb.subspace_impl import Subspace

from fdbqueue import Database, FairQueue
from fdbqueue.core.database import run
from tests.support import NOT_COMMITTED, begin, commit_code


def first_letter(item: str) -> str:
    return item[0]


def test_a_look_at_a_fair_queue_conflicts_with_nothing(db: Database, space: Subspace) -> None:
    q = FairQueue(space["fair"], key=first_letter)
    for item in ("a1", "b1", "a2"):
        q.put(db, item)
    tr = begin(db)
    q.size(tr)
    q.snapshot(tr)
    q.key_statistics(tr, 9)
    tr[space["beside"].key()] = b""
    assert q.get(db) == "a1"
    q.put(db, "c1")
    assert commit_code(tr) == 0


def test_puts_of_different_keys_conflict_only_at_the_edge(db: Database, space: Subspace) -> None:
    """Each of these keys has an item already. With no capacity there is no edge."""
    for capacity, code in ((None, 0), (5, NOT_COMMITTED)):
        q = FairQueue(space[repr(capacity)], key=first_letter, capacity=capacity)
        for item in ("a1", "b1", "c1"):
            q.put(db, item)
        first, second = begin(db), begin(db)
        q.put(first, "a2")
        q.put(second, "b2")
        assert (commit_code(first), commit_code(second)) == (0, code)


def test_a_put_conflicts_with_no_delivery_of_another_key(db: Database, space: Subspace) -> None:
    """The delivery moves the floor, which the put reads."""
    q = FairQueue(space["fair"], key=first_letter)
    for item in ("a1", "b1", "a2", "b2"):
        q.put(db, item)
    tr, items = begin(db), q._items
    q.put(tr, "b3")
    [handed] = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 1, 0)), b""))
    assert commit_code(tr) == 0
    assert run(db, lambda tr: items.collect(tr, [handed])) == [("a1", 1)]
