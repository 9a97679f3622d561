"""Changes of limits beside starts, and starts in several places: no slot and no token is lost or doubled."""

from typing import Any

import pytest

from fdbqueue import Database, Limit, Task, TaskQueue, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import LimitInUse
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.limits.parking import Settling
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.stored.records import id_bytes
from tests.partitions.support import key_in
from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.support import Bench, MakeBench, SetLimits, StillClock

TENANT, CALLS = "tenant", "calls"


@pytest.fixture
def rate(still_db: Database, clock: StillClock) -> MakeBench:
    """A bench of a queue under a limit of starts: `rate(10, 100, 5)`."""

    def make(rate: int, per: float, burst: int, kind: str = "fifo", **options: Any) -> Bench:
        Limit.set(still_db, CALLS, rate=rate, per=per, burst=burst)
        return Bench(still_db, clock, kind, limits=[CALLS], **options)

    return make


@pytest.fixture
def keyed(still_db: Database, clock: StillClock) -> Bench:
    """A bench of a queue with tasks that name limits with keys."""
    Limit.set(still_db, TENANT, slots=1, per_key=True)
    Limit.set(still_db, CALLS, rate=1, per=10, burst=3, per_key=True)
    return Bench(still_db, clock, "fifottl", task_limits=[TENANT, CALLS])


