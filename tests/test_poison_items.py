"""Poison costs itself and nothing else: items of plain and fair queues, and elements, that cannot be read."""

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import msgspec
import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue import Database, ElementQueue, FairQueue, PersistentQueue, Queue, SimpleElementQueue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import DamagedElement, PayloadMismatch, PayloadUnreadable, TooMuchToSweep
from fdbqueue.core.line.decision import Delivery
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.queues.elements.store import ELEMENT, LOCK
from fdbqueue.queues.recipe.items import SPLIT, QueueKeys, split_sizes
from fdbqueue.tasks.stored.records import PAYLOAD, TaskKeys
from tests.persistent.support import Running
from tests.queue_support import FATES, faulty
from tests.support import PATIENCE_S, begin, commit_code, wait_until

LARGE = "x" * 200_000


Handles = tuple[Callable[[Any], Any], Callable[[], Any], Callable[[], Any]]
"""The put of a handle, the take of one of the type Point, and that of one without a type."""


class Point(msgspec.Struct):
    x: int


@pytest.fixture(params=["named", "subspace"])
def plain(request: pytest.FixtureRequest, db: Database, space: Subspace) -> Queue:
    return Queue.named(db, "q", root=space) if request.param == "named" else Queue(space[1], root=space[0])


def keys_of(queue: Queue) -> QueueKeys:
    return queue._recipe.keys


def items(db: Database, queue: Queue) -> list[Any]:
    under = keys_of(queue).items
    return list(db.get_range(under.start, under.stop))


def cut_a_piece(db: Database, queue: Queue) -> None:
    under = keys_of(queue).pieces
    last = list(db.get_range(under.start, under.stop))[-1]
    db[last.key] = last.value[:-1]


def lose_a_piece(db: Database, queue: Queue) -> None:
    under = keys_of(queue).pieces
    db.clear(next(iter(db.get_range(under.start, under.stop))).key)


def overwrite(value: bytes) -> Callable[[Database, Queue], None]:
    def damage(db: Database, queue: Queue) -> None:
        db[items(db, queue)[0].key] = value

    return damage


