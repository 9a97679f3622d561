"""The rules of the specification, each a test, on a clock set by hand."""

from typing import Any

import pytest

from fdbqueue import Session, Task, TaskState, transactional
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    BatchOverCapacity,
    InvalidArgument,
    NotTaken,
    PayloadTooLarge,
    QueueFull,
    TooMuchForOneTransaction,
    UnsupportedOption,
)
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.support import LONG_S, Bench, MakeBench, SetLimits

TIMED = ("fifottl", "limfifottl")
# Put options (section 2.2).


@pytest.mark.parametrize(
    "options",
    [{"ttl": 0}, {"ttl": 1}, {"ttr": 0}, {"ttr": 1}, {"pri": 1}, {"delay": 1}, {"key": "a"}, {"timeout": 1}],
)
def test_fifo_refuses_options_it_does_not_support(bench: MakeBench, options: dict[str, object]) -> None:
    b = bench("fifo")
    with pytest.raises(UnsupportedOption, match=next(iter(options))):
        b.put(1, **options)
    assert b.counts("put", "total") == (0, 0)


@pytest.mark.parametrize(
    "size", [0, 1, limits.RECORD_PAYLOAD_BYTES_MAX, limits.RECORD_PAYLOAD_BYTES_MAX + 1, 1_024_000]
)
@pytest.mark.parametrize("kind", ["fifottl", "utube"])
def test_a_payload_of_any_size_returns_and_leaves_nothing(bench: MakeBench, kind: str, size: int) -> None:
    b = bench(kind, codec="bytes")
    data = bytes(number % 251 for number in range(size))
    options = {} if kind == "fifottl" else {"key": "a"}
    id_ = b.put(data, **options)
    assert b.queue.peek(b.db, id_).data == data
    assert b.queue.release(b.db, b.take()).data == data
    task = b.take()
    assert task.data == data
    assert b.queue.bury(b.db, id_).data == data
    b.queue.kick(b.db)
    assert b.queue.ack(b.db, b.take()).data == data
    b.queue.delete(b.db, b.put(data, **options))
    assert b.contents() == []


def test_a_payload_beyond_the_limit_is_refused(bench: MakeBench) -> None:
    b = bench(codec="bytes")
    with pytest.raises(PayloadTooLarge):
        b.put(bytes(8_000_001))
    assert b.counts("put") == (0,)


# Time (section 4).


@pytest.mark.parametrize("kind", [*TIMED, "utubettl"])
def test_more_expired_tasks_than_a_sweep_moves_are_not_taken(bench: MakeBench, kind: str) -> None:
    b = bench(kind, ttl=10)
    b.queue.put_many(b.db, range(limits.DUE_BATCH + 10), **({"key": "one"} if kind == "utubettl" else {}))
    b.clock.advance(10)
    assert b.take() is None
    tr = b.db.create_transaction()
    assert b.queue.take(tr, session=b.session) is None
    assert b.counts("take") == (0,)


def _call(b: Bench, verb: str, task: Task | str) -> Task:
    increment = (1,) if verb == "touch" else ()
    done: Task = getattr(b.queue, verb)(b.db, task, *increment)
    return done


def test_touch_of_more_than_a_hundred_years_is_for_ever(bench: MakeBench) -> None:
    b = bench("fifottl", ttl=10, ttr=3)
    b.put(1)
    task = b.queue.touch(b.db, b.take(), 365 * 86_400 * 101)
    assert (task.until, task.expires) == (None, None)
    b.clock.advance(LONG_S / 2)
    assert b.queue.ack(b.db, task).state is TaskState.DONE


def test_fifo_refuses_touches_and_delays_after_the_check(bench: MakeBench) -> None:
    """The holder is checked first."""
    b = bench("fifo")
    id_ = b.put(1)
    with pytest.raises(NotTaken):
        b.queue.touch(b.db, id_, 1)
    task = b.take()
    with pytest.raises(UnsupportedOption, match="touch"):
        b.queue.touch(b.db, task, 1)
    with pytest.raises(UnsupportedOption):
        b.queue.release(b.db, task, delay=1)
    assert b.counts("touch", "taken") == (0, 1)


# Methods and errors (sections 5 and 8).