def test_a_take_from_two_partitions_uses_a_token_for_each_task(
    rate: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdbqueue.core.line.wide.Homes.next", lambda *_: 2)  # there is no task
    b = rate(10, 100, 10, "utube", partitions=3)
    for partition in range(2):
        b.put(partition, key=key_in(partition, 3))
    b.clock.advance(50)  # the bucket is full since then

    assert len(b.queue.take_many(b.db, 2, session=b.session)) == 2

    assert Limit.open(b.db, CALLS).free == 8


def test_the_next_token_is_the_first_of_any_cell(rate: MakeBench) -> None:
    """A limit has a cell for each limits.CELL_TOKENS_MIN tokens of its burst."""
    b = rate(16, 16, 16)
    b.queue.put_many(b.db, range(20))
    began = b.clock.now()
    for later in (0, 1):
        b.clock.advance(later)
        assert len(b.queue.take_many(b.db, 8, session=b.session)) == 8

    assert Limit.open(b.db, CALLS).next == began + 2


def test_a_change_of_a_rate_moves_the_next_token_of_a_key(keyed: Bench) -> None:
    """With slower tokens, the time that a key has used up is worth fewer of them."""
    for number in range(4):
        keyed.put(number, limits={CALLS: "a"})
    assert keyed.taken_data() == [0, 1, 2]

    Limit.set(keyed.db, CALLS, rate=1, per=12, burst=3, per_key=True)
    for _ in range(3):
        keyed.sweep()
    keyed.clock.advance(7)

    assert keyed.taken_data() == [3]
    assert not verify(keyed.db).findings


def test_an_unreadable_task_keeps_its_slot_until_it_is_deleted(keyed: Bench) -> None:
    """A walk over the keys counts it."""
    for number in range(2):
        keyed.put(number, limits={TENANT: "a"})
    task = keyed.take()
    keyed.db.set(keyed.queue._shape.keys.task(id_bytes(task.id)), b"damaged")
    Limit.set(keyed.db, TENANT, slots=1, per_key=True)
    for _ in range(3):
        keyed.sweep()
    assert (Limit.open(keyed.db, TENANT).used, keyed.take()) == (1, None)

    keyed.queue.delete(keyed.db, task.id)
    for _ in range(3):
        keyed.sweep()
    assert keyed.taken_data() == [1]
    assert Limit.open(keyed.db, TENANT).used == 1


def test_a_walk_that_is_begun_anew_conflicts_with_its_steps(keyed: Bench, set_limits: SetLimits) -> None:
    """A step would go on from its old place, and leave out the keys before that."""
    set_limits(KEY_ROWS_WALKED=3)
    other = TaskQueue.create(keyed.db, "other", "fifottl", task_limits=[TENANT])
    for number in range(5):
        keyed.put(number, limits={TENANT: number})
        keyed.take()
    other.put(keyed.db, "x", limits={TENANT: "other"})
    other.take(keyed.db, session=keyed.session)
    Limit.set(keyed.db, TENANT, slots=3, per_key=True)
    root, now_us = RootKeys(DEFAULT_ROOT).prefix, keyed.db.runtime.now_us()
    walks = Settling(root, LimitKeys(root, TENANT))
    assert run(keyed.db, lambda tr: walks.ask_rest(tr, now_us)())
    step = begin(keyed.db)
    assert walks.ask_rest(step, now_us)()
    other.truncate(keyed.db)
    assert commit_code(step) == NOT_COMMITTED


def test_a_list_goes_on_behind_unreadable_limits(still_db: Database, set_limits: SetLimits) -> None:
    set_limits(LIMITS_READ_TOGETHER=1)
    for name in "ab":
        Limit.set(still_db, name, slots=1)
    keys = RootKeys(DEFAULT_ROOT)
    still_db[LimitKeys(keys.prefix, "a").row] = b"damaged"
    no_limit = keys.limits.start + b"\x02\xff\x00"
    assert keys.limit_of(no_limit) is None
    still_db[no_limit] = b""
    assert [found.name for found in Limit.list(still_db)] == ["a", "b"]


def test_an_end_opens_a_lane_that_takes_have_closed(keyed: Bench, set_limits: SetLimits) -> None:
    """A take closes a lane without a pointer: all keys in it are exhausted."""
    set_limits(LANES_KEPT=0)
    keyed.put("runs", limits={TENANT: "a"})
    task = keyed.take()
    keyed.put("waits", limits={TENANT: "a"})
    for _ in range(2):
        keyed.put("free")
    assert keyed.taken_data() == ["free", "free"]
    lanes: Any = keyed.queue._shape.discipline
    assert list(keyed.db.get_range(lanes.open.start, lanes.open.stop)) == []

    keyed.queue.ack(keyed.db, task)

    assert keyed.taken_data() == ["waits"]


def test_two_slots_given_back_together_let_a_task_start(keyed: Bench) -> None:
    """The limit was lowered, so one of them would leave no room."""
    Limit.set(keyed.db, TENANT, slots=2, per_key=True)
    for number in range(3):
        keyed.put(number, limits={TENANT: "a"})
    assert len(keyed.taken_data()) == 2
    Limit.set(keyed.db, TENANT, slots=1, per_key=True)
    for _ in range(3):
        keyed.sweep()
    keyed.queue.release_all(keyed.db)
    assert keyed.taken_data() == [0]


def parking(keyed: Bench) -> tuple[TaskQueue, Task, Any]:
    """Another queue with a task of the key, a take that holds its slot, and a sweep that parks its lane."""
    other = TaskQueue.create(keyed.db, "other", "fifottl", task_limits=[TENANT])
    keyed.put("x", limits={TENANT: "a"})
    other.put(keyed.db, "y", limits={TENANT: "a"})
    task = keyed.take()  # parks one of the two lanes, and leaves the other one to the next sweep
    root, now_us = RootKeys(DEFAULT_ROOT).prefix, keyed.db.runtime.now_us()
    sweep = begin(keyed.db)
    assert Settling(root, LimitKeys(root, TENANT)).ask(sweep, now_us)()
    return other, task, sweep


@pytest.mark.parametrize("change", ["an end", "more slots"])
def test_a_sweep_that_parks_lanes_conflicts_with_a_change(
    keyed: Bench, set_limits: SetLimits, change: str
) -> None:
    """The end has met no parked lane, and the walk of the slots is over: nothing else would open the lane."""
    set_limits(LANES_TURNED=1)
    other, task, sweep = parking(keyed)
    if change == "an end":
        keyed.queue.ack(keyed.db, task)
    else:
        Limit.set(keyed.db, TENANT, slots=2, per_key=True)
        for _ in range(3):
            keyed.sweep()
    assert commit_code(sweep) == NOT_COMMITTED
    assert other.take(keyed.db, session=keyed.session) is not None


def test_a_take_settles_the_keys_of_each_limit(keyed: Bench, set_limits: SetLimits) -> None:
    """Both limits count each key apart, and no key of the first one has to be looked at."""
    set_limits(LANES_TURNED=1)
    keyed.put("x", limits={TENANT: "a"})
    task = keyed.take()
    keyed.put("first", limits={TENANT: "a", CALLS: None})
    keyed.put("second", limits={TENANT: "a"})
    keyed.queue.ack(keyed.db, task)  # opens one lane, and leaves the other one to the next take
    assert keyed.take().data == "first"


def test_a_truncate_leaves_no_row_of_a_limit_that_is_gone(keyed: Bench) -> None:
    """Tasks may name it all the same, and have lanes by their keys."""
    Limit.delete(keyed.db, TENANT)
    for _ in range(3):
        keyed.sweep()
    keyed.put("x", limits={TENANT: "a"})
    keyed.queue.truncate(keyed.db)
    for _ in range(3):
        keyed.sweep()
    under = LimitKeys(RootKeys(DEFAULT_ROOT).prefix, TENANT).of_keys
    assert list(keyed.db.get_range(under.start, under.stop)) == []


def test_a_batch_of_takes_is_in_order_behind_keys_over_a_limit(keyed: Bench) -> None:
    """Their pointers fill the first page of the look, and no sweep has parked them yet."""
    b, full = keyed, ("a", "b")
    Limit.set(b.db, TENANT, slots=3, per_key=True)
    for key in full * 3:
        b.put("runs", limits={TENANT: key})
    assert len(b.queue.take_many(b.db, 4, session=b.session)) == 4
    for number, key in enumerate(["c", "d", "c"]):
        b.put(number, limits={TENANT: key})
    Limit.set(b.db, TENANT, slots=2, per_key=True)
    taken = b.queue.take_many(b.db, 3, session=b.session)
    assert [task.data for task in taken] == [0, 1, 2]


def test_a_batch_of_takes_has_all_tasks_of_a_key_with_room(keyed: Bench) -> None:
    """They are more than the look reads at first."""
    count = 2 * limits.LANE_TASKS_FIRST + 1
    Limit.set(keyed.db, TENANT, slots=count, per_key=True)
    for number in range(count):
        keyed.put(number, limits={TENANT: "a"})
    taken = keyed.queue.take_many(keyed.db, count, session=keyed.session)
    assert [task.data for task in taken] == list(range(count))


def test_a_change_during_a_walk_reaches_keys_behind_it(keyed: Bench, set_limits: SetLimits) -> None:
    set_limits(KEY_ROWS_WALKED=2)
    for number in range(9):
        keyed.put(number, limits={TENANT: "abc"[number % 3]})
    assert keyed.taken_data() == [0, 1, 2]
    root, now_us = RootKeys(DEFAULT_ROOT).prefix, keyed.db.runtime.now_us()
    walks = Settling(root, LimitKeys(root, TENANT))
    Limit.set(keyed.db, TENANT, slots=2, per_key=True)
    while not (more := keyed.taken_data()):
        assert run(keyed.db, lambda tr: walks.ask_rest(tr, now_us)())
    assert more == [3]

    Limit.set(keyed.db, TENANT, slots=3, per_key=True)
    while run(keyed.db, lambda tr: walks.ask_rest(tr, now_us)()):
        pass

    assert sorted(keyed.taken_data()) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("key", ["a", None])
def test_an_unreadable_limit_in_use_is_not_deleted(keyed: Bench, key: str | None) -> None:
    """The ends of its tasks would take slots off, that a new limit of the name does not have."""
    keyed.put("x", limits={TENANT: key})
    task, row = keyed.take(), LimitKeys(RootKeys(DEFAULT_ROOT).prefix, TENANT).row
    keyed.db[row] = b"damaged"
    with pytest.raises(LimitInUse, match="1 task"):
        Limit.delete(keyed.db, TENANT)
    keyed.queue.ack(keyed.db, task)
    Limit.delete(keyed.db, TENANT)
    assert (keyed.db[row], verify(keyed.db).findings) == (None, ())
    assert Limit.set(keyed.db, TENANT, slots=1, per_key=True).used == 0


def test_an_unreadable_limit_in_use_becomes_no_rate(still_db: Database, clock: StillClock) -> None:
    """Its tokens would be those that the ends of its tasks take off as slots."""
    Limit.set(still_db, CALLS, slots=2)
    b = Bench(still_db, clock, "fifo", limits=[CALLS])
    b.put("x")
    task = b.take()
    still_db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, CALLS).row] = b"damaged"
    with pytest.raises(LimitInUse, match="1 task"):
        Limit.set(still_db, CALLS, rate=1, per=10)
    assert Limit.set(still_db, CALLS, slots=3).used == 1
    b.queue.ack(still_db, task)
    assert Limit.open(still_db, CALLS).used == 0