VALUES = (b"", b"\xff", b"\x00{", b"\x00", b"\x01", b"\x01\x15\x01\x15\x02")
DAMAGES = {
    "cut piece": cut_a_piece,
    "lost piece": lose_a_piece,
    **{repr(value): overwrite(value) for value in VALUES},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("how", ["transaction", "take", "wait", "many", "hold"])
def test_a_damaged_item_is_set_aside_and_the_next_one_taken(
    db: Database, plain: Queue, damage: Callable[[Database, Queue], None], how: str
) -> None:
    for value in (LARGE, "good"):
        plain.enqueue(db, value)
    damage(db, plain)
    assert isinstance(plain.items(db, 9)[0], Unreadable)
    with pytest.raises(PayloadUnreadable, match="in the queue"):
        plain.peek(db)
    assert plain.unreadable(db) == 0
    assert taken(db, plain, how) == ["good"]
    assert (plain.size(db), plain.unreadable(db), items(db, plain)) == (0, 1, [])
    [found] = plain.aside(db, 9)
    assert found.reason
    assert plain.dequeue(db) is None
    under = keys_of(plain).pieces
    assert list(db.get_range(under.start, under.stop)) == []
    assert plain.remove_aside(db, [found.id]) == 1
    assert plain.unreadable(db) == 0


@pytest.mark.parametrize("contended", ["simple", "staged"])
def test_a_wait_goes_on_behind_a_damaged_value(db: Database, space: Subspace, contended: str) -> None:
    queue = Queue(space[1], contended=contended, root=space[0])
    queue.enqueue(db, "bad")
    overwrite(b"\x00{")(db, queue)
    waiting = Running(lambda: queue.dequeue(db, timeout=PATIENCE_S))
    wait_until(lambda: queue.unreadable(db) == 1)
    queue.enqueue(db, "good")
    assert waiting.result() == "good"


@pytest.mark.parametrize("fate", FATES)
def test_a_removal_tells_its_number_after_any_result_of_commits(
    db: Database, plain: Queue, fdb_module: ModuleType, fate: str
) -> None:
    plain.enqueue(db, "bad")
    overwrite(b"\xff")(db, plain)
    assert plain.dequeue(db) is None
    [found] = plain.aside(db, 9)
    unsure, engine = faulty(db, fdb_module.FDBError)
    engine.fate = FATES[fate]
    assert [plain.remove_aside(unsure, [found.id]) for _ in range(2)] == [1, 0]
    assert plain.unreadable(db) == 0


def taken(db: Database, queue: Queue, how: str) -> list[Any]:
    if how == "transaction":
        tr = db.create_transaction()
        found = [queue.dequeue(tr)]
        tr.commit().wait()
        return found
    if how == "hold":
        holder = queue.holder(db)
        found = holder.hold(2)
        holder.settle(len(found))
        return found
    if how == "many":
        return queue.dequeue_many(db, 9)
    return [queue.dequeue(db, timeout=5 if how == "wait" else 0)]


@pytest.mark.parametrize("how", ["transaction", "take", "wait", "many", "hold"])
def test_an_item_of_another_type_is_passed_over(db: Database, space: Subspace, how: str) -> None:
    plain, typed = Queue.named(db, "q", root=space), Queue.named(db, "q", type=Point, root=space)
    plain.enqueue_many(db, [{"y": 1}, {"x": 1}])
    assert taken(db, typed, how) == [Point(1)]
    with pytest.raises(PayloadMismatch):
        taken(db, typed, how if how != "wait" else "take")
    assert (plain.size(db), plain.unreadable(db)) == (1, 0)
    assert plain.dequeue(db) == {"y": 1}
    assert typed.dequeue(db) is None


@pytest.mark.parametrize("kind", ["plain", "fair", "task"])
def test_passed_over_items_are_forgotten_once_they_are_gone(
    db: Database, space: Subspace, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count for the bound no longer, as other processes have taken them."""
    monkeypatch.setattr(limits, "PASSED_OVER_MAX", 10)
    put, take, taken_by_others = HANDLES[kind](db, space)
    for round_ in range(5):
        for _ in range(6):
            put({"y": 1})
        put({"x": round_})
        assert take() == Point(round_)
        assert [taken_by_others() for _ in range(6)] == [{"y": 1}] * 6


def of_plain(db: Database, space: Subspace) -> Handles:
    plain, typed = (Queue.named(db, "q", type=type_, root=space) for type_ in (None, Point))
    return partial(plain.enqueue, db), partial(typed.dequeue, db), partial(plain.dequeue, db)


def of_fair(db: Database, space: Subspace) -> Handles:
    plain, typed = fair_of(space), fair_of(space, type=Point)
    return partial(plain.put, db), partial(typed.get, db), partial(plain.get, db)


def of_task(db: Database, space: Subspace) -> Handles:
    plain = TaskQueue.create(db, "q", root=space)
    typed = TaskQueue.open(db, "q", type=Point, root=space)

    def data(queue: TaskQueue) -> Any:
        task = queue.take(db, 0)
        assert task is not None
        return queue.ack(db, task).data

    return partial(plain.put, db), partial(data, typed), partial(data, plain)


HANDLES = {"plain": of_plain, "fair": of_fair, "task": of_task}


def test_items_passed_over_in_one_partition_hide_no_other(db: Database, space: Subspace) -> None:
    """A take in a transaction looks at one partition first, and its error is not yet an answer."""
    plain, typed = (Queue.named(db, "q", partitions=2, type=type_, root=space) for type_ in (None, Point))
    plain.enqueue(db, {"y": 1})
    points = [Point(number) for number in range(3 * limits.TAKES_PER_VISIT)]  # each partition has its turn
    plain.enqueue_many(db, [{"x": point.x} for point in points])
    assert [run(db, typed.dequeue) for _ in points] == points
    with pytest.raises(PayloadMismatch):
        run(db, typed.dequeue)


def test_a_handle_with_the_wrong_codec_moves_nothing(db: Database, space: Subspace) -> None:
    """A queue that is not registered stores no codec: another codec may accept these bytes."""
    right, wrong = Queue(space[1], codec="msgpack", root=space[0]), Queue(space[1], root=space[0])
    right.enqueue_many(db, [["a"], ["b"], ["c"]])
    for _ in range(3):
        with pytest.raises(PayloadUnreadable):
            wrong.dequeue(db)
    assert (right.size(db), right.unreadable(db)) == (3, 0)
    assert right.dequeue_many(db, 3) == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize("together", [False, True])
def test_a_handle_that_has_read_an_item_sets_damaged_ones_aside(
    db: Database, space: Subspace, together: bool
) -> None:
    """It passed over that one: its own codec might have been the wrong one. A batch with both teaches it."""
    writer, reader = Queue(space[1], type=str, root=space[0]), Queue(space[1], root=space[0])
    writer.enqueue_many(db, ["bad", "good"])
    db[items(db, writer)[0].key] = b"\x00{"
    assert (reader.dequeue_many(db, 2) if together else [reader.dequeue(db)]) == ["good"]
    assert reader.dequeue(db) is None
    assert (reader.size(db), reader.unreadable(db)) == (0, 1)


@pytest.mark.parametrize("other", [{"y": 1}, {"y": LARGE}], ids=["whole", "in pieces"])
def test_a_delivered_item_of_another_type_goes_back_to_its_place(
    db: Database, space: Subspace, other: dict[str, Any]
) -> None:
    plain, typed = Queue.named(db, "q", root=space), Queue.named(db, "q", type=Point, root=space)
    plain.enqueue_many(db, [other, {"x": 1}, {"y": 2}])
    recipe = typed._recipe.zero
    deliveries = run(db, lambda tr: recipe.deliver(tr, list(recipe.available(tr, 2, 0)), b""))
    assert plain.size(db) == 1
    assert run(db, lambda tr: recipe.collect(tr, deliveries)) == [Point(1)]
    assert plain.size(db) == 2
    assert plain.dequeue_many(db, 3) == [other, {"y": 2}]


def test_a_value_is_set_aside_once(db: Database, plain: Queue) -> None:
    plain.enqueue(db, 1)
    [item] = items(db, plain)
    transactions = [db.create_transaction() for _ in range(2)]
    for tr in transactions:
        value = tr.snapshot.get(item.key).value
        plain._recipe.aside.put(tr, item.key, [value], "damaged")
        tr.clear(item.key)
    transactions[0].commit().wait()
    with pytest.raises(engine_errors()):
        transactions[1].commit().wait()
    assert plain.unreadable(db) == 1


def test_a_format_of_a_newer_release_is_passed_over(db: Database, space: Subspace) -> None:
    queue = Queue.named(db, "q", root=space)
    queue.enqueue_many(db, ["newer", "good"])
    db[items(db, queue)[0].key] = b"\x02newer"
    assert queue.dequeue(db) == "good"
    with pytest.raises(LookupError, match="storage format 2"):
        queue.dequeue(db)
    assert (queue.size(db), queue.unreadable(db)) == (1, 0)


@pytest.mark.parametrize("rest", [b"", b"\x00", b"\xfe", b"\x1d\x08" + b"\xff" * 8, b"\x1c" + b"\xff" * 8])
def test_a_damaged_key_of_an_item_stops_no_enqueue(db: Database, space: Subspace, rest: bytes) -> None:
    plain = Queue.named(db, "q", root=space)
    plain.enqueue(db, 1)
    db[keys_of(plain).item(rest)] = b"\x00{"
    plain.enqueue(db, 2)
    assert [plain.dequeue(db), plain.dequeue(db)] == [1, 2]


def test_enqueues_behind_a_damaged_key_do_not_conflict(db: Database, space: Subspace) -> None:
    plain = Queue.named(db, "q", root=space)
    db[keys_of(plain).item(b"\xfe")] = b"\x00{"
    together = [begin(db), begin(db)]
    for value, tr in enumerate(together):
        plain.enqueue(tr, value)
    assert [commit_code(tr) for tr in together] == [0, 0]


def test_a_handle_that_has_read_an_item_knows_the_codec(db: Database, space: Subspace) -> None:
    """Bytes that its codec refuses are damaged from then on, and not of another codec."""
    writer, reader = (Queue(space[1], root=space[0]) for _ in range(2))
    run(db, lambda tr: writer.enqueue_many(tr, ["good", "bad"]))
    db[items(db, writer)[1].key] = b"\x00{"
    assert [run(db, reader.dequeue) for _ in range(2)] == ["good", None]
    assert reader.unreadable(db) == 1


@pytest.mark.parametrize("value", [b"", b"\xff", b"\xff" * 8, b"\x7f" * 8, b"1" * 20])
def test_a_damaged_counter_stops_nothing(db: Database, plain: Queue, value: bytes) -> None:
    plain.enqueue_many(db, [1, 2])
    db[keys_of(plain).size] = db[keys_of(plain).floor] = value
    plain.enqueue(db, 3)
    plain.size(db)
    assert plain.dequeue_many(db, 3) == [1, 2, 3]


def fair_of(space: Subspace, **options: Any) -> FairQueue:
    return FairQueue(space[1], key=lambda item: len(str(item)), root=space[0], **options)


def pieces(db: Database, space: Subspace) -> list[Any]:
    """Of the payloads that lie beside their records."""
    keys = TaskKeys(space[1])
    return list(db.get_range(PAYLOAD.start(keys.prefix), keys.ready.start))


def damage(db: Database, space: Subspace, payload: bytes) -> None:
    for row in db.get_range(space[1].key(), space[1].key() + b"\xff"):
        if payload in row.value:
            db[row.key] = row.value.replace(payload, b"{" * len(payload))


@pytest.mark.parametrize("timeout", [0, 5, None])
def test_a_damaged_item_of_a_fair_queue_is_set_aside(
    db: Database, space: Subspace, timeout: float | None
) -> None:
    queue = fair_of(space)
    for item in ("ab", "cd", LARGE):
        queue.put(db, item)
    damage(db, space, b'"ab"')
    db.clear(pieces(db, space)[0].key)
    assert isinstance(queue.snapshot(db).round + queue.snapshot(db).lines, list)
    if timeout is None:
        tr = db.create_transaction()
        assert queue.get(tr) == "cd"
        tr.commit().wait()
    else:
        assert queue.get(db, timeout) == "cd"
    assert queue.get(db) is None
    assert (queue.size(db), queue.unreadable(db), len(queue.aside(db, 9))) == (0, 2, 2)


def test_a_large_item_beside_a_damaged_one_leaves_no_piece(db: Database, space: Subspace) -> None:
    """Calls of two threads share a transaction."""
    queue = fair_of(space)
    for item in (LARGE, "ab"):
        queue.put(db, item)
    damage(db, space, b'"ab"')
    found = run(db, lambda tr: queue._items.taker.take(tr, 2, b"", 0).values)
    assert [handed.item for handed in found] == [LARGE]
    assert (queue.size(db), queue.unreadable(db)) == (0, 1)
    assert pieces(db, space) == []


def test_a_damaged_entry_of_a_fair_queue_is_met_in_its_turn(db: Database, space: Subspace) -> None:
    queue, keys = FairQueue(space[1], key=lambda _: 0, root=space[0]), TaskKeys(space[1])
    for item in "abc":
        queue.put(db, item)
    waiting = [row for row in db.get_range(keys.beside, keys.beside + b"\xff") if b'"b"' in row.value]
    [entry] = waiting
    db[entry.key] = b"damaged"
    assert [queue.get(db) for _ in range(4)] == ["a", "b", "c", None]
    assert (queue.size(db), queue.unreadable(db)) == (0, 0)


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize(
    "bounds",
    [{"TIDY_ROUNDS_MAX": 3}, {"UNREADABLE_BYTES_MAX": 2 * len(LARGE), "BATCH_BYTES_MAX": len(LARGE)}],
    ids=["number", "bytes"],
)
def test_nothing_is_never_told_beside_many_damaged_items(
    db: Database, space: Subspace, fair: bool, bounds: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction sets a bounded number of them aside, of bounded bytes."""
    for name, most in bounds.items():
        monkeypatch.setattr(limits, name, most)
    queue: Any = (
        FairQueue(space[1], key=lambda _: 0, root=space[0]) if fair else Queue(space[1], root=space[0])
    )
    add, take = (queue.put, queue.get) if fair else (queue.enqueue, queue.dequeue)
    for item in [LARGE] * 5 + ["good"]:
        add(db, item)
    keys = TaskKeys(space[1])
    under = slice(PAYLOAD.start(keys.prefix), keys.ready.start) if fair else keys_of(queue).pieces
    db.clear_range(under.start, under.stop)
    with pytest.raises(TooMuchToSweep):
        take(db.create_transaction())
    assert take(db) == "good"
    assert queue.unreadable(db) == 5


def test_a_take_teaches_a_fair_queue_its_codec(db: Database, space: Subspace) -> None:
    """Damage is passed over only as long as the codec of the handle may be the wrong one."""
    writer, reader = fair_of(space), fair_of(space)
    writer.put(db, "good")
    writer.put(db, "damaged")
    damage(db, space, b'"damaged"')
    other = Database(db.engine)
    assert reader.get(other) == "good"
    assert reader.get(other) is None
    assert (writer.size(db), writer.unreadable(db)) == (0, 1)
    other.close()


def test_an_item_set_aside_leaves_no_piece_in_its_place(db: Database, space: Subspace) -> None:
    queue = fair_of(space)
    queue.put(db, LARGE)
    first, *others = pieces(db, space)
    db.clear(first.key)
    assert queue.get(db) is None
    [aside] = queue.aside(db, 9)
    assert list(aside.values[1:]) == [bytes(piece.value) for piece in others]
    assert pieces(db, space) == []


@pytest.mark.parametrize("beside", [False, True])
def test_an_item_passed_over_keeps_its_pieces(db: Database, space: Subspace, beside: bool) -> None:
    """Alone in its transaction, or with an item that is handed out."""
    plain, typed = fair_of(space), fair_of(space, type=Point)
    plain.put(db, {"y": LARGE})
    if beside:
        plain.put(db, {"x": 1})
        assert run(db, lambda tr: typed._items.taker.take(tr, 2, b"", 0).values) == [(Point(1), 1)]
    with pytest.raises(PayloadMismatch):
        typed.get(db)
    assert plain.get(db) == {"y": LARGE}


def test_a_delivery_with_a_damaged_record_is_set_aside(db: Database, space: Subspace) -> None:
    """The others of its batch are handed out."""
    queue = fair_of(space)
    for item in ("a", LARGE):
        queue.put(db, item)
    items = queue._items
    whole, large = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 2, 0)), b""))
    damaged = Delivery(large.id, b"damaged")
    assert run(db, lambda tr: items.collect(tr, [damaged, whole])) == [("a", 1)]
    [aside] = queue.aside(db, 9)
    assert aside.values[0] == b"damaged"
    assert pieces(db, space) == []


