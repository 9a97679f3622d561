"""Exactly once (I3): commits with an unknown result, of either outcome, at every commit of a call."""

import itertools
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, Queue, TaskQueue
from fdbqueue.core import limits, once
from fdbqueue.core.database import run
from fdbqueue.core.errors import PayloadUnreadable
from fdbqueue.core.once import ATTEMPT, LostConflict, is_stale, run_once, sweep, writes
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import commit
from tests.queue_support import CountingSnapshot, FaultyEngine, faulty
from tests.support import (
    CLUSTER_VERSION_CHANGED,
    COMMIT_UNKNOWN,
    NOT_COMMITTED,
    PATIENCE_S,
    TOO_OLD,
    TRANSACTION_TOO_LARGE,
    ManualClock,
    commit_code,
    wait_until,
)

FATES = [
    (0, True),
    (COMMIT_UNKNOWN, True),
    (COMMIT_UNKNOWN, False),
    (CLUSTER_VERSION_CHANGED, True),
    (NOT_COMMITTED, False),
]


@pytest.fixture
def faults(db: Database, fdb_module: ModuleType) -> tuple[Database, FaultyEngine]:
    return faulty(db, fdb_module.FDBError)


def scripted(engine: FaultyEngine, *fates: tuple[int, bool]) -> None:
    """The next commits meet these fates, later ones none."""
    script = iter(fates)
    engine.fate = lambda _: next(script, (0, True))


@pytest.mark.parametrize("fates", list(itertools.product(FATES, FATES)), ids=str)
def test_a_call_has_its_effect_once_with_any_result_of_commits(
    faults: tuple[Database, FaultyEngine], space: Subspace, fates: tuple[tuple[int, bool], ...]
) -> None:
    db, engine = faults
    queue = Queue(space[0], root=space[1])
    scripted(engine, *fates)
    queue.enqueue(db, "a")
    assert queue.items(db, 10) == ["a"]
    scripted(engine, *fates)
    assert queue.dequeue(db) == "a"
    assert queue.size(db) == 0


@pytest.mark.parametrize("fates", list(itertools.product(FATES, FATES)), ids=str)
def test_the_same_in_the_line(
    faults: tuple[Database, FaultyEngine], space: Subspace, fates: tuple[tuple[int, bool], ...]
) -> None:
    """Two lost races send a take to the line: its registration, serving and hand-over meet the fates."""
    db, engine = faults
    queue = Queue(space[0], root=space[1])
    queue.enqueue_many(db, ["a", "b"])
    scripted(engine, (NOT_COMMITTED, False), (NOT_COMMITTED, False), *fates)
    assert queue.dequeue(db) == "a"
    assert queue.items(db, 10) == ["b"]
    assert queue.size(db) == 1


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("fates", list(itertools.product(FATES, FATES)), ids=str)
def test_a_task_is_put_taken_and_acked_once(
    faults: tuple[Database, FaultyEngine],
    space: Subspace,
    fates: tuple[tuple[int, bool], ...],
    partitions: int,
) -> None:
    db, engine = faults
    queue = TaskQueue.create(db, "q", partitions=partitions, root=space)
    queue.take_many(db, 1)  # it opens a session
    scripted(engine, *fates)
    queue.put_many(db, ["a", "b", "c"])
    scripted(engine, *fates)
    first, second = queue.take_many(db, 2)
    assert (first.attempts, second.attempts) == (1, 1)
    counts = queue.statistics(db)
    assert [counts["tasks"][state] for state in ("ready", "taken")] == [1, 2]
    assert counts["calls"]["take"] == 2
    scripted(engine, *fates)
    assert queue.ack(db, first).data == "a"
    assert queue.statistics(db)["tasks"]["taken"] == 1