@pytest.mark.parametrize("verb", ["ack", "release", "touch"])
def test_verbs_of_the_holder_refuse_other_sessions(bench: MakeBench, verb: str) -> None:
    b = bench("fifottl")
    id_ = b.put(1)
    with pytest.raises(NotTaken):
        _call(b, verb, id_)  # not taken
    with Session(b.db, ttr=LONG_S) as other:
        b.queue.take(b.db, 0, session=other)
        with pytest.raises(NotTaken):
            _call(b, verb, id_)  # taken by another session
    b.queue.delete(b.db, id_)
    with pytest.raises(NotTaken):
        _call(b, verb, id_)  # absent


@pytest.mark.parametrize("verb", ["ack", "release", "touch", "peek", "bury", "delete"])
@pytest.mark.parametrize("id_", ["", "7", "é" * 32, 7, None, b"0" * 32, "Z" * 32])
def test_a_malformed_id_is_refused(bench: MakeBench, verb: str, id_: str) -> None:
    b = bench("fifottl")
    with pytest.raises(InvalidArgument):
        _call(b, verb, id_)


def test_a_take_of_several_keys_relies_on_those_that_it_takes(bench: MakeBench) -> None:
    b = bench("fair")
    ids = [b.put(key, key=key) for key in "abc"]
    tr = begin(b.db)
    assert [task.data for task in b.queue.take_many(tr, 2, session=b.session)] == ["a", "b"]
    b.queue.delete(b.db, ids[-1])
    assert commit_code(tr) == 0


def test_a_kick_of_no_tasks_changes_nothing(bench: MakeBench) -> None:
    b = bench()
    b.queue.bury(b.db, b.put(1))
    assert (b.queue.kick(b.db, 0), b.queue.kick(b.db.create_transaction(), 0)) == (0, 0)
    assert len(b.queue.tasks(b.db, "!", 2)) == 1


def test_verbs_over_too_many_tasks_refuse_a_transaction(bench: MakeBench) -> None:
    b = bench()
    b.queue.put_many(b.db, range(201))
    b.queue.take_many(b.db, 201, session=b.session)
    tr = b.db.create_transaction()
    with pytest.raises(TooMuchForOneTransaction):
        b.queue.release_all(tr)
    for task in b.queue.tasks(b.db, "t", 201):
        b.queue.bury(b.db, task.id)
    with pytest.raises(TooMuchForOneTransaction):
        b.queue.kick(b.db.create_transaction(), 201)
    assert b.queue.kick(b.db, 500) == 201


def test_a_listing_of_due_tasks_does_not_conflict_with_a_sweep(
    bench: MakeBench, set_limits: SetLimits
) -> None:
    set_limits(DUE_BATCH=1)  # later pages list those beyond it
    b = bench("fifottl")
    for number in range(5):
        b.put(number, delay=5)
    b.clock.advance(5)
    tr, listed, after = begin(b.db), list[Any](), None
    while not listed or after is not None:
        page = b.queue.tasks(tr, "r", 2, after=after)
        listed, after = [*listed, *page], page.next
    assert sorted(task.data for task in listed) == [*range(5)]
    b.queue.put(tr, "other")
    b.sweep()
    assert commit_code(tr) == 0


# limfifottl (section 6).


@pytest.mark.parametrize("capacity", [None, 0])
def test_no_capacity_is_no_bound(bench: MakeBench, capacity: int | None) -> None:
    b = bench("limfifottl", capacity=capacity)
    b.queue.put_many(b.db, range(1000))
    assert b.counts("ready") == (1000,)


def test_an_expiry_makes_room_for_a_put_that_waits(bench: MakeBench) -> None:
    b = bench("limfifottl", capacity=1)
    b.put(0, ttl=10)
    started = b.clock.now()
    b.put(1, timeout=30)
    assert b.clock.now() - started == pytest.approx(10, abs=0.1)
    assert b.take().data == 1


def test_a_put_reads_a_bounded_number_of_due_tasks_for_room(bench: MakeBench, set_limits: SetLimits) -> None:
    set_limits(DUE_BATCH=5, TIDY_ROUNDS_MAX=2)
    b = bench("limfifottl", capacity=101)
    b.queue.put_many(b.db, range(100), delay=1)
    b.put("expires", ttl=2)
    b.clock.advance(3)
    tr = b.db.create_transaction()
    with pytest.raises(QueueFull):
        b.queue.put(tr, 1)
    tr.commit().wait()
    assert b.counts("delayed", "ready") == (90, 11)
    b.put(1)  # in as many transactions as it takes
    assert b.counts("delayed", "ready") == (0, 101)
    with pytest.raises(QueueFull):
        b.put(2)