def test_a_delivery_damaged_on_its_way_back_is_set_aside(db: Database, space: Subspace) -> None:
    queue = fair_of(space)
    for item in ("a", "bb"):
        queue.put(db, item)
    items = queue._items
    first, second = run(db, lambda tr: items.deliver(tr, list(items.available(tr, 2, 0)), b""))
    run(db, lambda tr: items.give_back(tr, [Delivery(first.id, b"damaged"), second]))
    assert (queue.get(db), queue.get(db)) == ("bb", None)
    assert (queue.size(db), queue.unreadable(db)) == (0, 1)


@pytest.mark.parametrize("value", [b"\xff" * 8, b"\xff" * 20])
def test_a_damaged_floor_stops_no_put(db: Database, space: Subspace, value: bytes) -> None:
    queue = FairQueue(space[1], key=lambda _: 0, root=space[0])
    queue.put(db, "a")
    db[queue._items.floor] = value
    queue.put(db, "b")
    assert [queue.get(db) for _ in range(3)] == ["a", "b", None]


def test_a_page_of_damaged_items_is_not_the_last(db: Database, space: Subspace) -> None:
    queue, keys = fair_of(space), TaskKeys(space[1])
    for item in ("a", "bb", "ccc"):
        queue.put(db, item)
    for row in list(db.get_range(keys.tasks.start, keys.tasks.stop))[:2]:
        db[row.key] = b"damaged"
    listed, pages, after = list[Any](), 0, None
    while not pages or after is not None:
        page = queue.snapshot(db, 1, after=after)
        listed += [*page.round, *(item for _, line in page.lines for item in line)]
        pages, after = pages + 1, page.next
    assert (listed, pages) == (["ccc"], 3)


