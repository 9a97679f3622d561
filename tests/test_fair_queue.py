"""FairQueue: the reference's examples and tests, looks, conflicts, damage, and clients side by side."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Database, FairQueue, QueueBy
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import FairQueueFull, InvalidArgument, PayloadMismatch
from fdbqueue.tasks.stored.records import PAYLOAD
from tests.queue_support import in_threads
from tests.support import NOT_COMMITTED, PATIENCE_S, begin, commit_code
from tests.tasks.fair_model import Overflow, Rounds

SPACE = Subspace(("fair",))


def first_letter(item: str) -> str:
    return item[0]


def test_the_monitoring_view_of_the_reference(db: Database, space: Subspace) -> None:
    q = FairQueue(space, key=lambda item: item["i"])
    for item in ({"i": "one", "x": 1}, {"i": "one", "x": 2}, {"i": "two", "x": 2}):
        q.put(db, item)
    assert q.snapshot(db) == ([], [("one", [{"i": "one", "x": 1}, {"i": "one", "x": 2}]), ("two", [item])])
    assert q.get(db) == {"i": "one", "x": 1}
    assert q.snapshot(db) == ([item], [("one", [{"i": "one", "x": 2}])])
    assert q.get(db) == item
    assert q.snapshot(db) == ([], [("one", [{"i": "one", "x": 2}])])
    q.get(db)
    assert (q.snapshot(db), q.size(db)) == (([], []), 0)


def test_a_queue_is_called_as_queue_by_is(db: Database, space: Subspace) -> None:
    """The third example of the reference, and an overflow."""
    q = QueueBy(db, FairQueue(space, key=lambda item: item and item[0], capacity=4))
    assert len(q("a1")("b1")("a2")) == 3
    assert q() == "a1"
    q("a3")
    q("a4")
    with pytest.raises(FairQueueFull, match="overflow") as refused:
        q("a5")
    assert (refused.value.item, refused.value.current_size) == ("a5", 4)
    assert q() == "b1"
    q("b2")
    assert [q() for _ in range(len(q))] == ["a2", "b2", "a3", "a4"]
    assert (q(), len(q), len(q(None))) == (None, 0, 1)
    assert (q(), len(q)) == (None, 0)


def test_none_is_a_key_and_an_item(db: Database, space: Subspace) -> None:
    q = FairQueue(space, key=lambda item: item and item.get("k"))
    for item in ({"v": 1}, {"k": 1, "v": 2}, None, {"k": None, "v": 3}):
        q.put(db, item)
    assert [q.take_item(db) for _ in range(5)] == [
        (True, {"v": 1}),
        (True, {"k": 1, "v": 2}),
        (True, None),
        (True, {"k": None, "v": 3}),
        (False, None),
    ]


@pytest.mark.parametrize(("capacity", "fit"), [(0, 0), (128, 128), (None, 130)])
def test_capacities(db: Database, space: Subspace, capacity: int | None, fit: int) -> None:
    q = (
        FairQueue(space, key=first_letter)
        if capacity == 128
        else FairQueue(space, key=first_letter, capacity=capacity)
    )
    for number in range(130):
        try:
            q.put(db, f"a{number}")
        except FairQueueFull:
            assert number >= fit
    assert q.size(db) == fit


@pytest.mark.parametrize(("options"), [{"capacity": -1}, {"weights": {"a": 0}}, {"weights": {"a": 1.5}}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        FairQueue(SPACE, key=first_letter, **options)


def test_what_cannot_be_put_leaves_nothing(db: Database, space: Subspace) -> None:
    def key(item: Any) -> Any:
        return {"no": "key"} if item == "bad" else item[0]

    q = FairQueue(space, key=key)
    with pytest.raises(InvalidArgument):
        q.put(db, "bad")
    with pytest.raises(IndexError):
        q.put(db, "")
    with pytest.raises(InvalidArgument):
        q.put(db, "a", cost=0)
    assert (q.size(db), list(db.get_range_startswith(space.key()))) == (0, [])


def test_looking_is_bounded(db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch) -> None:
    q = FairQueue(space, key=first_letter)
    for number in range(3):
        q.put(db, f"a{number}")
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 2)
    page = q.snapshot(db)
    assert page == ([], [("a", ["a0", "a1"])])
    assert q.snapshot(db, after=page.next) == ([], [("a", ["a2"])])


def test_each_page_marks_the_items_of_the_round(db: Database, space: Subspace) -> None:
    """The second page holds an item of the round that is not the first of it."""
    q = FairQueue(space, key=first_letter)
    for item in ("a1", "b1", "c1", "a2"):
        q.put(db, item)
    assert q.get(db) == "a1"
    pages, after = [], None
    for _ in range(3):
        page = q.snapshot(db, 1, after=after)
        pages.append(tuple(page))
        after = page.next
    assert pages == [(["b1"], []), (["c1"], []), ([], [("a", ["a2"])])]
    assert after is None


def test_the_key_of_an_item_without_room_is_not_computed(db: Database, space: Subspace) -> None:
    asked: list[str] = []

    def key(item: str) -> str:
        asked.append(item)
        return item[0]

    q = FairQueue(space, key=key, capacity=1)
    q.put(db, "a1")
    with pytest.raises(FairQueueFull):
        q.put(db, "b1")
    assert set(asked) == {"a1"}


def test_a_transaction_that_does_not_commit_changes_nothing(db: Database, space: Subspace) -> None:
    q = FairQueue(space, key=first_letter)
    q.put(db, "a1")
    tr = db.create_transaction()
    assert q.get(tr) == "a1"
    q.put(tr, "b1")
    assert q.get(db) == "a1"
    assert q.get(db) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([1, "1", None, True, 1.0, "get", "get"]), max_size=50))
def test_any_puts_and_gets_go_as_in_the_reference(steps: list[Any]) -> None:
    def key(item: Any) -> Any:
        return item[1]

    with fdbqueue.open("memory:") as db:
        q, model = FairQueue(SPACE, key=key, capacity=9), Rounds(key, 9)
        for number, step in enumerate(steps):
            if step == "get":
                assert q.get(db) == model.pull()
            else:
                assert _refuses(lambda: q.put(db, [number, step])) == _refuses(  # noqa: B023
                    lambda: model.push([number, step])  # noqa: B023
                )
            now, _ = model.deref()
            lines = [(key, [item for _, item in line]) for (_, key), line in model.lines.items()]
            assert q.size(db) == model.count
            assert q.snapshot(db).round == now
            assert sorted(map(str, q.snapshot(db).lines)) == sorted(map(str, lines))


def _refuses(body: Any) -> bool:
    try:
        body()
    except (FairQueueFull, Overflow):
        return True
    return False


def test_the_stress_test_of_the_reference(
    db: Database, space: Subspace, engine: str, rounds: Callable[[int, int], int]
) -> None:
    """Three writers below the bound, one reader that asks until it has everything; 2,700 items in memory."""
    each = 900 if engine == "memory" else rounds(100, 900)
    q = FairQueue(space, key=lambda item: item[0], capacity=3 * each + 100)
    got: Counter[str] = Counter()

    def work(number: int) -> None:
        if number < 3:
            for item in range(each):
                q.put(db, [f"t{number + 1}", item])
        else:
            deadline = time.monotonic() + 3 * PATIENCE_S
            while sum(got.values()) < 3 * each and time.monotonic() < deadline:
                item = q.get(db)
                got.update([item[0]] if item is not None else [])

    in_threads(4, work)
    assert got == Counter({"t1": each, "t2": each, "t3": each})
    assert q.size(db) == 0


def test_a_waiting_get_returns_the_next_item(db: Database, space: Subspace) -> None:
    q = FairQueue(space, key=first_letter)
    assert q.take_item(db, timeout=0.01) == (False, None)
    found: list[Any] = []
    waiter = threading.Thread(target=lambda: found.append(q.get(db, timeout=PATIENCE_S)))
    waiter.start()
    q.put(db, "a1")
    waiter.join(2 * PATIENCE_S)
    assert found == ["a1"]


def test_a_wait_is_not_for_transactions(db: Database, space: Subspace) -> None:
    q = FairQueue(space, key=first_letter)
    for target, timeout in ((db, -1), (db.create_transaction(), 1)):
        with pytest.raises(InvalidArgument):
            q.get(target, timeout=timeout)


def test_an_uncollected_item_is_the_first_of_its_key_again(db: Database, space: Subspace) -> None:
    """This holds even if the queue had run empty meanwhile, and its index had begun anew."""
    q = FairQueue(space, key=first_letter)
    for word in ("a1", "a2", "a3"):
        q.put(db, word)
    items = q._items
    handed = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 3, 0)), b""))
    assert q.size(db) == 0
    q.put(db, "a4")
    q.put(db, "b1")
    [_, last] = [row.key for row in db.get_range(items.keys.tasks.start, items.keys.tasks.stop)]
    assert items.keys.index_of(last) > len(handed)  # not the index of one of them: chance would decide
    run(db, lambda tr: items.give_back(tr, handed[1:]))
    assert [q.get(db) for _ in range(5)] == ["a2", "b1", "a3", "a4", None]


def test_a_put_is_behind_all_delivered_items_of_a_round(db: Database, space: Subspace) -> None:
    """The last item of the order is not the last that was put."""
    q = FairQueue(space, key=first_letter)
    for word in ("a1", "a2", "b1", "c1"):
        q.put(db, word)
    items = q._items
    handed = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 4, 0)), b""))
    q.put(db, "c2")
    run(db, lambda tr: items.give_back(tr, handed))
    assert [q.get(db) for _ in range(5)] == ["a1", "b1", "c1", "a2", "c2"]


@pytest.mark.parametrize("later", [0, 1])
def test_a_put_is_behind_an_item_delivered_out_of_order(db: Database, space: Subspace, later: int) -> None:
    """The item left in the queue, or delivered later, was put before it."""
    q = FairQueue(space, key=first_letter)
    for word in ("a1", "a2", "b1", "c1"):
        q.put(db, word)
    items = q._items
    handed = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 3, 0)), b""))
    for _ in range(later):
        run(db, lambda tr: items.deliver(tr, list(items.available(tr, 1, 0)), b""))
    q.put(db, "c2")
    run(db, lambda tr: items.give_back(tr, handed))
    found = [q.get(db) for _ in range(5 - later)]
    assert [item for item in found if item[0] == "c"] == ["c1", "c2"]


def test_an_item_beside_a_damaged_one_keeps_its_cost(db: Database, space: Subspace) -> None:
    """A call that was cancelled puts it again at that cost."""
    q = FairQueue(space, key=first_letter)
    q.put(db, "a" * limits.PAYLOAD_PIECE_BYTES_MAX)
    q.put(db, "b1", cost=9)
    keys = q._items.keys
    for row in db.get_range(PAYLOAD.start(keys.prefix), keys.taken.start):
        db[row.key] = b"{"
    assert run(db, lambda tr: q._items.taker.take(tr, 2, b"", 0).values) == [("b1", 9)]


def test_a_wait_beside_an_item_of_another_type_tells_of_it(db: Database, space: Subspace) -> None:
    plain = FairQueue(space, key=len)
    typed = FairQueue(space, key=len, type=list[int])
    plain.put(db, ["a"])
    plain.put(db, [1])
    assert typed.get(db, 0.01) == [1]
    with pytest.raises(PayloadMismatch):
        typed.get(db, 0.01)
    assert plain.get(db) == ["a"]


def test_a_combined_put_counts_the_copies_of_its_key(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand puts with long keys would not fit into the transaction that they share."""
    queue, sizes = FairQueue(space, key=lambda _: "k" * 900, capacity=None), []
    puts = queue._calls_of(db)._puts
    monkeypatch.setattr(puts, "call", lambda _, count, size_bytes: sizes.append(size_bytes))  # noqa: ARG005
    queue.put(db, "x")
    assert sizes[0] > 900 * limits.TASK_KEY_COPIES


def test_statistics_by_key(db: Database, space: Subspace) -> None:
    q = FairQueue(space, key=first_letter)
    for word in ("a1", "b1", "b2", "b3", "a2"):
        q.put(db, word)
    assert q.get(db) == "a1"
    found = q.key_statistics(db, 9)
    assert [(s.key, s.ready, s.taken) for s in found] == [("b", 3, 0), ("a", 1, 0)]
    assert found[0].oldest is not None
    assert 0 <= found[0].oldest.age_s < PATIENCE_S


def test_one_callers_bad_item_is_no_others(db: Database, space: Subspace) -> None:
    """Puts of several threads share a transaction."""
    q = FairQueue(space, key=lambda item: item["key"], capacity=None)
    refused: list[int] = []

    def work(number: int) -> None:
        try:
            q.put(db, {"key": {}} if number % 2 else {"key": number})
        except InvalidArgument:
            refused.append(number)

    in_threads(8, work)
    assert sorted(refused) == [1, 3, 5, 7]
    assert q.size(db) == 4


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
