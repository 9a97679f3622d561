"""Limits of slots and a rate: a task starts if it gets a slot and a token, and a refused one uses neither."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Database, Limit, TaskQueue, verify
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, LimitInUse
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.tasks.limits.rule import CELLS_MAX, LimitKeys
from fdbqueue.tasks.limits.state import ask, ask_key
from tests.conftest import TEST_ROOT, open_engine
from tests.support import NOT_COMMITTED, commit_code
from tests.tasks.partitions import PartitionsBench
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips, reads_of

HOST = "host"
PER_S = 10.0
NAMED: dict[str, dict[str, Any]] = {
    "limits": {},
    "task_limits": {"limits": [HOST]},
    "keys": {"limits": {HOST: "a"}},
}
"""The options of a put for each way to be under the limit."""


class HostsBench(PartitionsBench):
    def tick(self) -> None:
        """Sweep a few times, at one moment."""
        for _ in range(9):
            self._tick()


MakeHosts = Callable[..., HostsBench]


@pytest.fixture
def hosts(engine: str, clock: StillClock, tmp_path: Path) -> Iterator[MakeHosts]:
    """A bench under a limit of slots and a rate: `hosts("keys", slots=2)`."""
    if engine == "fdb":
        pytest.skip("verbs of limits read the real clock in a transaction of the binding")
    root = TEST_ROOT[os.urandom(8)]
    with open_engine(engine, tmp_path / "data", clock) as database:

        def make(way: str, kind: str = "fifottl", **numbers: Any) -> HostsBench:
            given = {"slots": 1, "rate": 1, "per": PER_S, "burst": 1, "per_key": way == "keys"}
            Limit.set(database, HOST, **{**given, **numbers}, root=root)
            options = {("limits" if way == "limits" else "task_limits"): [HOST]}
            return HostsBench(database, clock, root, kind, options)

        yield make
        database.clear_range_startswith(root.key())


def change(b: HostsBench, **numbers: Any) -> Limit:
    per_key = Limit.open(b.db, HOST, root=b.root).per_key
    return Limit.set(b.db, HOST, **numbers, per_key=per_key, root=b.root)


def look(b: HostsBench) -> Any:
    """The limit, or its key "a"."""
    found = Limit.open(b.db, HOST, root=b.root)
    return Limit.open_key(b.db, HOST, "a", root=b.root) if found.per_key else found


def told(b: HostsBench, id_: str) -> str:
    """The reason why a task is not running, and its cure."""
    return " ".join(f"{reason.text} {reason.cure}" for reason in b.queue.explain(b.db, id_).reasons)


def sound(b: HostsBench) -> bool:
    return not verify(b.db, root=b.root).findings


def keys_of(b: HostsBench) -> LimitKeys:
    return LimitKeys(RootKeys(b.root).prefix, HOST)


def stored(b: HostsBench, *under: slice) -> int:
    return sum(len(list(b.db.get_range(part.start, part.stop))) for part in under)


every_way = pytest.mark.parametrize("way", NAMED)


@every_way
def test_a_task_waits_for_the_slot_and_then_for_the_token(hosts: MakeHosts, way: str) -> None:
    b = hosts(way)
    first, second = (b.put(number, **NAMED[way]) for number in range(2))
    task = b.take()
    assert b.take() is None
    text = told(b, second)
    assert "has no free slot" in text
    assert f"1 of 1 are held, by {first} of 'bench'" in text
    assert "has no token" in text

    b.clock.advance(PER_S)  # a token has come, and the slot is held
    assert b.take() is None
    text = told(b, second)
    assert "has no free slot" in text
    assert "token" not in text
    assert "--slots" not in text  # such a command would take the rate away

    b.queue.ack(b.db, task)
    assert b.take().data == 1
    assert sound(b)


@every_way
def test_an_end_gives_the_slot_back_and_no_token(hosts: MakeHosts, way: str) -> None:
    b = hosts(way)
    _, second = (b.put(number, **NAMED[way]) for number in range(2))
    b.queue.ack(b.db, b.take())

    assert b.take() is None
    text = told(b, second)
    assert "has no token" in text
    assert "slot" not in text
    found = look(b)
    assert (found.used, found.free, found.next) == (0, 0, b.clock.now() + PER_S)

    b.clock.advance(PER_S)
    assert b.take().data == 1
    assert sound(b)


@every_way
@pytest.mark.parametrize("holds_back", ["slots", "rate"])
def test_a_refused_task_uses_nothing_of_the_other_part(hosts: MakeHosts, way: str, holds_back: str) -> None:
    numbers = {"slots": 1, "burst": 5} if holds_back == "slots" else {"slots": 5, "burst": 1}
    b = hosts(way, **numbers)
    for number in range(4):
        b.put(number, **NAMED[way])
    assert len(b.queue.take_many(b.db, 4, session=b.session)) == 1
    before = b.stored()
    assert b.queue.take(b.db, 0, session=b.session) is None

    keys = keys_of(b)
    under = (keys.cells, keys.tokens, keys.count(b"\x02a\x00"), keys.key_tokens(b"\x02a\x00"))
    assert [row for row in before if row[0] in under] == [row for row in b.stored() if row[0] in under]
    assert Limit.open(b.db, HOST, root=b.root).used == 1


@every_way
def test_a_take_that_waits_wakes_at_the_due_time_of_the_token(hosts: MakeHosts, way: str) -> None:
    b = hosts(way)
    for number in range(2):
        b.put(number, **NAMED[way])
    b.queue.ack(b.db, b.take())
    began = b.clock.now()

    task = b.take(60)

    assert task.data == 1
    assert b.clock.now() == pytest.approx(began + PER_S, abs=0.5)


@every_way
def test_no_time_is_set_for_a_task_that_waits_for_a_slot(hosts: MakeHosts, way: str) -> None:
    """The end of the running task wakes its take; the next token is no reason to look."""
    b = hosts(way)
    for number in range(2):
        b.put(number, **NAMED[way])
    task = b.take()
    of_queue = b.queue._shape.limits
    assert of_queue is not None

    def next_us() -> int | None:
        return run(b.db, lambda tr: of_queue.ask_next(tr, b.clock.now_us())())

    assert next_us() is None
    b.queue.ack(b.db, task)
    assert next_us() == b.clock.now_us() + PER_S * 1_000_000


def test_keys_open_when_the_last_part_is_free(hosts: MakeHosts) -> None:
    """Each key has both parts for itself, and takes never meet tasks of a key that has to wait."""
    b = hosts("keys", burst=2)
    for number in range(6):
        b.put(number, limits={HOST: "ab"[number % 2]})
    for _ in range(2):
        taken = b.queue.take_many(b.db, 9, session=b.session)
        assert [task.limits[HOST] for task in taken] == ["a", "b"]
        for task in taken:
            b.queue.ack(b.db, task)
    assert b.take() is None
    b.clock.advance(PER_S)
    assert b.taken_data() == [4, 5]
    assert sound(b)


def test_an_end_by_a_slow_clock_sets_the_time_of_the_token_anew(hosts: MakeHosts) -> None:
    """A faster clock has met its token while the slot was in use. Nothing else would open the lane."""
    b = hosts("keys", burst=2)
    for number in range(3):
        b.put(number, limits={HOST: "a"})
    b.queue.ack(b.db, b.take())
    task = b.take()
    b.clock.advance(PER_S)
    b.tick()
    b.clock.advance(-PER_S)
    b.queue.ack(b.db, task)
    assert b.take() is None
    assert sound(b)
    b.clock.advance(PER_S)
    assert b.taken_data() == [2]


def test_an_end_conflicts_with_a_sweep_that_has_met_the_token(hosts: MakeHosts) -> None:
    """The end leaves the lane to the time of the token, and the sweep leaves it to the end of the task."""
    b = hosts("keys", slots=2, per=1)
    for number in range(2):
        b.put(number, limits={HOST: "a"})
    task = b.take()  # a slot is free, so the row has the time of the next token
    change(b, slots=1, rate=1, per=1, burst=1)
    b.tick()
    end = b.db.create_transaction()
    b.queue.ack(end, task)
    b.clock.advance(1.1)
    b.tick()

    assert commit_code(end) == NOT_COMMITTED

    b.queue.ack(b.db, task)
    assert b.taken_data() == [1]
    assert sound(b)


def test_an_end_conflicts_with_a_change_of_the_numbers(hosts: MakeHosts) -> None:
    """It has judged by the old ones if the key has a token."""
    b = hosts("keys", burst=2)
    for number in range(2):
        b.put(number, limits={HOST: "a"})
    end = b.db.create_transaction()
    b.queue.ack(end, b.take())
    change(b, slots=1, rate=1, per=PER_S, burst=1)
    assert commit_code(end) == NOT_COMMITTED


@every_way
def test_a_rate_beside_slots_comes_and_goes_while_tasks_run(hosts: MakeHosts, way: str) -> None:
    b = hosts(way)
    change(b, slots=2)
    for number in range(9):
        b.put(number, **NAMED[way])
    first, second = b.queue.take_many(b.db, 9, session=b.session)
    keys = keys_of(b)
    tokens = [keys.keys_tokens, keys.overs, slice(keys.tokens, keys.tokens + b"\x00")]
    assert stored(b, *tokens) == 0

    change(b, slots=2, rate=1, per=PER_S, burst=1)
    b.queue.ack(b.db, first)  # it began without a token, and holds a slot
    assert look(b).used == 1
    third = b.take()
    assert (third.data, b.take()) == (2, None)
    b.queue.ack(b.db, second)
    assert b.take() is None  # no token
    assert sound(b)

    change(b, slots=2)
    b.settle()
    assert stored(b, *tokens) == 0
    assert b.take().data == 3
    assert b.take() is None
    assert (look(b).used, sound(b)) == (2, True)
    b.queue.ack(b.db, third)
    assert b.take().data == 4


@every_way
def test_a_change_of_the_numbers_keeps_slots_and_tokens(hosts: MakeHosts, way: str) -> None:
    b = hosts(way, slots=3, burst=3)
    for number in range(9):
        b.put(number, **NAMED[way])
    assert len(b.queue.take_many(b.db, 2, session=b.session)) == 2
    change(b, slots=9, rate=1, per=PER_S, burst=3)
    b.tick()
    assert b.taken_data() == [2]
    assert look(b).used == 3
    assert sound(b)


@pytest.mark.parametrize("before", [{"slots": 1, "rate": 1, "per": 1}, {"rate": 1, "per": 1}])
def test_slots_neither_come_nor_go(hosts: MakeHosts, before: dict[str, int]) -> None:
    """Tasks that run would be uncounted."""
    b = hosts("limits")
    Limit.set(b.db, "other", **before, root=b.root)
    after = {"rate": 1, "per": 1} if "slots" in before else {"slots": 1, "rate": 1, "per": 1}
    stored = b.stored()
    with pytest.raises(InvalidArgument, match="delete it, or choose another name") as caught:
        Limit.set(b.db, "other", **after, root=b.root)
    assert caught.value.name == "slots"
    assert b.stored() == stored


@pytest.mark.parametrize("numbers", [{"per": 1}, {"burst": 1}, {"rate": 1}])
def test_a_part_without_its_numbers_is_refused(hosts: MakeHosts, numbers: dict[str, int]) -> None:
    b = hosts("limits")
    with pytest.raises(InvalidArgument):
        Limit.set(b.db, "other", slots=1, **numbers, root=b.root)


@every_way
def test_a_limit_in_use_is_not_deleted_and_leaves_nothing_behind(hosts: MakeHosts, way: str) -> None:
    b = hosts(way)
    b.put("x", **NAMED[way])
    task = b.take()
    with pytest.raises(LimitInUse, match="1 task"):
        Limit.delete(b.db, HOST, root=b.root)
    b.queue.ack(b.db, task)
    Limit.delete(b.db, HOST, root=b.root)
    assert stored(b, keys_of(b).beside) == 0
    assert sound(b)


@pytest.mark.parametrize("after", [{"slots": 2}, {"slots": 2, "rate": 1, "per": PER_S, "burst": 1}])
@every_way
def test_an_unreadable_limit_is_set_anew(hosts: MakeHosts, way: str, after: dict[str, Any]) -> None:
    b = hosts(way)
    for number in range(3):
        b.put(number, **NAMED[way])
    task = b.take()
    b.db[keys_of(b).row] = b"damaged"
    with pytest.raises(LimitInUse):
        Limit.set(b.db, HOST, rate=1, per=1, per_key=way == "keys", root=b.root)
    Limit.set(b.db, HOST, **after, per_key=way == "keys", root=b.root)
    b.settle()
    assert b.take().data == 1
    assert look(b).used == 2
    assert sound(b)
    b.queue.ack(b.db, task)
    assert look(b).used == 1


def test_a_truncate_gives_slots_back_and_no_token(hosts: MakeHosts) -> None:
    b = hosts("keys")
    for key in "ab":
        b.put("x", limits={HOST: key})
        b.take()
    b.queue.truncate(b.db)
    b.settle()
    assert Limit.open(b.db, HOST, root=b.root).used == 0
    b.put("again", limits={HOST: "a"})
    assert b.take() is None
    assert "has no token" in told(b, b.queue.tasks(b.db, "r", 1)[0].id)
    b.clock.advance(PER_S)
    assert b.taken_data() == ["again"]
    assert sound(b)


def test_the_keys_of_both_parts_are_listed_once_and_in_order(hosts: MakeHosts) -> None:
    b = hosts("keys", per=1e6)
    for key in "cabd":
        b.put("x", limits={HOST: key})
        task = b.take()
        if key in "ad":
            b.queue.ack(b.db, task)  # its key has tokens, and no slot in use
    pages, after = [], None
    while True:
        page = Limit.keys(b.db, HOST, limit=3, after=after, root=b.root)
        pages.append([(one.key, one.used, one.free) for one in page])
        after = page.next
        if after is None:
            break
    assert pages == [[("a", 0, 0), ("b", 1, 0), ("c", 1, 0)], [("d", 0, 0)]]


def test_no_row_of_an_idle_key_is_left(hosts: MakeHosts) -> None:
    b = hosts("keys")
    b.put("x", limits={HOST: "a"})
    b.queue.ack(b.db, b.take())
    b.clock.advance(2 * PER_S)
    b.settle()
    keys = keys_of(b)
    assert stored(b, keys.counts, keys.keys_tokens, keys.of_keys, keys.dues, keys.overs) == 0


def test_two_takes_of_one_key_start_one_task(hosts: MakeHosts) -> None:
    b = hosts("keys")
    other = TaskQueue.create(b.db, "other", task_limits=[HOST], root=b.root)
    b.put("x", limits={HOST: "a"})
    other.put(b.db, "y", limits={HOST: "a"})
    tr = b.db.create_transaction()
    assert b.queue.take(tr, session=b.session) is not None
    assert other.take(b.db, 0, session=b.session) is not None
    assert commit_code(tr) == NOT_COMMITTED


def test_a_process_that_has_not_seen_the_change_goes_by_it(hosts: MakeHosts) -> None:
    """It asks for the tokens a round trip later, once."""
    b = hosts("keys")
    change(b, slots=1)
    for number in range(3):
        b.put(number, limits={HOST: "a"})
    elsewhere = Database(b.db.engine, b.clock)
    Limit.set(elsewhere, HOST, slots=1, rate=1, per=PER_S, burst=1, per_key=True, root=b.root)
    b.queue.ack(b.db, b.take())
    assert b.take() is None
    b.clock.advance(PER_S)
    b.queue.ack(b.db, b.take())
    Limit.set(elsewhere, HOST, slots=1, per_key=True, root=b.root)
    b.settle()
    assert b.take().data == 2
    assert sound(b)


class Elsewhere(LimitKeys):
    """Another thread, which reads at an older version, notes at once that the limit has one part."""

    @property
    def has_both(self) -> bool:
        return False

    @has_both.setter
    def has_both(self, value: bool) -> None:
        pass


def test_what_another_thread_notes_changes_no_look(hosts: MakeHosts) -> None:
    """Otherwise its start would add a time to the slots in use."""
    b = hosts("keys")
    keys, tr = Elsewhere(RootKeys(b.root).prefix, HOST), b.db.create_transaction()
    state = ask(tr, keys)()
    assert len(state.tokens) == CELLS_MAX
    assert ask_key(tr, keys, b"\x02a\x00")(state.rule).tokens == b""


@every_way
def test_a_take_under_both_parts_costs_no_round_trip_more(trips: tuple[Database, Trips], way: str) -> None:
    db, engine = trips
    costs = []
    for name, numbers in (("one", {"slots": 99}), ("both", {"slots": 99, "rate": 99, "per": 1, "burst": 99})):
        Limit.set(db, name, **numbers, per_key=way == "keys")
        queue = TaskQueue.create(db, name, **{("limits" if way == "limits" else "task_limits"): [name]})
        named: dict[str, Any] = {"limits": None, "task_limits": [name], "keys": {name: "a"}}
        seen = []
        for _ in range(3):
            queue.put(db, "x", limits=named[way])
            seen.append(reads_of(engine, db, lambda tr, queue=queue: queue.take(tr)))
        assert seen[-1][-1] is not None
        costs.append(seen[-1][:2])
    (waits, reads), both = costs
    assert both == (waits, reads + (4 if way == "keys" else 1))