def test_pages_end_beside_keys_of_a_wrong_length(db: Database, space: Subspace) -> None:
    """The end of such a key is no place: pages would begin again at it."""
    queue, keys = fair_of(space), TaskKeys(space[1])
    queue.put(db, "a")
    for start in (b"\xf0", b"\xf0\xf0"):
        db[keys.tasks.start + start + bytes(24)] = b"damaged"
    listed, after = list[Any](), None
    for _ in range(4):
        page = queue.snapshot(db, 1, after=after)
        listed += [*page.round, *(item for _, line in page.lines for item in line)]
        if (after := page.next) is None:
            break
    assert (listed, after) == (["a"], None)


def test_an_orphaned_entry_of_a_fair_queue_is_set_aside(db: Database, space: Subspace) -> None:
    queue = fair_of(space)
    queue.put(db, "ab")
    for row in list(db.get_range(space[1].key(), space[1].key() + b"\xff")):
        if b'"ab"' in row.value:
            db[row.key] = b"damaged"
    queue.put(db, "cd")
    queue.put(db, "abc")
    assert {queue.get(db), queue.get(db)} == {"cd", "abc"}
    assert (queue.get(db), queue.size(db), queue.unreadable(db)) == (None, 0, 1)


def test_a_persistent_queue_buries_an_unreadable_item(db: Database, space: Subspace) -> None:
    queue = PersistentQueue(db, "q", root=space)
    for item in ("bad" * 200, "good"):
        queue.put(item)
    keys = queue._stored.shape.keys
    payload = next(iter(db.get_range(PAYLOAD.start(keys.prefix), keys.ready.start)))
    db[payload.key] = b"{" * len(payload.value)
    assert queue.get(timeout=5) == "good"
    queue.task_done()
    assert queue.empty()
    queue.join()
    assert (queue.unreadable(db), queue.aside(db, 9)) == (0, [])
    queue.close()


