"""Sweeps of groups: by any process, beside other changes, and around queues that a process cannot read."""

import threading
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, DeadLetters, Group, Queue, TaskQueue, TaskState, transactional
from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.errors import GroupTimeout, RecordUnreadable
from fdbqueue.core.page import every_row
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.group_settling import Settling
from fdbqueue.tasks.stored.records import id_bytes
from tests.conftest import ENGINES
from tests.queue_support import FATES, faulty
from tests.support import NOT_COMMITTED, PATIENCE_S, commit_code, wait_until
from tests.tasks.partitions import MakeParted, PartitionsBench, moving_key
from tests.tasks.support import SetLimits, StillClock


@pytest.fixture
def b(parted: MakeParted) -> PartitionsBench:
    return parted("fifottl", ttr=60)


def made(b: PartitionsBench, then: TaskQueue | None = None, **options: Any) -> Group:
    put = None if then is None else (then, "then")
    return Group.create(b.db, then=put, root=b.root, **options)


def settle(b: PartitionsBench, most: int = 20) -> None:
    """Sweep groups until nothing is left to do."""
    settling = Settling(b.db, RootKeys(b.root))
    for _ in range(most):
        transactional(settling.tidy)(b.db)
    assert not transactional(settling.tidy)(b.db)


def queue_of(b: PartitionsBench, name: str) -> TaskQueue:
    return TaskQueue.create(b.db, name, "fifottl", root=b.root)


def ready(b: PartitionsBench, queue: TaskQueue) -> list[Any]:
    return [task.data for task in queue.tasks(b.db, "r", 9)]


class Unreadable:
    """A queue whose definition a newer release has written, for the time of a block."""

    def __init__(self, b: PartitionsBench, name: str) -> None:
        self._db, self._key = b.db, RootKeys(b.root).definition(name)

    def __enter__(self) -> None:
        self._value = bytes(self._db[self._key])
        self._db[self._key] = b"\xff\xfe"

    def __exit__(self, *_: object) -> None:
        self._db[self._key] = self._value


@pytest.mark.parametrize("call", ["wait", "close", "cancel"])
def test_a_process_that_uses_a_group_sweeps_it(b: PartitionsBench, call: str) -> None:
    """The processes that put and end its members may be gone."""
    then = queue_of(b, "then")
    of, other = made(b, then), Database(b.db.engine, b.clock)
    if call == "wait":
        of.close(b.db)
        with pytest.raises(GroupTimeout):
            of.wait(other, 0)
    else:
        getattr(of, call)(other)
    for _ in range(3):
        b.clock.advance(fdbqueue.core.limits.SWEEP_EVERY_S)
        keeper_of(other, RootKeys(b.root)).tick()
    assert of.wait(b.db, 0).ended is not None
    assert ready(b, then) == ([] if call == "cancel" else ["then"])


def test_a_group_waits_for_a_queue_of_a_newer_release(b: PartitionsBench) -> None:
    """Its task of then is in that queue; another group, which sweeps find behind it, ends meanwhile."""
    odd, then = queue_of(b, "odd"), queue_of(b, "then")
    held = made(b, odd)
    while (other := made(b, then)).id < held.id:
        pass
    for of in (held, other):
        of.close(b.db)
    with Unreadable(b, "odd"):
        settle(b)
        assert (held.progress(b.db).ended, ready(b, then)) == (None, ["then"])
    settle(b)
    assert ready(b, odd) == ["then"]


def test_a_cancel_waits_for_a_queue_of_a_newer_release(b: PartitionsBench) -> None:
    """The cancel of another group, which sweeps find behind it, goes on meanwhile."""
    odd = queue_of(b, "odd")
    held, other = sorted([made(b), made(b)], key=lambda of: of.id)
    held.put(b.db, odd, 1)
    other.put(b.db, b.queue, 1)
    for of in (held, other):
        of.cancel(b.db)
    with Unreadable(b, "odd"):
        settle(b)
        assert (held.progress(b.db).left, other.progress(b.db).left) == (1, 0)
    settle(b)
    assert (held.progress(b.db).left, odd.statistics(b.db)["ends"]["cancelled"]) == (0, 1)