def test_a_read_with_an_unknown_end_leaves_nothing_in_doubt(
    faults: tuple[Database, FaultyEngine], space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client with the libraries of two releases may end a read so. No commit was sent."""
    db, engine = faults
    queue = TaskQueue.create(db, "q", root=space)
    queue.take_many(db, 1)  # it opens a session
    queue.put(db, "a")
    get_range, ends = CountingSnapshot.get_range, [CLUSTER_VERSION_CHANGED]

    def read(*given: Any, **options: Any) -> Any:
        if ends:
            raise engine.error(ends.pop())
        return get_range(*given, **options)

    monkeypatch.setattr(CountingSnapshot, "get_range", read)
    assert [task.data for task in queue.take_many(db, 1)] == ["a"]


@pytest.mark.parametrize(("deleted", "taken"), [(1, ["a", "b"]), (2, ["c"])])
def test_one_lease_left_shows_the_commit_of_a_take(
    db: Database, faults: tuple[Database, FaultyEngine], space: Subspace, deleted: int, taken: list[str]
) -> None:
    """Some of its tasks are deleted before the retry looks. Without any lease, the retry takes others."""
    unsure, engine = faults
    queue, error = TaskQueue.create(db, "q", root=space), engine.error
    queue.take_many(unsure, 1)  # it opens a session
    tasks = queue.put_many(db, ["a", "b", "c"])

    def told(code: int) -> Exception:
        for task in tasks[:deleted]:
            queue.delete(db, task)
        return error(code)

    engine.error = told  # type: ignore[assignment]  # made as the class is
    scripted(engine, (COMMIT_UNKNOWN, True))
    assert [task.data for task in queue.take_many(unsure, 2)] == taken
    assert queue.statistics(db)["tasks"]["ready"] == len({"c"} - {*taken})


def test_a_failed_registration_is_withdrawn_in_one_transaction(
    faults: tuple[Database, FaultyEngine], space: Subspace
) -> None:
    """After a failed commit the next one may take as long: a caller that gives up waits for one."""
    db, engine = faults
    queue = Queue(space[0], root=space[1])
    queue.enqueue(db, "a")
    lost, unknown = [(NOT_COMMITTED, False)] * 2, [(COMMIT_UNKNOWN, False)] * 3
    scripted(engine, *lost, *unknown, (TRANSACTION_TOO_LARGE, False))
    before = engine.commits
    with pytest.raises(engine.error):
        queue.dequeue(db)
    assert engine.commits - before == len(lost) + len(unknown) + 1 + 1
    assert queue.items(db, 10) == ["a"]


@pytest.mark.parametrize("code", [NOT_COMMITTED, COMMIT_UNKNOWN])
def test_an_interrupt_ends_a_call_whose_commit_then_fails(
    faults: tuple[Database, FaultyEngine], space: Subspace, code: int
) -> None:
    """The call waits for the result, and makes no other attempt."""
    db, engine = faults
    queue = Queue(space[0], root=space[1])

    def fate(wait: int) -> tuple[int, bool]:
        if wait == 1:
            raise KeyboardInterrupt
        return (code, False) if wait == 2 else (0, True)

    engine.fate = fate
    with pytest.raises(KeyboardInterrupt):
        queue.enqueue(db, "a")
    assert queue.items(db, 10) == []


def test_a_call_repeats_nothing_of_its_interrupted_leader(
    faults: tuple[Database, FaultyEngine], space: Subspace
) -> None:
    """The commit of the leader, with an unknown result, may have had the effect of its followers as well."""
    db, engine = faults
    key, outcomes = space["calls"].key(), dict[str, Any]()

    def write(tr: Any, items: list[Any], random: bytes) -> list[Any]:  # noqa: ARG001
        tr.add(key, bytes((len(items),)))
        return items

    def call(name: str) -> None:
        try:
            outcomes[name] = together.call([name], 1, 1).answer
        except BaseException as error:
            outcomes[name] = error

    def are_pending(count: int) -> bool:
        return len(together._pending) == count

    def fate(wait: int) -> tuple[int, bool]:
        if wait == 1:
            for number, caller in enumerate(callers, start=1):
                caller.start()
                wait_until(partial(are_pending, number))
        if wait == 2:
            raise KeyboardInterrupt
        return (COMMIT_UNKNOWN if wait == 3 else 0), True

    together = writes(db, RootKeys(space[1]), write, is_plain=False)
    callers = [threading.Thread(target=call, args=(name,)) for name in ("leader", "follower")]
    engine.fate = fate
    call("first")
    for caller in callers:
        caller.join(PATIENCE_S)
    assert (outcomes["first"], type(outcomes["leader"])) == (["first"], KeyboardInterrupt)
    assert outcomes["follower"].code == COMMIT_UNKNOWN
    assert engine.engine[key] == b"\x03"


def test_an_interrupt_of_a_retry_leaves_its_call_in_doubt(
    faults: tuple[Database, FaultyEngine], space: Subspace
) -> None:
    """The attempt before it may still commit: callers that share it must not repeat its effect."""
    db, engine = faults
    attempts, doubts = itertools.count(1), list[Any]()

    def body(tr: Any) -> None:
        if next(attempts) == 2:
            raise KeyboardInterrupt
        tr.set(space.pack(("x",)), b"")

    scripted(engine, (COMMIT_UNKNOWN, False))
    with pytest.raises(KeyboardInterrupt):
        run_once(db, RootKeys(space), body, doubt=doubts.append)
    assert [error.code for error in doubts] == [COMMIT_UNKNOWN]


def test_many_clients_with_failing_commits(
    db: Database, fdb_module: ModuleType, space: Subspace, rounds: Callable[[int, int], int]
) -> None:
    """Puts, polls and waits of six clients, two threads each; every third commit meets a fate."""
    items, taken = rounds(30, 500), []
    queue = Queue(space[0], root=space[1])
    fates = [(COMMIT_UNKNOWN, True), (COMMIT_UNKNOWN, False), (NOT_COMMITTED, False)]

    def work(client: Database, number: int) -> None:
        for item in range(items):
            queue.enqueue(client, number * items + item)
            taken.append(queue.dequeue(client, timeout=0 if item % 2 else 0.01))
        while (value := queue.dequeue(client, timeout=0.2)) is not None:
            taken.append(value)

    threads = []
    for number in range(6):
        client, engine = faulty(db, fdb_module.FDBError)
        engine.fate = lambda _: random.choice(fates) if random.random() < 0.3 else (0, True)
        threads += [
            db.runtime.spawn(lambda c=client, n=2 * number + half: work(c, n), "client") for half in (0, 1)
        ]
    for thread in threads:
        thread.join(PATIENCE_S * 5)
        assert not thread.is_alive()
    assert sorted(value for value in taken if value is not None) == list(range(12 * items))
    assert queue.size(db) == 0


def test_a_consumed_item_is_not_enqueued_again_by_a_retry(
    faults: tuple[Database, FaultyEngine], space: Subspace, db: Database
) -> None:
    """Why "is my item's key there?" is no receipt."""
    flaky, engine = faults
    queue = Queue(space[0], root=space[1])
    taken: list[Any] = []

    def fate(commit: int) -> tuple[int, bool]:
        if commit == 2:  # the retry, which reads the slot, has not committed yet
            taken.append(queue.dequeue(db))
        return (COMMIT_UNKNOWN, True) if commit == 1 else (0, True)

    engine.fate = fate
    queue.enqueue(flaky, "a")
    assert taken == []  # the retry found its receipt before it came to commit
    assert queue.dequeue(db) == "a"
    assert queue.dequeue(db) is None


def test_a_conflict_after_an_unknown_result_is_not_yielded(
    faults: tuple[Database, FaultyEngine], space: Subspace
) -> None:
    """The unknown attempt may have caused the conflict: a caller that begins anew would repeat its effect."""
    db, engine = faults
    scripted(engine, (COMMIT_UNKNOWN, False), (NOT_COMMITTED, False))
    run_once(db, RootKeys(space), lambda tr: tr.add(space["n"].key(), b"\x01"), yield_to_conflict=True)
    assert (engine.engine[space["n"].key()], engine.commits) == (b"\x01", 3)


def test_after_an_unknown_result_an_answer_of_nothing_is_written(
    faults: tuple[Database, FaultyEngine], space: Subspace
) -> None:
    """Its receipt makes the unknown attempt fail, if that arrives later."""
    db, engine = faults
    scripted(engine, (COMMIT_UNKNOWN, False))
    answers = iter([True, False])
    run_once(db, RootKeys(space), lambda _: next(answers), wrote=bool)
    receipts = RootKeys(space).receipts
    assert len(list(engine.engine.get_range(receipts.start, receipts.stop))) == 1


def test_successive_calls_share_a_slot_and_closing_clears_it(
    db: Database, fdb_module: ModuleType, space: Subspace
) -> None:
    other, _ = faulty(db, fdb_module.FDBError)
    queue, root = Queue(space[0], root=space[1]), RootKeys(space[1])
    for number in range(5):
        queue.enqueue(other, number)
        queue.dequeue(other)
    assert len(receipts(db, root)) == 1
    other.close()
    assert receipts(db, root) == []


def test_closing_clears_the_slot_of_a_single_call(
    db: Database, fdb_module: ModuleType, space: Subspace
) -> None:
    other, _ = faulty(db, fdb_module.FDBError)
    Queue(space[0], root=space[1]).enqueue(other, 1)
    other.close()
    assert receipts(db, RootKeys(space[1])) == []


def test_closing_clears_slots_of_the_dead(db: Database, fdb_module: ModuleType, space: Subspace) -> None:
    db.set(RootKeys(space).receipt(b"dead", 1), ATTEMPT.pack(0, 1))
    with faulty(db, fdb_module.FDBError)[0] as other:
        run_once(other, RootKeys(space), lambda tr: tr.set(space.pack(("x",)), b""))
    assert receipts(db, RootKeys(space)) == []


def test_a_call_that_failed_keeps_its_slot(db: Database, space: Subspace, fdb_module: ModuleType) -> None:
    """Its last attempt may still be under way, and must not overwrite the receipt of the slot's next user."""
    root = RootKeys(space)
    other, engine = faulty(db, fdb_module.FDBError)
    scripted(engine, (4100, True))
    with pytest.raises(fdb_module.FDBError):
        run_once(other, root, lambda tr: tr.set(space.pack(("x",)), b""))
    run_once(other, root, lambda tr: tr.set(space.pack(("x",)), b""))
    assert len(receipts(db, root)) == 2


def test_a_call_that_yields_to_a_conflict_leaves_its_slot(
    db: Database, space: Subspace, fdb_module: ModuleType
) -> None:
    """The conflict has changed nothing, so the next call may use the slot."""
    root, (other, engine) = RootKeys(space), faulty(db, fdb_module.FDBError)
    for _ in range(3):
        run_once(other, root, lambda tr: tr.set(space.pack(("x",)), b""))
        scripted(engine, (NOT_COMMITTED, False))
        with pytest.raises(LostConflict):
            run_once(other, root, lambda tr: tr.set(space.pack(("x",)), b""), yield_to_conflict=True)
    assert len(receipts(db, root)) == 1


def test_a_call_raises_the_error_that_ended_its_retries(
    faults: tuple[Database, FaultyEngine], space: Subspace
) -> None:
    """An unknown result before it does not hide it."""
    db, engine = faults
    scripted(engine, (COMMIT_UNKNOWN, False), (TRANSACTION_TOO_LARGE, False))
    with pytest.raises(engine.error) as raised:
        Queue(space[0], root=space[1]).enqueue(db, "a")
    assert raised.value.code == TRANSACTION_TOO_LARGE  # type: ignore[attr-defined]  # of either engine


def test_a_call_with_a_failed_body_leaves_its_slot_to_the_next(db: Database, space: Subspace) -> None:
    """None of its attempts was committed: failing calls do not fill the database with receipts."""
    root = RootKeys(space[1])
    for _ in range(5):
        run_once(db, root, lambda tr: tr.set(space.pack(("x",)), b""))
        with pytest.raises(ZeroDivisionError):
            run_once(db, root, lambda _: 1 // 0)
    assert len(receipts(db, root)) == 1


def test_a_body_that_fails_after_a_sure_failure_leaves_its_slot(
    db: Database, space: Subspace, fdb_module: ModuleType
) -> None:
    """The commit of the first attempt was too old, so no attempt is in doubt."""
    root, (other, engine) = RootKeys(space), faulty(db, fdb_module.FDBError)
    for _ in range(3):
        attempts = iter([1, 0])
        run_once(other, root, lambda tr: tr.set(space.pack(("x",)), b""))
        scripted(engine, (TOO_OLD, False))
        with pytest.raises(ZeroDivisionError):
            run_once(other, root, lambda _, attempts=attempts: 1 // next(attempts))
    assert len(receipts(db, root)) == 1


def test_a_full_disk_keeps_no_database_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clearing the slots is best effort, and the engine is to be closed in any case."""
    database = fdbqueue.open(f"embedded:{tmp_path}")
    Queue(Subspace(("q",))).enqueue(database, 1)

    def no_room(*_: Any) -> None:
        raise no_room(str(tmp_path))

    monkeypatch.setattr(commit, "_apply_one", no_room)
    database.close()
    assert database.closed


def test_reading_leaves_no_receipt(db: Database, space: Subspace) -> None:
    queue, root = Queue(space[0], root=space[1]), RootKeys(space[1])
    assert queue.dequeue(db) is None
    assert queue.dequeue_many(db, 5) == []
    assert receipts(db, root) == []


def test_sweeping_clears_slots_that_are_a_day_old_and_no_others(db: Database, space: Subspace) -> None:
    root = RootKeys(space)
    now_us = 10**15
    day_us = round(limits.RECEIPT_STALE_S * 1_000_000)
    db.set(root.receipt(b"dead", 1), ATTEMPT.pack(now_us - day_us - 1, 1))
    db.set(root.receipt(b"live", 1), ATTEMPT.pack(now_us - day_us + 1, 1))
    tr = db.create_transaction()
    assert sweep(tr, root, now_us, root.receipts.start) == 1
    tr.commit().wait()
    assert [key for key, _ in receipts(db, root)] == [root.receipt(b"live", 1)]


def test_a_stale_slot_behind_many_live_ones_is_swept(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sweeps that all began at the first slot would never see it."""
    monkeypatch.setattr(limits, "RECEIPTS_SWEPT_MAX", 2)
    root, now_us = RootKeys(space), 10**15
    slots = [root.receipt(b"%d" % number, 1) for number in range(5)]
    for stale in slots:
        for slot in slots:
            db.set(slot, ATTEMPT.pack(0 if slot == stale else now_us, 1))
        swept = [run(db, partial(sweep, keys=root, now_us=now_us, place=place)) for place in slots]
        assert sum(swept) == 1


@pytest.mark.parametrize("stale_share", [1, 2])
def test_the_number_of_stale_receipts_is_estimated(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch, stale_share: int
) -> None:
    root, now_us, number = RootKeys(space), 10**15, 512
    asked = partial(run, db)

    def counted(place: bytes) -> int:
        return asked(lambda tr: once.ask_stale_number(tr.snapshot, root, now_us, place)())

    assert counted(b"place") == 0
    for at in range(number):  # even names
        stamp = 0 if at % stale_share == 0 else now_us
        db.set(root.receipt((at * 2**64 // number).to_bytes(8, "big"), 1), ATTEMPT.pack(stamp, 1))
    for place in (bytes(8), b"\x80" * 8, b"\xf0" * 8):
        assert counted(place) == pytest.approx(number / stale_share, rel=0.1)
    monkeypatch.setattr(limits, "RECEIPTS_SWEPT_MAX", number + 1)
    assert counted(b"place") == number / stale_share


def test_a_sweep_clears_a_bounded_number_of_slots(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RECEIPTS_SWEPT_MAX", 2)
    root = RootKeys(space)
    slots = [root.receipt(b"%d" % number, 1) for number in range(6)]
    for slot in slots:
        db.set(slot, ATTEMPT.pack(0, 1))
    assert run(db, partial(sweep, keys=root, now_us=10**15, place=slots[3])) == 2
    assert [slot for slot, _ in receipts(db, root)] == [*slots[:3], slots[5]]


def test_a_sweep_conflicts_with_a_call_that_uses_its_slot(db: Database, space: Subspace) -> None:
    """The fresh receipt would go with the stale one, and a retry would repeat the effect."""
    root, now_us = RootKeys(space), 10**15
    slot = root.receipt(b"idle", 1)
    db.set(slot, ATTEMPT.pack(0, 1))
    tr = db.create_transaction()
    assert sweep(tr, root, now_us, root.receipts.start) == 1
    db.set(slot, ATTEMPT.pack(now_us, 2))
    assert commit_code(tr) == NOT_COMMITTED


def test_a_sweep_clears_receipts_only(db: Database, space: Subspace) -> None:
    """Another program may use this root."""
    root = RootKeys(space)
    db.set(root.receipts.start + b"foreign", ATTEMPT.pack(0, 1))
    db.set(root.receipt(b"other", 1), ATTEMPT.pack(0, 1) + b"more")
    assert run(db, partial(sweep, keys=root, now_us=10**15, place=root.receipts.start)) == 0
    assert len(receipts(db, root)) == 2


def test_a_receipt_is_stale_after_a_day() -> None:
    assert is_stale(ATTEMPT.pack(0, 1), 10**15)
    assert not is_stale(ATTEMPT.pack(10**15, 1), 10**15)


def test_a_forked_process_has_slots_of_its_own(
    db: Database, fdb_module: ModuleType, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = faulty(db, fdb_module.FDBError, RealRuntime())
    queue = Queue(space[0], root=space[1])
    queue.enqueue(client, "parent")
    monkeypatch.setattr(client.runtime, "process_id", lambda: 1)
    queue.enqueue(client, "child")
    assert len(receipts(db, RootKeys(space[1]))) == 2


def test_an_error_of_the_body_is_raised_and_nothing_is_written(db: Database, space: Subspace) -> None:
    Queue(space[0], codec="bytes", root=space[1]).enqueue(db, b"{")
    with pytest.raises(PayloadUnreadable):
        Queue(space[0], codec="json", root=space[1]).dequeue(db)
    assert Queue(space[0], codec="bytes", root=space[1]).dequeue(db) == b"{"


def test_the_clock_of_a_receipt_is_the_runtimes(
    db: Database, space: Subspace, fdb_module: ModuleType
) -> None:
    clocked, _ = faulty(db, fdb_module.FDBError, ManualClock(7.0))
    Queue(space[0], root=space[1]).enqueue(clocked, 1)
    ((_, value),) = receipts(db, RootKeys(space[1]))
    assert ATTEMPT.unpack(value)[0] == 7_000_000


def receipts(db: Database, root: RootKeys) -> list[tuple[bytes, bytes]]:
    return [(row.key, row.value) for row in db.get_range(root.receipts.start, root.receipts.stop)]
