"""An overview tells the figures of all queues, in one or two round trips, and disturbs no call."""

from collections.abc import Iterator
from typing import Any

import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, Figures, Overview, Queue, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from tests.tasks.support import LONG_S, Bench, StillClock
from tests.tasks.trips import Trips, trips_of

KINDS = ["fifo", "fifottl", "limfifottl", "utube", "utubettl", "fair", "bag"]
KEYS = RootKeys(DEFAULT_ROOT)


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def still(clock: StillClock) -> Iterator[tuple[Database, StillClock]]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database, clock


@pytest.fixture
def trips(clock: StillClock) -> Iterator[tuple[Database, Trips]]:
    with fdbqueue.open("memory:", runtime=clock) as db:
        engine = Trips(db.engine)
        yield Database(engine, clock), engine  # type: ignore[arg-type]  # options are never asked for


def filled(db: Database, name: str, kind: str, root: Any = DEFAULT_ROOT) -> TaskQueue:
    """A queue with tasks in every state that its kind has."""
    queue = TaskQueue.create(db, name, kind, root=root)
    for number in range(6):
        queue.put(db, number, **({"key": number} if "key" in options_of(kind) else {}))
    for task in queue.take_many(db, 3)[:2]:
        queue.bury(db, task)
    if "delay" in options_of(kind):
        queue.put(db, "later", delay=60)
    return queue


def options_of(kind: str) -> set[str]:
    keyed = {"key"} if kind in ("utube", "utubettl", "fair") else set()
    return keyed | ({"delay"} if "ttl" in kind or kind == "fair" else set())


def figures_of(db: Database, name: str, **options: Any) -> Any:
    tasks = Overview(name, **options).figures(db).by_name[name].tasks
    assert tasks is not None
    return tasks


@pytest.mark.parametrize("kind", KINDS)
def test_the_figures_are_the_statistics_of_the_queue(db: Database, space: Subspace, kind: str) -> None:
    queue = filled(db, "mails", kind, space)
    queue.pause(db)
    [found] = Overview(root=space).figures(db).queues
    wanted = queue.statistics(db)
    assert found.tasks is not None
    states = ("ready", "taken", "buried", "delayed")
    assert {state: getattr(found.tasks, state) for state in states} == {
        state: wanted["tasks"][state] for state in states
    }
    assert (found.items, found.tasks.calls, found.tasks.paused) == (
        wanted["tasks"]["total"],
        wanted["calls"],
        True,
    )


def test_items_and_elements_are_counted(db: Database, space: Subspace) -> None:
    Queue.named(db, "items", root=space).enqueue_many(db, range(3))
    ElementQueue.named(db, "elements", schema={"body": "string"}, root=space).add(db, {"body": "x"})
    found = Overview(root=space).figures(db).by_name
    assert [(queue.kind, queue.items, queue.tasks) for queue in found.values()] == [
        ("elements", 1, None),
        ("queue", 3, None),
    ]


def test_a_named_overview_leaves_other_queues_out(db: Database, space: Subspace) -> None:
    for name in ("a", "b", "c"):
        TaskQueue.create(db, name, root=space)
    overview = Overview("c", "missing", "a", root=space)
    assert [list(overview.figures(db).by_name) for _ in range(2)] == [["a", "c"]] * 2


def test_each_look_sees_queues_that_come_and_go(db: Database, space: Subspace) -> None:
    overview = Overview(root=space)
    first = TaskQueue.create(db, "a", root=space)
    first.put_many(db, range(3))
    assert overview.figures(db).by_name["a"].items == 3
    first.truncate(db)
    first.drop(db)
    TaskQueue.create(db, "a", "fifottl", root=space)
    TaskQueue.create(db, "b", root=space)
    assert [(queue.name, queue.kind, queue.items) for queue in overview.figures(db).queues] == [
        ("a", "fifottl", 0),
        ("b", "fifo", 0),
    ]


