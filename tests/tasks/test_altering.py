"""Options of a living queue: every call after a change goes by the new values, and no limit is exceeded."""

import json
import math
import threading
import time
from functools import partial
from typing import Any

import msgspec
import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Backoff, Database, Failure, Task, TaskQueue, TaskState, aio, transactional, verify
from fdbqueue.core.database import run
from fdbqueue.core.errors import (
    AlterNotCommitted,
    DefinitionUnreadable,
    InvalidArgument,
    QueueDropped,
    QueueFull,
    UnsupportedOption,
)
from fdbqueue.core.limits import ALTERATIONS_MAX
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.registry import Registry
from fdbqueue.tasks.calls import Put
from tests.aio.support import on_loop
from tests.conftest import DURABLE
from tests.queue_support import faulty, in_threads
from tests.spawned import crew
from tests.support import NOT_COMMITTED, begin, commit_code, wait_until
from tests.tasks.partitions import MakeParted, PartitionsBench

COMMIT_UNKNOWN = 1021
TTR = 90.0


def twin_of(other: Database, space: Subspace) -> TaskQueue:
    """The queue as another process has opened it."""
    return TaskQueue.open(other, "q", root=space)


def lease_s(task: Task | None) -> float:
    """How long the lease of a task lasts that has just been taken."""
    assert task is not None
    return round((task.until or 0) - (task.taken or 0), 1)


def stored_options(db: Database, space: Subspace) -> dict[str, Any]:
    return dict(Registry(space).find(db, "q").options)


# The defaults of tasks.


def test_tasks_that_are_put_later_have_the_new_values(db: Database, other: Database, space: Subspace) -> None:
    """Those that are there keep theirs. Old handles follow, given a database and given a transaction."""
    queue = TaskQueue.create(db, "q", "fifottl", ttr=5, root=space)
    twin = twin_of(other, space)
    twin.put(other, "before")
    queue.alter(db, ttr=TTR, ttl=500, pri=7)
    put_within = transactional(twin.put)
    later = [twin.put(other, 1), put_within(other, 2), *twin.put_many(other, [3])]
    assert lease_s(twin.take(other, 0)) == 5
    assert {task.pri for task in later} == {7}
    assert all(task.expires == pytest.approx(task.created + 500, abs=0.001) for task in later)
    assert lease_s(twin.take(other, 0)) == TTR


def test_a_handle_that_is_used_first_after_the_change_follows(
    db: Database, other: Database, space: Subspace
) -> None:
    """It has services of its own, as its data have a type; other handles of the process know the change."""
    queue = TaskQueue.create(db, "q", "fifottl", ttr=5, root=space)
    twin = twin_of(other, space)
    typed = TaskQueue.open(other, "q", type=int, root=space)
    queue.alter(db, ttr=TTR)
    twin.put(other, 1)
    twin.take(other, 0)
    typed.put(other, 2)
    assert lease_s(typed.take(other, 0)) == TTR