@pytest.mark.parametrize("how", ["get", "dequeue"])
def test_a_damaged_element_is_reported_once_and_set_aside(db: Database, space: Subspace, how: str) -> None:
    queue = ElementQueue(space[1], schema={"body": "string"}, root=space[0])
    bad, good = queue.add(db, {"body": "x" * limits.PAYLOAD_PIECE_BYTES_MAX}), queue.add(db, {"body": "good"})
    keys = queue.store.keys
    db.clear(keys.payload(bad, 1))
    with pytest.raises(DamagedElement, match=bad):
        queue.get_element(db, bad)
    assert queue.count(db) == 2
    if how == "get":
        assert queue.lock(db, bad)
        with pytest.raises(DamagedElement):
            queue.get(db, bad)
    else:
        with pytest.raises(DamagedElement):
            queue.dequeue(db, bad)
    assert list(queue.names(db)) == [good]
    assert (queue.count(db), queue.unreadable(db)) == (1, 1)
    assert queue.dequeue(db, good) == {"body": "good"}


def test_damaged_names_and_locks_of_elements_stop_no_pass(db: Database, space: Subspace) -> None:
    queue = SimpleElementQueue(space[1], root=space[0])
    names = [queue.add(db, str(n)) for n in range(20)]
    keys = queue.store.keys
    for junk in (b"", b"\xff" * 5, b"\x00", b"0" * 40):
        db[ELEMENT.start(keys.prefix) + junk] = b""
        db[LOCK.start(keys.prefix) + junk] = b"?"
    db[keys.lock(names[0])] = b""
    db[keys.count] = b"12"
    assert list(queue.names(db)) == names
    queue.purge(db)
    assert queue.lock(db, names[0])
    assert isinstance(queue.count(db), int)