def test_the_error_of_a_full_queue_has_the_size_of_the_batch(bench: MakeBench) -> None:
    b = bench("limfifottl", capacity=10)
    b.queue.put_many(b.db, range(8))
    for put in (lambda: b.queue.put_many(b.db, range(3)), lambda: b.queue.put_many(begin(b.db), range(3))):
        with pytest.raises(QueueFull) as full:
            put()
        told = "it holds 8 tasks, its capacity is 10. Nothing was put."
        assert str(full.value) == f"The queue 'bench' has no room for 3 tasks: {told}"
        assert full.value.wanted == 3


@pytest.mark.parametrize("partitions", [1, 2])
def test_the_error_of_a_queue_full_of_buried_tasks_tells_a_cure(bench: MakeBench, partitions: int) -> None:
    b = bench("limfifottl", capacity=3, **({"partitions": partitions} if partitions > 1 else {}))
    for task in b.queue.put_many(b.db, range(3)):
        b.queue.bury(b.db, task)
    cure = (
        "First mend or stop what fails, which `fdbqueue dead classes bench` tells, or else it fills again."
        " Then `fdbqueue delete bench --where state=buried --where class=CLASS` makes room."
    )
    for put in (lambda: b.queue.put(b.db, 9), lambda: b.queue.put(begin(b.db), 9)):
        with pytest.raises(QueueFull) as full:
            put()
        assert str(full.value).endswith(f"Nothing was put. {cure}")
    b.queue.kick(b.db, 2)
    with pytest.raises(QueueFull) as full:
        b.put(9)
    assert str(full.value).endswith("Nothing was put.")


def test_a_batch_above_the_capacity_is_told_as_such(bench: MakeBench) -> None:
    b = bench("limfifottl", capacity=2)
    for put in (lambda: b.queue.put_many(b.db, range(3)), lambda: b.queue.put_many(begin(b.db), range(3))):
        with pytest.raises(BatchOverCapacity) as refused:
            put()
        assert (refused.value.wanted, refused.value.capacity, refused.value.current_size) == (3, 2, 0)
        told = "its capacity is 2. Put at most 2 tasks in one call. Nothing was put."
        assert str(refused.value) == f"A batch of 3 tasks never fits into the queue 'bench': {told}"
    b.queue.put_many(b.db, range(2))
    with pytest.raises(QueueFull) as full:
        b.queue.put_many(b.db, range(2))
    assert type(full.value) is QueueFull


# In the caller's transaction.


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "fair", "bag"])
def test_a_take_of_nothing_beside_a_write_conflicts_with_a_put(bench: MakeBench, kind: str) -> None:
    """The caller may write that there was no task."""
    b = bench(kind)
    tr = b.db.create_transaction()
    assert b.queue.take(tr, session=b.session) is None
    tr[b"seen"] = b"nothing"
    b.put(1)
    assert commit_code(tr) == NOT_COMMITTED


def test_statistics_beside_a_write_conflict_with_nothing(bench: MakeBench) -> None:
    b = bench()
    tr = b.db.create_transaction()
    assert b.queue.statistics(tr)["tasks"]["ready"] == 0
    tr[b"seen"] = b"nothing"
    b.put(1)
    assert commit_code(tr) == 0


def test_a_session_opened_inside_a_transaction_makes_it_retry(bench: MakeBench) -> None:
    b = bench()
    b.put(1)
    attempts = []

    @transactional
    def work(tr: Any) -> Task | None:
        tr.get_read_version().wait()  # older than the session
        attempts.append(1)
        return b.queue.take(tr)

    task = work(b.db)
    assert task is not None
    assert len(attempts) == 2
    assert b.counts("take", "taken") == (1, 1)


@pytest.mark.parametrize("call", ["take", "repartition"])
def test_a_call_conflicts_with_a_pause_that_it_has_not_seen(bench: MakeBench, call: str) -> None:
    """A take would follow the pause, and new partitions would give tasks in the paused queue."""
    b = bench()
    b.put(1)
    tr = b.db.create_transaction()
    b.queue.take(tr, session=b.session) if call == "take" else b.queue.repartition(tr, 4)
    b.queue.pause(b.db)
    assert commit_code(tr) == NOT_COMMITTED