def test_a_put_with_options_of_its_own_keeps_them(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.alter(db, ttl=500, pri=7)
    task = queue.put(db, 1, ttl=10, pri=0)
    assert (task.pri, task.expires) == (0, pytest.approx(task.created + 10, abs=0.001))


def test_without_a_ttr_a_lease_lasts_for_the_ttl(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", ttr=5, ttl=50, root=space)
    queue.alter(db, ttr=None)
    queue.put(db, "as the ttl")
    assert queue.alter(db, ttr=float("inf")).changes["ttr"][0] is None
    queue.put(db, "for ever", ttl=float("inf"))
    taken = queue.take_many(db, 2)
    lasts = [None if one.until is None else one.until - one.created for one in taken]
    assert lasts == [pytest.approx(50), None]


def test_a_debounced_task_gets_the_values_in_force(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", ttl=10, root=space)
    queue.put(db, 1, unique="k", delay=100)
    queue.alter(db, ttl=1_000)
    queue.put(db, 2, unique="k", on_conflict="replace")
    [task] = queue.tasks(db, "~", 10)
    assert task.expires == pytest.approx(task.created + 100 + 1_000, abs=60)


# The capacity.


@pytest.mark.parametrize("options", [{}, {"unique": "k"}, {"headers": {"a": "b"}}], ids=str)
def test_a_queue_gets_a_capacity(
    db: Database, other: Database, space: Subspace, options: dict[str, Any]
) -> None:
    """Handles that know none are refused by the first put already."""
    queue = TaskQueue.create(db, "q", "limfifottl", root=space)
    twin = twin_of(other, space)
    twin.put_many(other, range(3))
    queue.alter(db, capacity=2)
    for _ in range(2):
        with pytest.raises(QueueFull):
            twin.put(other, "one too many", **options)
    with pytest.raises(QueueFull):
        transactional(twin.put)(other, "one too many", **options)
    assert queue.statistics(db)["tasks"]["ready"] == 3


def test_a_put_whose_bound_goes_meanwhile_finds_room(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread of the process follows the change between two reads of the put."""
    queue, ask, left = TaskQueue.create(db, "q", "limfifottl", capacity=5, root=space), Put.ask_guard, [1]

    def ask_guard(self: Put) -> Any:
        check = ask(self)

        def reply() -> None:
            check()
            if left:
                left.clear()
                queue.alter(db, capacity=None)

        return reply

    monkeypatch.setattr(Put, "ask_guard", ask_guard)
    transactional(queue.put)(db, "x")
    assert (left, queue.statistics(db)["tasks"]["ready"]) == ([], 1)


def test_stored_tasks_outlive_a_smaller_capacity(db: Database, other: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "limfifottl", capacity=9, root=space)
    twin = twin_of(other, space)
    twin.put_many(other, range(6))
    queue.alter(db, capacity=2)
    done = []
    for _ in range(6):
        task = queue.take(db, 0)
        assert task is not None
        done.append(queue.ack(db, task).data)
        left = 6 - len(done)
        if left >= 2:
            with pytest.raises(QueueFull):
                twin.put(other, "no")
    twin.put_many(other, ["yes", "yes"])
    with pytest.raises(QueueFull):
        twin.put(other, "no")
    assert done == [*range(6)]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("capacity", [2, None])
def test_a_larger_capacity_lets_a_waiting_put_go_on(
    db: Database, other: Database, space: Subspace, capacity: int | None, partitions: int
) -> None:
    queue = TaskQueue.create(db, "q", "limfifottl", capacity=1, partitions=partitions, root=space)
    twin = twin_of(other, space)
    twin.put(other, 1)
    took = list[float]()

    def put() -> None:
        began = time.monotonic()
        twin.put(other, 2, timeout=600)
        took.append(time.monotonic() - began)

    waiting = threading.Thread(target=put)
    waiting.start()
    wait_until(lambda: bool(other.waiters.inside))
    queue.alter(db, capacity=capacity)
    waiting.join(60)
    assert len(took) == 1
    assert queue.statistics(db)["tasks"]["ready"] == 2


def test_a_change_wakes_waiting_puts_of_each_partition(parted: MakeParted) -> None:
    b = parted("limfifottl", partitions=3, capacity=1)
    ask = partial(b.db.get, b.queue._shape.shared.room)
    before = ask()
    b.queue.alter(b.db, capacity=2)
    assert ask() != before


# Task keys.


def of_key(b: PartitionsBench, queue: TaskQueue | None = None, count: int = 9) -> list[Any]:
    taken = (queue or b.queue).take_many(b.db, count, session=b.session)
    return [task.data for task in taken]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_larger_key_concurrency_lets_held_keys_go_on_at_once(parted: MakeParted, partitions: int) -> None:
    b = parted("utube", partitions=partitions)
    for number in range(6):
        b.put(number, key="a")
    assert of_key(b) == [0]
    assert b.queue.alter(b.db, key_concurrency=3).changes == {"key_concurrency": (1, 3)}
    assert of_key(b) == [1, 2]
    assert verify(b.db, b.queue, root=b.root).findings == ()


@pytest.mark.parametrize("partitions", [1, 3])
def test_leases_outlive_a_smaller_key_concurrency(parted: MakeParted, partitions: int) -> None:
    b = parted("utube", partitions=partitions, key_concurrency=3)
    twin = b.other_process()
    for number in range(9):
        b.put(number, key="a")
    taken = twin.take_many(b.db, 2, session=b.session)
    b.queue.alter(b.db, key_concurrency=1)
    b.put("b", key="b")
    assert of_key(b, twin) == ["b"]
    b.queue.ack(b.db, taken[0])
    assert of_key(b, twin) == []
    b.queue.ack(b.db, taken[1])
    assert of_key(b, twin) == [2]
    assert verify(b.db, b.queue, root=b.root).findings == ()


@pytest.fixture
def unfitted(parted: MakeParted) -> PartitionsBench:
    """Two task keys with three tasks each, one taken, and a change that no process has fitted them to."""
    b = parted("utube", key_concurrency=2)
    for number in range(6):
        b.put(number, key=number % 2)
    assert of_key(b, count=2) == [0, 1]
    return b


def alter_only(b: PartitionsBench, **options: Any) -> None:
    """As given a transaction: no step of this call follows."""
    transactional(b.queue.alter)(b.db, **options)
    assert stored_option(b, "settling") is not None


def stored_option(b: PartitionsBench, name: str) -> Any:
    return Registry(b.root).find(b.db, "bench").options.get(name)


def test_no_take_follows_a_pointer_that_is_not_fitted_yet(unfitted: PartitionsBench) -> None:
    b = unfitted
    alter_only(b, key_concurrency=1)
    b.put("free", key="free")
    assert of_key(b, b.other_process(), 1) == ["free"]
    assert of_key(b, b.other_process()) == []
    assert verify(b.db, b.queue, root=b.root).findings == ()


def test_a_put_before_the_fit_does_not_overtake_its_key(unfitted: PartitionsBench) -> None:
    """A pointer is missing, though the key has room and earlier tasks."""
    b = unfitted
    assert of_key(b, count=2) == [2, 3]
    alter_only(b, key_concurrency=3)
    assert verify(b.db, b.queue, root=b.root).findings == ()
    b.put(6, key=0)
    assert of_key(b) == [4]


def test_any_process_fits_the_keys(unfitted: PartitionsBench) -> None:
    b = unfitted
    assert of_key(b, count=2) == [2, 3]
    alter_only(b, key_concurrency=3)
    b.settle()
    assert stored_option(b, "settling") is None
    assert of_key(b) == [4, 5]
    assert verify(b.db, b.queue, root=b.root).findings == ()


def test_a_second_change_begins_the_fit_anew(unfitted: PartitionsBench) -> None:
    b = unfitted
    alter_only(b, key_concurrency=1)
    alter_only(b, key_concurrency=2)
    b.queue.alter(b.db, key_concurrency=1)
    assert of_key(b) == []
    b.queue.alter(b.db, key_concurrency=2)
    assert of_key(b) == [2, 3]


def test_a_restored_change_takes_all_its_steps_again(unfitted: PartitionsBench) -> None:
    """A process that has taken them knows that number of a change already."""
    b = unfitted
    alter_only(b, key_concurrency=1)
    backup = list(b.db.get_range_startswith(b.root.key()))
    b.settle()
    assert stored_option(b, "settling") is None

    def restore(tr: Any) -> None:
        tr.clear_range_startswith(b.root.key())
        for key, value in backup:
            tr[key] = value

    run(b.db, restore)
    b.settle()
    assert stored_option(b, "settling") is None
    assert of_key(b) == []
    assert verify(b.db, b.queue, root=b.root).findings == ()


def test_a_change_of_another_option_leaves_the_fit_under_way(unfitted: PartitionsBench) -> None:
    b = unfitted
    alter_only(b, key_concurrency=1)
    alter_only(b, retain_s=60)
    assert of_key(b, b.other_process()) == []
    b.settle()
    assert stored_option(b, "settling") is None


def test_a_waiting_take_gets_the_next_task_of_a_held_key(
    db: Database, other: Database, space: Subspace
) -> None:
    queue = TaskQueue.create(db, "q", "utube", root=space)
    twin = twin_of(other, space)
    for number in range(2):
        queue.put(db, number, key="a")
    queue.take(db, 0)
    got = list[Any]()

    def take() -> None:
        task = twin.take(other, 600)
        got.append(task and task.data)

    waiting = threading.Thread(target=take)
    waiting.start()
    wait_until(lambda: "waiting" in queue.busy(db))
    queue.alter(db, key_concurrency=2)
    waiting.join(60)
    assert got == [1]


def test_other_weights_give_other_rounds(db: Database, other: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fair", root=space)
    twin = twin_of(other, space)
    for number in range(8):
        twin.put(other, f"a{number}", key="a")
        twin.put(other, f"b{number}", key="b")
    queue.alter(db, weights={"a": 3})
    assert queue.options["weights"] == {"a": 3}
    taken = [task.data[0] for task in twin.take_many(other, 8)]
    assert taken.count("a") == 6
    assert queue.alterations(db)[0].changes == {"weights": ("none", "a:3")}


# Attempts and backoff.


def failed(db: Database, queue: TaskQueue) -> Task:
    task = queue.take(db, 0)
    assert task is not None
    return queue.release(db, task, failure=Failure("Busy"))


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_release_with_a_failure_goes_by_the_attempts_in_force(
    db: Database, other: Database, space: Subspace, partitions: int
) -> None:
    """Also for a task that is there. One that was put with attempts of its own keeps them."""
    queue = TaskQueue.create(db, "q", "fifottl", attempts=1, partitions=partitions, root=space)
    twin = twin_of(other, space)
    queue.put(db, 1, attempts=2)
    assert failed(other, twin).state == TaskState.READY
    assert failed(other, twin).state == TaskState.BURIED
    queue.put(db, 2)
    assert queue.alter(db, attempts=math.inf).changes == {"attempts": (1, "inf")}
    assert failed(other, twin).state == TaskState.READY
    assert queue.alter(db, attempts=2).changes == {"attempts": ("inf", 2)}
    [waits] = twin.tasks(other, TaskState.READY, 10)
    told = twin.explain(other, waits)
    assert (told.attempts_max, told.attempts_from) == (2, "queue")
    assert failed(other, twin).state == TaskState.BURIED
    assert queue.alter(db, attempts=None).changes == {"attempts": (2, None)}
    queue.put(db, 3)
    assert [failed(other, twin).state for _ in range(9)] == [TaskState.READY] * 9
    assert "attempts" not in {*queue.options, *twin.options}
    assert verify(db, queue, root=space).findings == ()


def test_a_release_with_a_failure_waits_for_the_backoff_in_force(
    db: Database, other: Database, space: Subspace
) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    twin = twin_of(other, space)
    twin.put(other, 1)
    assert failed(other, twin).state == TaskState.READY
    backoff = Backoff(1_000, cap_s=9_000)
    assert queue.alter(db, backoff=backoff).changes == {"backoff": (None, "1000,9000")}
    assert queue.alter(db, backoff=backoff).changes == {}
    assert queue.options["backoff"] == backoff
    assert failed(other, twin).state == TaskState.DELAYED
    assert queue.alter(db, backoff=None).changes == {"backoff": ("1000,9000", None)}
    twin.put(other, 2)
    assert failed(other, twin).state == TaskState.READY
    assert "backoff" not in stored_options(db, space)
    assert queue.alterations(db)[0].changes == {"backoff": ("1000,9000", None)}


# Retention.


def test_ended_tasks_are_kept_from_the_change_on(db: Database, other: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    twin = twin_of(other, space)

    def end(data: int) -> None:
        twin.put(other, data)
        task = twin.take(other, 0)
        assert task is not None
        twin.ack(other, task)

    end(1)
    queue.alter(db, retain_s=1_000)
    end(2)
    assert len(twin.ended_tasks(other, 10)) == 1
    queue.alter(db, retain_s=None)
    with pytest.raises(UnsupportedOption):
        twin.ended_tasks(other, 10)
    queue.alter(db, retain_s=1_000)
    assert twin.ended_tasks(other, 10) == []
    assert verify(db, queue, root=space).findings == ()


# Refusals.


@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "fifottl"},
        {"codec": "bytes"},
        {"root": Subspace(("other",))},
        {"partitions": 3},
        {"limits": ["calls"]},
        {"task_limits": ["calls"]},
        {"temporary": True},
        {"capacity": 3},
        {"capacity": None},
        {"key_concurrency": 3},
        {"weights": {"a": 1}},
    ],
    ids=str,
)
def test_an_option_that_cannot_change_is_refused(
    db: Database, space: Subspace, kind: str, options: dict[str, Any]
) -> None:
    queue = TaskQueue.create(db, "q", kind, root=space)
    before = stored_options(db, space)
    with pytest.raises(UnsupportedOption) as refused:
        queue.alter(db, **options)
    assert "Instead" in str(refused.value) or " do" in str(refused.value)
    assert (stored_options(db, space), queue.alterations(db)) == (before, [])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ttl": 0},
        {"ttr": -1},
        {"ttl": float("nan")},
        {"pri": -1},
        {"pri": "high"},
        {"capacity": -1},
        {"capacity": 1.5},
        {"retain_s": 0},
        {"retain_s": float("inf")},
        {"result_ttl": 0},
        {"result_ttl": "soon"},
        {"attempts": 0},
        {"attempts": 2.5},
        {"attempts": "many"},
        {"backoff": 5},
        {"backoff": (1, 2, 3)},
        {"tttl": 5},
        {"ttr": 5, "pri": "high"},
    ],
    ids=str,
)
def test_nonsense_is_refused_before_anything_is_written(
    db: Database, space: Subspace, options: dict[str, Any]
) -> None:
    queue = TaskQueue.create(db, "q", "limfifottl", root=space)
    before = stored_options(db, space)
    with pytest.raises(InvalidArgument):
        queue.alter(db, **options)
    assert (stored_options(db, space), queue.alterations(db)) == (before, [])


def test_a_dropped_queue_is_not_altered(db: Database, space: Subspace) -> None:
    old = TaskQueue.create(db, "q", "fifottl", root=space)
    old.drop(db)
    with pytest.raises(QueueDropped):
        old.alter(db, ttr=5)
    later = TaskQueue.create(db, "q", "fifottl", root=space)
    with pytest.raises(QueueDropped):
        old.alter(db, ttr=5)
    assert later.options["ttr"] is None


def test_an_option_of_a_newer_release_is_not_passed_over(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.put(db, 1)
    found = Registry(space).find(db, "q")
    key = Registry(space).keys.definition("q")
    options = {**found.options, "ttl": 5, "warp": 9}
    db[key] = type(found)(found.name, found.id, found.kind, options, found.version).to_bytes()
    for _ in range(2):
        with pytest.raises(DefinitionUnreadable, match="warp"):
            queue.put(db, 2)


# Transactions.


def test_two_changes_at_once_merge_or_conflict(db: Database, other: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "limfifottl", root=space)
    twin = twin_of(other, space)
    lost = begin(other)
    twin.alter(lost, capacity=3)
    queue.alter(db, ttr=5)
    assert commit_code(lost) == NOT_COMMITTED
    in_threads(2, lambda n: (queue, twin)[n].alter((db, other)[n], **({"ttl": 50}, {"capacity": 4})[n]))
    found = stored_options(db, space)
    assert (found["ttr"], found["ttl"], found["capacity"]) == (5, 50, 4)
    assert len(queue.alterations(db)) == 3


def test_a_call_that_went_by_the_old_value_does_not_commit(
    db: Database, other: Database, space: Subspace
) -> None:
    queue = TaskQueue.create(db, "q", "limfifottl", root=space)
    twin = twin_of(other, space)
    put = begin(other)
    twin.put(put, 1)
    queue.alter(db, capacity=1)
    assert commit_code(put) == NOT_COMMITTED


def test_a_change_happens_with_its_transaction(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.alter(begin(db), ttr=5)  # it never commits
    assert queue.options["ttr"] is None

    @transactional(retry_limit=9)
    def body(tr: Any) -> None:
        queue.alter(tr, ttr=5)
        queue.put(tr, 1)

    with pytest.raises(AlterNotCommitted, match="'q'"):
        body(db)
    assert stored_options(db, space)["ttr"] is None


@pytest.mark.parametrize("committed", [True, False])
def test_a_change_of_unknown_result_is_made_once(
    db: Database, space: Subspace, fdb_module: Any, engine: str, committed: bool
) -> None:
    if engine == "fdb":
        pytest.skip("the binding refuses a conflict that is raised in a wrapped transaction")
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    unsure, wrapped = faulty(db, fdb_module.FDBError)
    twin = TaskQueue.open(unsure, "q", root=space)
    wrapped.fate = lambda number: (COMMIT_UNKNOWN, committed) if number == 1 else (0, True)
    assert twin.alter(unsure, ttr=5).changes == {"ttr": (None, 5.0)}
    assert len(queue.alterations(db)) == 1
    assert stored_options(db, space)["ttr"] == 5
    unsure.close()


# The history.


def test_the_last_changes_are_kept(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    for ttr in range(1, ALTERATIONS_MAX + 6):
        queue.alter(db, ttr=ttr)
    queue.alter(db, ttr=ALTERATIONS_MAX + 5)  # as before
    queue.truncate(db)
    found = queue.alterations(db)
    assert len(found) == ALTERATIONS_MAX
    assert found[0].changes == {"ttr": (float(ALTERATIONS_MAX + 4), float(ALTERATIONS_MAX + 5))}
    assert {one.by for one in found} == {f"{db.runtime.host_name()}:{db.runtime.process_id()}"}
    assert verify(db, queue, root=space).findings == ()


def test_parts_of_a_newer_release_stay_in_the_history(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    queue.alter(db, ttr=1)
    key = SharedKeys(queue.contents).altered
    db[key] = msgspec.msgpack.encode([*msgspec.msgpack.decode(db[key])[:-1], ["newer"]])
    queue.alter(db, ttr=2)
    assert msgspec.msgpack.decode(db[key])[-1] == ["newer"]
    assert len(queue.alterations(db)) == 2


# Processes, and asyncio.


def put_until_told(url: str, prefix: str, wanted: float) -> None:
    """Put tasks until one has the lease `wanted`; tell when."""
    root = Subspace((), bytes.fromhex(prefix))
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, "q", root=root)
        while True:
            queue.put(db, None)
            task = queue.take(db, 0)
            assert task is not None
            queue.ack(db, task)
            db[root["puts"].key()] = b"1"
            if lease_s(task) == wanted:
                db[root["met"].key()] = json.dumps(time.time()).encode()
                return


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_another_process_goes_by_the_new_value_within_a_second(
    url: str, db: Database, space: Subspace
) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", ttr=5, root=space)
    with crew() as working:
        working.spawn(put_until_told, url, space.key().hex(), TTR)
        wait_until(lambda: db[space["puts"].key()] is not None)
        queue.alter(db, ttr=TTR)
        altered = time.time()
        assert working.finish() == [0]
    assert json.loads(db[space["met"].key()]) - altered < 1


@on_loop
async def test_the_other_face_alters_alike() -> None:
    async with aio.open("memory:") as db:
        queue = await aio.TaskQueue.create(db, "q", "limfifottl", capacity=1)
        await queue.put(db, 1)
        waiting = queue.put(db, 2, timeout=60)
        assert (await queue.alter(db, capacity=2, ttr=TTR)).changes["capacity"] == (1, 2)
        await waiting
        changed = await queue.alter(db, attempts=2, backoff=Backoff(5))
        assert changed.changes == {"attempts": (None, 2), "backoff": (None, "5,600")}
        with pytest.raises(InvalidArgument):
            await queue.alter(db)
        with pytest.raises(InvalidArgument):
            await queue.alter(db, attempts=0)
        with pytest.raises(UnsupportedOption):
            await queue.alter(db, codec="bytes")
        assert len(await queue.alterations(db)) == 2