@pytest.mark.parametrize("rest", [b"", b"\x00", b"\xff", b"\x15\x01", b"\x02text\x00"])
def test_a_damaged_member_of_an_owner_stops_no_opening(db: Database, space: Subspace, rest: bytes) -> None:
    queue = PersistentQueue(db, "q", owner="me", root=space)
    queue.put("a")
    assert queue.get() == "a"
    db[queue._client.owner._under + b"\x00" + rest] = b"junk"
    again = PersistentQueue(db, "q", owner="me", root=space)
    assert again.get(timeout=5) == "a"
    again.close()


@pytest.mark.parametrize(
    "value",
    [b"\x05" + layer.pack((2, 10)), SPLIT + layer.pack(("2", 10)), SPLIT + layer.pack((2, 0)), SPLIT, b""],
    ids=["newer", "text", "empty", "short", "nothing"],
)
def test_a_value_that_tells_no_pieces_has_none(value: bytes) -> None:
    assert split_sizes(value) == (0, 0)
    assert split_sizes(SPLIT + layer.pack((2, limits.PAYLOAD_BYTES_MAX))) == (2, limits.PAYLOAD_BYTES_MAX)
    assert split_sizes(SPLIT + layer.pack((2, limits.PAYLOAD_BYTES_MAX + 1))) == (0, 0)