def test_the_tokens_of_an_unreadable_rate_become_no_slots(rate: MakeBench) -> None:
    b = rate(10, 100, 5)
    for number in range(2):
        b.put(number)
    assert b.take() is not None
    b.db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, CALLS).row] = b"damaged"
    found = Limit.set(b.db, CALLS, slots=1)
    assert (found.used, found.free) == (0, 1)
    assert b.take() is not None
    assert Limit.open(b.db, CALLS).used == 1


def test_an_unreadable_rate_can_be_deleted(rate: MakeBench) -> None:
    """Its cells have times of tokens, and no slots."""
    b = rate(10, 100, 5)
    b.put("x")
    assert b.take() is not None
    b.db[LimitKeys(RootKeys(DEFAULT_ROOT).prefix, CALLS).row] = b"damaged"
    Limit.delete(b.db, CALLS)
    assert Limit.set(b.db, CALLS, rate=1, per=10, burst=3).free == 3


def test_a_set_tells_the_slots_in_use_of_all_keys(keyed: Bench) -> None:
    for key in "ab":
        keyed.put(key, limits={TENANT: key})
        keyed.take()
    found = Limit.set(keyed.db, TENANT, slots=5, per_key=True)
    assert (found.used, found.free) == (2, 5)


def test_a_limit_of_keys_tells_the_room_of_an_unused_key(keyed: Bench) -> None:
    """Tasks that name it without a key leave that room as it is."""
    for name, free in ((TENANT, 1), (CALLS, 3)):
        for _ in range(free):
            keyed.put("x", limits={name: None})
            assert keyed.take() is not None
        found = Limit.open(keyed.db, name)
        assert (found.free, found.next) == (free, None)