@pytest.mark.parametrize("fate", FATES)
def test_a_group_has_one_task_of_then_after_any_result(
    b: PartitionsBench, fdb_module: ModuleType, fate: str
) -> None:
    then = queue_of(b, "then")
    unsure, engine = faulty(b.db, fdb_module.FDBError, b.clock)
    engine.fate = FATES[fate]
    of = Group.create(unsure, then=(then, "then"), root=b.root)
    assert then.statistics(b.db)["tasks"]["total"] == 1
    of.close(b.db)
    settle(b)
    assert ready(b, then) == ["then"]


@pytest.mark.parametrize("change", ["close", "cancel"])
def test_a_change_of_a_group_ends_a_wait_for_progress(
    still_db: Database, clock: StillClock, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Without it, the wait would last until its next look."""
    of, sleep = Group.create(still_db), Waiter.sleep

    def sleep_after_the_change(waiter: Waiter, *arguments: Any) -> None:
        getattr(of, change)(still_db)
        sleep(waiter, *arguments)

    monkeypatch.setattr(Waiter, "sleep", sleep_after_the_change)
    before = clock.now()
    found = of.wait_for_progress(still_db, of.progress(still_db), 600)
    assert (found.open, found.cancelled) == (False, change == "cancel")
    assert clock.now() == before


def test_a_list_goes_on_behind_an_unreadable_group(b: PartitionsBench) -> None:
    ids, keys = sorted(made(b).id for _ in range(3)), RootKeys(b.root)
    b.db[keys.group(bytes.fromhex(ids[0]))] = b"damaged"
    b.db[keys.groups.start + b"\x01\xff"] = b"no group's"
    found = list(every_row(partial(fdbqueue.list_groups, b.db, 1, root=b.root)))
    assert [one.id for one in found] == ids[1:]


def test_a_redriven_member_counts_once_beside_a_truncate(b: PartitionsBench) -> None:
    """Its burial has counted. Each of the two queues knows that of its own members only."""
    of, other = made(b, wait_for_buried=False), queue_of(b, "other")
    of.put_many(b.db, b.queue, ["buried", "waits"])
    of.close(b.db)
    b.queue.bury(b.db, b.take())
    letters = DeadLetters.open(b.db, "bench", root=b.root)
    letters.begin_redrive(b.db, into="other")
    letters.run_redrive(b.db)
    for queue in (b.queue, other):
        queue.truncate(b.db)
        settle(b)
        found = of.progress(b.db)
        assert (found.done, found.failed, found.left) == (0, 2, 0)


@pytest.mark.usefixtures("ordinary")
def test_puts_after_other_tasks_join_no_batch(b: PartitionsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction stores the group of one wait."""
    db, begun, go_on = Database(b.db.engine, b.clock), threading.Event(), threading.Event()
    queue, create = TaskQueue.open(db, "bench", root=b.root), db.create_transaction
    parents = b.put_each(range(2))

    def create_when_told() -> Any:
        if threading.current_thread().name == "first":
            begun.set()
            assert go_on.wait(PATIENCE_S)
        return create()

    monkeypatch.setattr(db, "create_transaction", create_when_told)
    first = threading.Thread(target=queue.put, args=(db, "first"), name="first")
    first.start()
    assert begun.wait(PATIENCE_S)
    waiting = calls_of(db, queue._shape)._puts._pending
    children = [
        threading.Thread(target=queue.put, args=(db, "child"), kwargs={"after": parent}) for parent in parents
    ]
    for child in children:
        child.start()
    wait_until(lambda: len(waiting) == 2 or not any(child.is_alive() for child in children))
    go_on.set()
    for thread in (first, *children):
        thread.join(PATIENCE_S)
    for parent in parents:
        b.queue.delete(b.db, parent)
    settle(b)
    assert sorted(ready(b, queue)) == ["child", "child", "first"]


@pytest.mark.parametrize("delay", [0, 1])
def test_a_task_after_an_expired_one_does_not_wait(b: PartitionsBench, delay: int) -> None:
    """No sweep has removed that one yet."""
    parent = b.put("parent", ttl=5, delay=delay)
    b.clock.advance(delay + 5)
    assert b.queue.put(b.db, "child", after=parent).state == TaskState.READY
    assert ready(b, b.queue) == ["child"]


def test_a_put_after_an_unreadable_task_is_refused(b: PartitionsBench) -> None:
    """It may not have ended: its record is mended later."""
    parent = b.put("parent")
    b.db[b.queue._shape.keys.task(id_bytes(parent))] = b"damaged"
    with pytest.raises(RecordUnreadable):
        b.queue.put(b.db, "child", after=parent)
    assert ready(b, b.queue) == []


def test_a_wait_for_progress_of_an_ended_group_lasts(still_db: Database, clock: StillClock) -> None:
    """A caller that waits again and again would turn without a pause."""
    of = Group.create(still_db)
    of.close(still_db)
    transactional(Settling(still_db, RootKeys(DEFAULT_ROOT)).tidy)(still_db)
    seen, before = of.progress(still_db), clock.now()
    assert seen.ended is not None
    assert of.wait_for_progress(still_db, seen, 7) is None
    assert clock.now() == before + 7


def test_an_ended_group_with_buried_members_is_left_for_a_while(
    b: PartitionsBench, set_limits: SetLimits
) -> None:
    """A full page of such groups would keep a sweep busy for ever."""
    set_limits(GROUPS_SWEPT_MAX=2)
    held = [made(b, wait_for_buried=False, retain_s=10) for _ in range(2)]
    for of in held:
        b.queue.bury(b.db, of.put(b.db, b.queue, 1))
        of.close(b.db)
    settle(b)
    b.clock.advance(11)
    settle(b)
    assert [of.progress(b.db).buried for of in held] == [1, 1]


def test_a_cancel_again_does_not_begin_the_sweep_anew(b: PartitionsBench, set_limits: SetLimits) -> None:
    """Taken members stay: a sweep that begins anew looks at the first ones again."""
    set_limits(VERB_BATCH=1)
    of, settling = made(b), Settling(b.db, RootKeys(b.root))
    ids = [of.put(b.db, b.queue, number).id for number in range(3)]
    for _ in ids:
        b.take()
    for _ in range(6):
        of.cancel(b.db)
        transactional(settling.tidy)(b.db)
    assert all(b.queue.peek(b.db, id_).cancel_asked for id_ in ids)


def test_a_later_plain_queue_of_the_name_holds_no_group(b: PartitionsBench) -> None:
    """The task of then went with the dropped queue."""
    then = queue_of(b, "then")
    of = made(b, then)
    then.drop(b.db)
    Queue.named(b.db, "then", root=b.root)
    of.close(b.db)
    settle(b)
    assert of.progress(b.db).ended is not None


def test_a_member_from_a_truncated_queue_goes_with_a_truncate(b: PartitionsBench) -> None:
    """Its group would wait for ever, if it brought the epoch of the queue that it comes from."""
    earlier, of, other = made(b), made(b), queue_of(b, "other")
    earlier.put(b.db, b.queue, 1)
    b.queue.truncate(b.db)
    b.queue.bury(b.db, of.put(b.db, b.queue, 1))
    of.close(b.db)
    letters = DeadLetters.open(b.db, "bench", root=b.root)
    letters.begin_redrive(b.db, into="other")
    letters.run_redrive(b.db)
    other.truncate(b.db)
    settle(b)
    assert of.progress(b.db).left == 0


@pytest.mark.parametrize(("retain_s", "seconds"), [(10, 9), (1e30, 1e9)])
def test_an_ended_group_is_kept_from_its_end_on(b: PartitionsBench, retain_s: float, seconds: float) -> None:
    """A group may be kept for longer than a life."""
    of = made(b, retain_s=retain_s)
    b.clock.advance(11)
    of.close(b.db)
    settle(b)
    b.clock.advance(seconds)
    settle(b)
    assert of.progress(b.db).ended is not None


def test_large_tasks_of_then_start_in_transactions_of_their_own(
    b: PartitionsBench, set_limits: SetLimits
) -> None:
    """Their task key has moved to another partition, so each start writes its payload again."""
    there = TaskQueue.create(b.db, "there", "utubettl", root=b.root, partitions=4)
    groups = []
    for _ in range(3):
        of = Group.create(b.db, then=(there, "x" * 50_000, {"key": moving_key(4, 5)}), root=b.root)
        of.close(b.db)
        groups.append(of)
    there.repartition(b.db, 5)
    set_limits(MOVED_BYTES_MAX=60_000)
    settling, ended = Settling(b.db, RootKeys(b.root)), []
    for _ in range(3):
        assert transactional(settling.tidy)(b.db)
        ended.append(sum(of.progress(b.db).ended is not None for of in groups))
    assert ended == [1, 2, 3]


def test_a_member_that_arrives_behind_the_sweep_of_a_cancel_ends(b: PartitionsBench) -> None:
    """A redrive moves it into a queue that the sweep has passed."""
    first, between, second = queue_of(b, "first"), queue_of(b, "between"), queue_of(b, "second")
    of = made(b)
    of.put(b.db, between, "x")
    second.bury(b.db, of.put(b.db, second, "y"))
    of.close(b.db)
    letters = DeadLetters.open(b.db, "second", root=b.root)
    letters.begin_redrive(b.db, into="first")
    settle(b)
    of.cancel(b.db)
    marker = RootKeys(b.root).cancelling(bytes.fromhex(of.id))
    while bytes(b.db[marker])[:8] <= (first._shape.definition.id).to_bytes(8, "big"):
        transactional(Settling(b.db, RootKeys(b.root)).tidy)(b.db)
    assert letters.run_redrive(b.db).moved == 1
    settle(b)
    found = of.progress(b.db)
    assert (found.left, found.ended is None) == (0, False)


def test_a_cancel_takes_half_a_batch_of_members_at_a_time(b: PartitionsBench, set_limits: SetLimits) -> None:
    """Members of many groups, with long keys, have twice the bytes of other tasks."""
    of = made(b)
    of.put_many(b.db, b.queue, range(6))
    of.close(b.db)
    settle(b)
    of.cancel(b.db)
    set_limits(VERB_BATCH=4)
    left = []
    for _ in range(3):
        transactional(Settling(b.db, RootKeys(b.root)).tidy)(b.db)
        left.append(len(ready(b, b.queue)))
    assert left == [4, 2, 0]


# Both embedded engines count the bytes of a transaction by the same code.
@pytest.mark.in_turn(4)
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "embedded"], indirect=True)
@pytest.mark.parametrize(("members", "waiting"), [(100, 0), (12, limits.GROUPS_OF_TASK_MAX - 1)])
def test_a_cancel_below_a_long_root_fits_into_a_transaction(
    db: Database, space: Subspace, members: int, waiting: int
) -> None:
    """Each key that it writes has the root. A sweep cannot halve its batch: its keeper commits it."""
    root = Subspace((b"r" * 4_000,), space.key())
    queue, of = TaskQueue.create(db, "q", root=root), Group.create(db, root=root)
    tasks = [of.put(db, queue, number) for number in range(members)]
    for task in tasks:
        for _ in range(waiting):
            queue.put(db, "waits", after=task)
    of.cancel(db)
    settling = Settling(db, RootKeys(root))
    sweeps = 0
    while (found := of.progress(db)).ended is None and sweeps < 6 * members:
        transactional(settling.tidy)(db)
        sweeps += 1
    assert (found.failed, found.left, found.ended is None) == (members, 0, False)


def test_two_sweeps_count_a_lost_member_off_once(b: PartitionsBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both see a full page, so neither is the last one."""
    groups = [made(b) for _ in range(3)]
    for of in groups:
        of.put(b.db, b.queue, 1)
    b.queue.truncate(b.db)
    monkeypatch.setattr(limits, "VERB_BATCH", 1)
    sweeps = [b.db.create_transaction() for _ in range(2)]
    for tr in sweeps:
        assert Settling(b.db, RootKeys(b.root)).tidy(tr)
    sweeps[0].commit().wait()
    assert commit_code(sweeps[1]) == NOT_COMMITTED