@pytest.mark.parametrize("names", [(), tuple("abcdefg")])
def test_more_queues_than_one_part_are_all_there(
    still: tuple[Database, StillClock], monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    db, _ = still
    monkeypatch.setattr(limits, "FIGURES_QUEUES", 3)
    for name in "abcdefg":
        TaskQueue.create(db, name).put(db, name)
    overview = Overview(*names)
    for _ in range(2):
        assert {queue.name: queue.items for queue in overview.figures(db).queues} == dict.fromkeys(
            "abcdefg", 1
        )


def test_a_part_with_a_key_that_names_no_queue_is_not_the_last(
    still: tuple[Database, StillClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, _ = still
    monkeypatch.setattr(limits, "FIGURES_QUEUES", 3)
    for name in "abcd":
        TaskQueue.create(db, name)
    db[RootKeys(DEFAULT_ROOT).definition("b") + b"x"] = b"damage"
    assert [queue.name for queue in Overview().figures(db).queues] == [*"abcd"]


def test_an_overview_has_a_bound_of_queues(
    still: tuple[Database, StillClock], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, _ = still
    monkeypatch.setattr(limits, "FIGURES_QUEUES", 3)
    for name in "abcdefg":
        TaskQueue.create(db, name)
    for overview in (Overview(limit=5), Overview(*"abcdefg", limit=5)):
        found = overview.figures(db)
        assert ("".join(found.by_name), found.is_whole) == ("abcde", False)
    whole = Overview().figures(db)
    assert ("".join(whole.by_name), whole.is_whole) == ("abcdefg", True)


@pytest.mark.parametrize("names", [(), tuple(KINDS)])
def test_a_first_look_takes_two_round_trips_then_one(
    trips: tuple[Database, Trips], names: tuple[str, ...]
) -> None:
    db, engine = trips
    for kind in KINDS:
        filled(db, kind, kind)
    overview = Overview(*names)
    waits = [trips_of(engine, db, overview.figures)[0] for _ in range(3)]
    assert waits == [2, 1, 1]


def test_a_new_queue_costs_one_look_a_round_trip_more(trips: tuple[Database, Trips]) -> None:
    db, engine = trips
    queue, overview = filled(db, "a", "fifo"), Overview()
    overview.figures(db)
    filled(db, "b", "fair")
    assert [trips_of(engine, db, overview.figures)[0] for _ in range(2)] == [2, 1]
    queue.release_all(db)
    queue.truncate(db)
    queue.drop(db)
    assert [trips_of(engine, db, overview.figures)[0] for _ in range(2)] == [1, 1]


def test_many_keys_cost_no_further_round_trip(
    trips: tuple[Database, Trips], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters of keys beyond the first ones are read by the look after the one that met them."""
    monkeypatch.setattr(limits, "FIGURES_KEYS_READ", 3)
    db, engine = trips
    queue = TaskQueue.create(db, "many", "fair")
    for number, ready in enumerate([1, 2, 3, 4, 70, 300]):
        queue.put_many(db, range(ready), key=f"k{number}")
    overview = Overview(keys=3)
    looks = [trips_of(engine, db, overview.figures) for _ in range(2)]
    assert [waits for waits, _ in looks] == [2, 1]
    first, second = ([(key.key, key.ready, key.is_exact) for key in busiest_of(found)] for _, found in looks)
    assert second == [("k5", 300, True), ("k4", 70, True), ("k2", 3, True)]
    for (key, low, is_exact), (_, ready, _) in zip(first[:2], second[:2], strict=True):
        assert (key in ("k4", "k5"), is_exact) == (True, False)
        assert low <= ready < 4 * low


def busiest_of(found: Figures) -> Any:
    [queue] = found.queues
    assert queue.tasks is not None
    return queue.tasks.busiest


def test_the_busiest_keys_come_first(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    queue = TaskQueue.create(db, "fair", "fair")
    for key, ready in (("a", 2), (("b", 1), 5), (7, 3)):
        queue.put_many(db, range(ready), key=key)
    busiest = figures_of(db, "fair", keys=2).busiest
    assert [(key.key, key.ready) for key in busiest] == [(("b", 1), 5), (7, 3)]
    assert figures_of(db, "fair", keys=0).busiest == ()


def test_the_age_in_order_of_arrival_is_exact(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    b = Bench(db, clock, "fifo")
    b.put("first")
    clock.advance(5)
    b.put("second")
    clock.advance(2)
    assert ages(db) == (7, 7, True)
    b.take()
    assert ages(db) == (2, 2, True)
    b.take()
    assert ages(db) == (None, None, True)


def test_the_age_in_another_order_has_a_bound(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    b = Bench(db, clock, "fifottl")
    buried = b.put("buried", pri=0)
    b.queue.bury(db, buried)
    clock.advance(3)
    b.put("starved", pri=9)
    clock.advance(5)
    b.put("urgent", pri=1)
    clock.advance(2)
    assert ages(db) == (2, 10, False)  # 7 is between them
    b.queue.delete(db, buried)
    assert ages(db) == (2, 7, True)  # the oldest task of all is ready


def test_tasks_that_are_not_ready_have_no_age(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    b = Bench(db, clock, "fifottl")
    b.put("buried", pri=0)
    b.queue.bury(db, b.queue.tasks(db, "r", 1)[0])
    clock.advance(3)
    assert ages(db)[:2] == (None, None)


def ages(db: Database) -> tuple[float | None, float | None, bool]:
    found = figures_of(db, "bench")
    return found.next_age_s, found.oldest_age_s, found.oldest_is_exact


def test_a_sweep_that_does_not_come_shows(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    b = Bench(db, clock, "fifottl")
    b.put("x", delay=10)
    clock.advance(9)
    assert figures_of(db, "bench").sweep_lag_s == 0
    clock.advance(4)
    assert [figures_of(db, "bench").sweep_lag_s for _ in range(2)] == [3, 3]
    b.sweep()
    assert figures_of(db, "bench").sweep_lag_s == 0


@pytest.mark.parametrize(
    ("queues", "alive", "counted"),
    [
        ('["bench", "other"]', True, (1, 1)),
        ('["other"]', True, (0, 1)),
        ('["other"], "more_queues": 1', True, (1, 1)),
        ('["bench"], "more_queues": 1', True, (1, 1)),
        ('["bench"]', False, (0, 0)),
    ],
)
def test_live_workers_are_counted(
    still: tuple[Database, StillClock], queues: str, alive: bool, counted: tuple[int, int]
) -> None:
    db, clock = still
    TaskQueue.create(db, "bench")
    session = fdbqueue.Session(db, ttr=LONG_S if alive else 1)
    db[KEYS.presence(session.id)] = f'{{"queues": {queues}}}'.encode()
    db[KEYS.presence(bytes(16))] = b"damaged"
    clock.advance(2)
    found = Overview().figures(db)
    assert (figures_of(db, "bench").workers, found.workers) == counted


def test_a_queue_that_cannot_be_read_has_its_reason(still: tuple[Database, StillClock]) -> None:
    db, _ = still
    TaskQueue.create(db, "sound").put(db, "x")
    db[KEYS.definition("damaged")] = b"\x00"
    db[KEYS.definition("newer")] = layer.pack((99, "unheard-of", b"{}"))
    found = Overview().figures(db).by_name
    assert [(queue.name, queue.items, queue.error is None) for queue in found.values()] == [
        ("damaged", 0, False),
        ("newer", 0, False),
        ("sound", 1, True),
    ]


def test_damaged_entries_leave_the_ages_unknown(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    b = Bench(db, clock, "fifottl")
    b.put("x")
    keys = b.queue._shape.keys
    for under in (keys.ready, keys.tasks):
        [row] = list(db.get_range(under.start, under.stop))
        db[row.key] = b"damaged"
    assert ages(db) == (None, None, False)


def test_a_look_conflicts_with_nothing(db: Database, space: Subspace) -> None:
    queue, overview = TaskQueue.create(db, "mails", root=space), Overview(root=space)
    tr = db.create_transaction()
    assert overview.figures(tr).by_name["mails"].items == 0
    queue.put(db, "x")
    tr[space["mine"]] = b"x"  # otherwise it would commit nothing
    tr.commit().wait()


def test_a_look_writes_nothing(still: tuple[Database, StillClock]) -> None:
    db, clock = still
    b = Bench(db, clock, "fifottl")
    b.put("x", delay=1)
    clock.advance(5)
    before = b.stored()
    Overview().figures(db)
    run(db, Overview().figures)
    assert b.stored() == before


def test_an_overview_refuses_what_is_no_name() -> None:
    with pytest.raises(fdbqueue.InvalidArgument):
        Overview("")
    with pytest.raises(fdbqueue.InvalidArgument):
        Overview(keys=limits.FIGURES_KEYS_MAX + 1)
