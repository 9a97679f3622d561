"""Unique keys: at most one task in its scope has a key, in the whole queue."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument, UnknownSession, UnsupportedOption
from fdbqueue.core.seam import engine_errors
from fdbqueue.tasks.calls import calls_of, tasks_of
from fdbqueue.tasks.stored.records import PAYLOAD, TASK, id_bytes, record_of, record_to_bytes
from fdbqueue.tasks.unique import UniqueKeys, UniqueRows, without_unique
from tests.tasks.partitions import MakeParted, PartitionsBench

KEY = "invoice-17"


@pytest.fixture(params=[1, 3], ids=["whole", "parted"])
def b(request: pytest.FixtureRequest, parted: MakeParted) -> Iterator[PartitionsBench]:
    made = parted("fifottl", partitions=request.param, ttr=60)
    yield made
    assert fdbqueue.verify(made.db, root=made.root).findings == ()


def put(b: PartitionsBench, data: Any = "x", **options: Any) -> fdbqueue.Task:
    return b.queue.put(b.db, data, **{"unique": KEY, **options})


def entries(b: PartitionsBench) -> int:
    """The number of stored keys of unique keys."""
    shared = b.queue._shape.shared
    under = [(shared.uniques.start, shared.uniques.stop), (shared.windows.start, shared.windows.stop)]
    return sum(len(list(b.db.get_range(*keys))) for keys in under)


def commits(tr: Any) -> bool:
    try:
        tr.commit().wait()
    except engine_errors():
        return False
    return True


def total(b: PartitionsBench) -> int:
    return int(b.queue.statistics(b.db)["tasks"]["total"])


def record_key(b: PartitionsBench, task: fdbqueue.Task) -> bytes:
    shape = b.queue._shape.partition(b.places()[task.id])
    return bytes(shape.keys.task(id_bytes(task.id)))


def test_any_task_key_may_be_unique(b: PartitionsBench) -> None:
    """Keys of other types are other keys."""
    keys = ("a", 1, True, b"a", ("a", 7), 2.5, "1", (1,), b"1")
    tasks = [put(b, unique=unique) for unique in keys]
    assert [put(b, unique=unique).id for unique in keys] == [task.id for task in tasks]
    assert [b.queue.peek(b.db, task).unique for task in tasks] == [*keys]
    assert len({task.id for task in tasks}) == len(keys)


def test_an_arrival_conflicts_with_a_put_of_its_unique_key(b: PartitionsBench) -> None:
    """An import gives a task its key only if no other one has it."""
    earlier = put(b)
    record = record_of(b.db[record_key(b, earlier)])
    b.queue.delete(b.db, earlier)
    tr = b.db.create_transaction()
    assert UniqueRows(b.queue._shape, "").arriving(tr, [record], b.db.runtime.now_us()) == [record]
    put(b)
    assert not commits(tr)


def effect_of(b: PartitionsBench) -> bytes:
    """A key of the program, beside the queues of the test."""
    key: bytes = b.root.pack(("an effect",))
    return key


@pytest.mark.parametrize(("verb", "is_sound"), [("touch", True), ("ack", False)])
def test_a_skipping_put_conflicts_with_the_end_of_the_task(
    b: PartitionsBench, verb: str, is_sound: bool
) -> None:
    """It conflicts with no touch."""
    put(b)
    task = b.take()
    tr = b.db.create_transaction()
    assert b.queue.put(tr, "y", unique=KEY).id == task.id
    tr.set(effect_of(b), b"")
    getattr(b.queue, verb)(b.db, task, *([5] if verb == "touch" else []))
    assert commits(tr) == is_sound
    b.db.clear(effect_of(b))


@pytest.mark.parametrize("partitions", [2, 4])
def test_no_touch_fails_a_skipping_put_after_a_repartition(parted: MakeParted, partitions: int) -> None:
    b = parted("fifottl", partitions=3, ttr=60)
    put(b)
    taken = b.take()
    b.queue.repartition(b.db, partitions)
    b.settle()
    tr = b.db.create_transaction()
    assert b.queue.put(tr, "y", unique=KEY).existed
    tr.set(effect_of(b), b"")
    b.queue.touch(b.db, taken, 5)
    assert commits(tr)


def test_combined_puts_read_few_bytes_of_existing_tasks(b: PartitionsBench) -> None:
    """A put that would read more is postponed; a payload above the bound is read alone."""
    third = limits.BATCH_BYTES_MAX // 3
    sizes = [third] * 5 + [9, 3 * limits.BATCH_BYTES_MAX]
    for unique, size in enumerate(sizes):
        put(b, "x" * size, unique=unique)
    left, batches = [*range(7), 3, 9], []
    while left:
        answers = put_together(b, left)
        batches.append([unique for unique, answer in zip(left, answers, strict=True) if tasks_of([answer])])
        left = [unique for unique, answer in zip(left, answers, strict=True) if not tasks_of([answer])]
    assert batches == [[0, 1, 5, 9], [2, 3], [4, 3], [6]]
    assert total(b) == 8


def test_puts_that_share_a_transaction_get_all_large_payloads(b: PartitionsBench) -> None:
    data = {unique: f"{unique}" * limits.BATCH_BYTES_MAX for unique in range(4)}
    for unique, text in data.items():
        put(b, text, unique=unique)
    found: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: put(b, unique=n).data})) for n in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == data


def put_together(b: PartitionsBench, keys: Sequence[int]) -> list[Any]:
    """Skipping puts with these unique keys, in one transaction."""
    drafts = [b.queue._draft("y", {"unique": unique}) for unique in keys]
    calls = b.queue._calls(b.db)
    body = transactional(
        lambda tr: calls._put_in(tr, drafts, bytes(limits.RANDOM_SUFFIX_BYTES), 0), parameter="tr"
    )
    return list(body(b.db))


def test_a_sweep_leaves_the_entry_of_a_put_that_it_has_not_seen(b: PartitionsBench) -> None:
    put(b, scope=30)
    b.clock.advance(31)
    sweep = b.db.create_transaction()
    assert UniqueKeys().sweep(calls_of(b.db, b.queue._shape).source.change(sweep).site)
    second = put(b, scope=30)
    assert not second.existed
    assert commits(sweep)
    assert put(b, scope=30).id == second.id


def test_a_dropped_queue_leaves_no_entry(b: PartitionsBench) -> None:
    put(b, scope=30)
    put(b, unique=2)
    b.queue.drop(b.db)
    assert entries(b) == 0


@pytest.mark.parametrize("sizes", [(0, 2_000), (2_000, 0), (2_000, 1_000), (300_000, 2_000)])
def test_replace_leaves_nothing_of_the_old_payload(b: PartitionsBench, sizes: tuple[int, int]) -> None:
    old, new = ("x" * size for size in sizes)
    put(b, old, delay=5)
    assert put(b, new, on_conflict="replace").data == new
    b.clock.advance(6)
    task = b.take()
    assert task.data == new
    b.queue.ack(b.db, task)
    left = [key for key in b.contents() if b.queue._shape.keys.parts_of(key)[0] in (TASK, PAYLOAD)]
    assert left == []


@pytest.mark.parametrize("kind", ["utubettl", "fair"])
def test_the_successor_of_an_expired_task_is_taken(parted: MakeParted, kind: str) -> None:
    """Its put ends the other task, with which their task key had its place."""
    b = parted(kind)
    put(b, 1, key="k", ttl=5)
    b.clock.advance(6)
    fdbqueue.transactional(lambda tr: b.queue.put(tr, 2, key="k", unique=KEY))(b.db)
    assert b.take().data == 2


def test_an_entry_of_an_earlier_release_is_replaced(b: PartitionsBench) -> None:
    first = put(b)
    key = record_key(b, first)
    record = record_of(bytes(b.db[key]))
    b.db[key] = record_to_bytes(without_unique(record))
    second = put(b)
    assert second.id != first.id
    b.queue.truncate(b.db)


def test_a_damaged_record_is_mended_by_the_next_put(b: PartitionsBench) -> None:
    first = put(b)
    key = record_key(b, first)
    b.db[key] = b"damaged"
    assert put(b).id == first.id


def test_a_task_set_aside_leaves_its_key_to_the_next_put(b: PartitionsBench) -> None:
    first = put(b)
    b.take()
    key = record_key(b, first)
    b.db[key] = b"damaged"
    second = put(b)
    assert (second.existed, second.id == first.id) == (False, False)
    b.queue.truncate(b.db)  # a timer of the damaged task is left


def test_a_temporary_queue_takes_no_put_after_its_owner(bench: Callable[..., Any]) -> None:
    b = bench()
    queue = TaskQueue.create(b.db, "scratch", temporary=True)
    queue.put(b.db, 1, unique=KEY)
    tr = b.db.create_transaction()
    tr.clear(queue._shape.root.session(queue._shape.owner))
    with pytest.raises(UnknownSession):
        queue.put(tr, 2, unique=KEY)


def test_a_put_may_wait_for_room_with_a_unique_key(parted: MakeParted) -> None:
    b = parted("limfifottl", capacity=1)
    b.put("x", ttl=5)
    seen = put(b, 1, timeout=20)
    assert (seen.existed, b.clock.now() >= seen.created) == (False, True)
    assert put(b, 2, timeout=20).id == seen.id


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "for ever"},
        {"scope": 0},
        {"scope": -1},
        {"scope": True},
        {"scope": None},
        {"scope": float("inf")},
        {"scope": limits.SPAN_MAX_S},
        {"on_conflict": "fail"},
        {"on_conflict": None},
        {"on_conflict": "debounce"},
        {"debounce_max": 5},
        {"on_conflict": "debounce", "debounce_max": 0},
        {"on_conflict": "debounce", "debounce_max": 5, "delay": 6},
        {"unique": object()},
        {"unique": "x" * limits.TASK_KEY_BYTES_MAX},
        {"unique": None, "scope": "queued"},
        {"unique": None, "on_conflict": "replace"},
    ],
)
def test_wrong_options_of_unique_keys_are_refused(bench: Callable[..., Any], options: dict[str, Any]) -> None:
    b = bench("fifottl")
    with pytest.raises(InvalidArgument):
        put(b, **options)
    assert b.contents() == []


def test_debounce_needs_a_kind_with_a_delay(bench: Callable[..., Any]) -> None:
    with pytest.raises(UnsupportedOption, match="delay"):
        put(bench("fifo"), on_conflict="debounce", debounce_max=5)


def test_a_batch_has_no_unique_key(bench: Callable[..., Any]) -> None:
    b = bench()
    with pytest.raises(InvalidArgument, match="put each by itself"):
        b.queue.put_many(b.db, [1, 2], unique=KEY)
    with pytest.raises(InvalidArgument, match="put each by itself"):
        b.queue.put_many(b.db, [1, 2], scope="queued")


def test_a_put_that_sweeps_a_task_takes_its_key_over(parted: MakeParted) -> None:
    """To make room, the put sweeps a lease that is over: its task comes back to its scope."""
    for partitions in (1, 3):
        b = parted("limfifottl", partitions=partitions, capacity=2, ttr=60)
        first = put(b, scope="queued")
        assert b.take() is not None
        b.queue.put(b.db, "expires", ttl=5)
        b.clock.advance(61)
        second = put(b, scope="queued")
        assert second.id != first.id
        assert fdbqueue.verify(b.db, root=b.root).findings == ()
        assert put(b, scope="queued").id == second.id
        b.queue.drop(b.db)