def test_a_limit_made_again_without_keys_opens_their_lanes(keyed: Bench) -> None:
    """The lanes wait for tokens of a key, which the limit does not count any more."""
    for number in range(4):
        keyed.put(number, limits={CALLS: "a"})
    assert keyed.taken_data() == [0, 1, 2]
    Limit.delete(keyed.db, CALLS)
    Limit.set(keyed.db, CALLS, rate=1, per=10, burst=3)
    for _ in range(3):
        keyed.sweep()
    assert keyed.taken_data() == [3]
    assert verify(keyed.db).findings == ()


def test_the_keeper_wakes_for_the_first_limit_with_work(still_db: Database, clock: StillClock) -> None:
    """The row of a key is over when its bucket is full: that of a slow limit much later."""
    for name, per in (("hours", 9_000), ("seconds", 30)):
        Limit.set(still_db, name, rate=1, per=per, burst=2, per_key=True)
    b = Bench(still_db, clock, "fifottl", task_limits=["hours", "seconds"])
    for name in ("hours", "seconds"):
        b.put(name, limits={name: "a"})
        b.take()
    of_queue = b.queue._shape.limits
    assert of_queue is not None
    for _ in range(9):
        b.sweep()
    ask = of_queue.ask_next_rest
    due_us = run(b.db, lambda tr: ask(tr)())
    assert due_us == round((clock.now() + 30) * 1_000_000)


@pytest.mark.parametrize(("slots", "code"), [(1, NOT_COMMITTED), (2, 0)])
def test_a_start_that_exhausts_a_key_conflicts_with_a_new_lane(keyed: Bench, slots: int, code: int) -> None:
    """The first task of the key in another queue begins an open lane, which the start has not parked."""
    Limit.set(keyed.db, TENANT, slots=slots, per_key=True)
    other = TaskQueue.create(keyed.db, "other", "fifottl", task_limits=[TENANT])
    keyed.put("x", limits={TENANT: "a"})
    start = begin(keyed.db)
    assert keyed.queue.take(start, session=keyed.session) is not None
    other.put(keyed.db, "y", limits={TENANT: "a"})
    assert commit_code(start) == code
    assert other.take(keyed.db, session=keyed.session) is not None
