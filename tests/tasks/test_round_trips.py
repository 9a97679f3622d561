"""How many round trips in a row a call waits for: reads that do not depend on each other go together."""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, DeadLetters, Failure, FairQueue, Limit, TaskQueue
from fdbqueue.core import limits
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import calls_of
from tests.conftest import TEST_ROOT
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips, reads_of, trips_of

LARGE = "x" * limits.RECORD_PAYLOAD_BYTES_MAX
PIECES = "x" * limits.PAYLOAD_PIECE_BYTES_MAX


@pytest.mark.parametrize(
    ("kind", "options", "put", "take", "ack"),
    [
        ("fifottl", {}, 1, 1, 1),
        ("fifottl", {"data": LARGE}, 1, 2, 1),
        ("bag", {}, 1, 1, 1),
        ("bag", {"data": LARGE}, 1, 2, 1),
        ("utube", {"key": "a"}, 1, 2, 2),
        ("utube", {"key": "a", "data": LARGE}, 1, 2, 2),
        ("utubettl", {"key": "a"}, 1, 2, 2),
        ("fair", {"key": "a"}, 1, 2, 1),
    ],
)
def test_what_task_queues_wait_for(
    trips: tuple[Database, Trips], kind: str, options: dict[str, Any], put: int, take: int, ack: int
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", kind)
    session = fdbqueue.Session(db, ttr=1e9)
    waited = [trips_of(engine, db, lambda tr: queue.put(tr, **{"data": "x", **options}))[0] for _ in range(3)]
    assert waited == [put] * 3  # the first of its key, and those behind it
    waits, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
    assert waits == take
    assert trips_of(engine, db, lambda tr: queue.ack(tr, task))[0] == ack


@pytest.mark.parametrize(
    "blocked", [1, 1_000, pytest.param(1_000_000, marks=(pytest.mark.slow, pytest.mark.timeout(3_000)))]
)
def test_blocked_tasks_cost_a_take_nothing(trips: tuple[Database, Trips], blocked: int) -> None:
    """A take of a free task, and one that finds only tasks over their limit."""
    db, engine = trips
    Limit.set(db, "api", slots=1)
    queue = TaskQueue.create(db, "trips", limits=["api"])
    other = TaskQueue.create(db, "other", limits=["api"])
    session = fdbqueue.Session(db, ttr=1e9)
    other.put(db, "x")
    for start in range(0, blocked, 1_000):
        queue.put_many(db, [None] * min(1_000, blocked - start))
    assert reads_of(engine, db, lambda tr: other.take(tr, session=session))[:2] == (1, 8)
    assert reads_of(engine, db, lambda tr: queue.take(tr, session=session)) == (1, 9, None)


@pytest.mark.parametrize(
    "blocked",
    [10, 1_000, pytest.param(1_000_000, marks=(pytest.mark.slow, pytest.mark.timeout(3_000)))],
)
def test_blocked_tasks_in_front_cost_a_take_nothing(trips: tuple[Database, Trips], blocked: int) -> None:
    """Takes of tasks in a queue with many tasks before them that name an exhausted limit."""
    db, engine = trips
    for name in ("api", "mails"):
        Limit.set(db, name, slots=1)
    queue, session = (
        TaskQueue.create(db, "trips", task_limits=["api", "mails"]),
        fdbqueue.Session(db, ttr=1e9),
    )
    for start in range(0, blocked, 1_000):
        queue.put_many(db, [None] * min(1_000, blocked - start), limits=["api"])
    for names in (None, ["mails"]):
        queue.put(db, "free", limits=names)

    def read() -> tuple[int, int, tuple[str, ...] | None]:
        waits, reads, task = reads_of(engine, db, lambda tr: queue.take(tr, session=session))
        return waits, reads, None if task is None else tuple(task.limits)

    assert read() == (2, 15, ("api",))  # the first take of a process asks whether the limits have keys
    assert read() == (1, 13, ())
    assert read() == (1, 12, ("mails",))
    assert [read(), read()] == [
        (1, 13, None),
        (1, 12, None),
    ]  # it asks once more for the lane of the last task


def test_lane_0_and_the_first_lane_are_one_read(trips: tuple[Database, Trips]) -> None:
    """A take reads one range more than one without named limits, if all tasks name the same limit."""
    db, engine = trips
    Limit.set(db, "api", slots=9)
    of_all, named = (
        TaskQueue.create(db, "of all", limits=["api"]),
        TaskQueue.create(db, "named", task_limits=["api"]),
    )
    session = fdbqueue.Session(db, ttr=1e9)
    of_all.put_many(db, range(3))
    named.put_many(db, range(2), limits=["api"])

    def reads(queue: TaskQueue) -> tuple[int, int, Any]:
        waits, reads, task = reads_of(engine, db, lambda tr: queue.take(tr, session=session))
        assert task is not None
        return waits, reads, task.data

    assert [reads(of_all)[1] for _ in range(3)] == [8] * 3
    assert reads(named)[2] == 0
    assert reads(named) == (1, 9, 1)
    named.put(db, "named", limits=["api"])
    named.put(db, "free")
    assert [reads(named)[2] for _ in range(2)] == ["named", "free"]


@pytest.mark.parametrize(
    ("keys", "each"),
    [(10, 1), (100, 100), pytest.param(1_000_000, 1, marks=(pytest.mark.slow, pytest.mark.timeout(6_000)))],
)
def test_exhausted_keys_in_front_cost_a_take_nothing(
    trips: tuple[Database, Trips], clock: StillClock, keys: int, each: int
) -> None:
    """Takes of tasks in a queue with many tasks before them, of keys that have no slot."""
    db, engine = trips
    Limit.set(db, "tenant", slots=1, per_key=True)
    busy, queue = (TaskQueue.create(db, name, task_limits=["tenant"]) for name in ("busy", "trips"))
    session = fdbqueue.Session(db, ttr=1e9)
    for key in range(keys):
        clock.advance(0.01)  # the engine keeps all commits of the last seconds
        busy.put(db, None, limits={"tenant": key})
        assert busy.take(db, 0, session=session) is not None
        for start in range(0, each, 1_000):
            queue.put_many(db, [None] * min(1_000, each - start), limits={"tenant": key})
    for key in ("a", "b"):
        queue.put(db, "free", limits={"tenant": key})

    def read() -> tuple[int, int, Any]:
        waits, reads, task = reads_of(engine, db, lambda tr: queue.take(tr, session=session))
        return waits, reads, None if task is None else task.limits["tenant"]

    # The first take of a process asks whether the limit has keys.
    assert [read(), read(), read()] == [(7, 23, "a"), (5, 23, "b"), (1, 14, None)]


def test_a_put_that_names_limits_reads_nothing_more(trips: tuple[Database, Trips]) -> None:
    db, engine = trips
    Limit.set(db, "api", slots=1)
    queue = TaskQueue.create(db, "trips", task_limits=["api"])
    named, other = (
        reads_of(engine, db, lambda tr, names=names: queue.put(tr, "x", limits=names))
        for names in (["api"], None)
    )
    assert named[:2] == other[:2]


def test_a_cancel_and_a_progress_take_one_round_trip(trips: tuple[Database, Trips]) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl", ttr=60)
    queue.put_many(db, list("xyz"))
    task = queue.take(db, session=fdbqueue.Session(db, ttr=1e9))
    assert task is not None
    assert trips_of(engine, db, lambda tr: queue.progress(tr, task, 0.4))[0] == 1
    assert trips_of(engine, db, lambda tr: queue.cancel(tr, task))[0] == 1
    waiting = queue.tasks(db, "r", 1)[0]
    assert trips_of(engine, db, lambda tr: queue.cancel(tr, waiting))[0] == 1
    assert trips_of(engine, db, lambda tr: queue.renew(tr, [task])) == (1, {task.id: db.runtime.now() + 60})


@pytest.mark.parametrize(("kind", "ack"), [("fifottl", 1), ("utube", 2), ("fair", 1)])
def test_a_queue_that_keeps_ended_tasks_reads_nothing_more(
    trips: tuple[Database, Trips], kind: str, ack: int
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", kind, retain_s=60)
    id_ = queue.put(db, "x").id
    task = queue.take(db, session=fdbqueue.Session(db, ttr=1e9))
    assert trips_of(engine, db, lambda tr: queue.ack(tr, task))[0] == ack
    assert trips_of(engine, db, lambda tr: queue.ended_task(tr, id_).outcome) == (1, "acked")
    assert trips_of(engine, db, lambda tr: len(queue.ended_tasks(tr, 9))) == (2, 1)


def test_the_holder_of_a_task_is_told_in_two_round_trips(trips: tuple[Database, Trips]) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    queue.put(db, "x")
    task = queue.take(db, session=fdbqueue.Session(db, "worker-7", 1e9))
    assert task is not None
    waits, holder = trips_of(engine, db, lambda tr: queue.holder(tr, task))
    assert (waits, holder.name) == (2, "worker-7")


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl", "fair", "bag"])
@pytest.mark.parametrize("state", ["ready", "taken", "buried"])
def test_an_explanation_takes_three_round_trips(trips: tuple[Database, Trips], kind: str, state: str) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", kind)
    options = {"key": "a"} if kind in ("utube", "utubettl", "fair") else {}
    queue.put_many(db, [LARGE] * 9, **options)
    task = queue.take(db, session=fdbqueue.Session(db, "worker-7", 1e9))
    assert task is not None
    if state == "buried":
        queue.bury(db, task)
    id_ = queue.put(db, "x", **options).id if state == "ready" else task.id
    waits, found = trips_of(engine, db, lambda tr: queue.explain(tr, id_))
    assert found.task.state.name.lower() == state
    assert waits <= 3


@pytest.mark.parametrize(("kind", "kick"), [("fifottl", 1), ("utube", 2), ("fair", 2)])
def test_the_round_trips_of_dead_letters(trips: tuple[Database, Trips], kind: str, kick: int) -> None:
    """A step reads the redrive, the keys, the tasks, with a text their failures, and then kicks."""
    db, engine = trips
    queue = TaskQueue.create(db, "trips", kind)
    for number in range(6):
        queue.bury(db, queue.put(db, number).id, failure=Failure("E", "odd" if number % 2 else "even"))
    letters = DeadLetters.open(db, "trips")
    assert trips_of(engine, db, letters.classes)[0] == 3
    waits, page = trips_of(engine, db, lambda tr: letters.tasks(tr, 9, error="E", text="odd"))
    assert (waits, len(page)) == (3, 3)
    assert trips_of(engine, db, lambda tr: letters.kick(tr, page[0].task))[0] == kick
    assert trips_of(engine, db, lambda tr: letters.edit(tr, page[1].task, 7))[0] == 1
    assert trips_of(engine, db, lambda tr: letters.begin_redrive(tr, text="odd"))[0] == 2
    waits, step = trips_of(engine, db, letters.step_redrive)
    assert (waits, step.moved) == (3 + kick, 2)


def test_a_lease_of_a_run_ends_in_one_round_trip(trips: tuple[Database, Trips]) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl", ttr=60)
    session = fdbqueue.Session(db, ttr=1e9, run_id=bytes(16))
    queue.put_many(db, range(3))
    tasks = queue.take_many(db, 3, session=session)
    verbs_of_task = [queue.ack, queue.bury, queue.release]
    for verb, task in zip(verbs_of_task, tasks, strict=True):
        assert trips_of(engine, db, lambda tr, verb=verb, task=task: verb(tr, task))[0] == 1


@pytest.mark.parametrize(("result", "looked"), [(None, 1), ("done", 1), (PIECES, 2)])
def test_a_result_costs_no_round_trip_of_its_ack(
    trips: tuple[Database, Trips], result: Any, looked: int
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    session = fdbqueue.Session(db, ttr=1e9)
    reads = []
    for options in ({}, {"result_ttl": 60}):
        assert trips_of(engine, db, lambda tr, options=options: queue.put(tr, "x", **options))[0] == 1
        waits, task = trips_of(engine, db, lambda tr: queue.take(tr, session=session))
        acked, read, _ = reads_of(engine, db, lambda tr, task=task: queue.ack(tr, task, result=result))
        assert (waits, acked) == (1, 1)
        reads.append(read)
    assert reads[0] == reads[1]
    assert trips_of(engine, db, lambda tr: queue.result(tr, task)) == (looked, result)
    assert trips_of(engine, db, lambda tr: queue.forget_result(tr, task)) == (1, True)


def test_a_step_costs_a_look_and_a_write(trips: tuple[Database, Trips]) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    session = fdbqueue.Session(db, ttr=1e9)
    acks = []
    for names in ([], ["a", "b"]):
        queue.put(db, "x")
        task = queue.take(db, 0, session=session)
        for name in names:
            waited = [
                trips_of(engine, db, lambda tr, task=task, name=name: queue.step(tr, task, name, _nothing))[0]
                for _ in range(2)
            ]
            assert waited == [1, 1]  # the client keeps for the write what the look has read
        acked, read, _ = reads_of(engine, db, lambda tr, task=task: queue.ack(tr, task))
        assert acked == 1
        acks.append(read)
    assert acks[0] == acks[1]


def test_a_step_is_one_key_more_until_the_end(trips: tuple[Database, Trips]) -> None:
    db, _ = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    session = fdbqueue.Session(db, ttr=1e9)
    counts = []
    for names in ("", "ab"):
        queue.put(db, "x")
        task = queue.take(db, 0, session=session)
        assert task is not None
        counts.append(len(list(db.get_range_startswith(queue.contents.key()))))
        for name in names:
            queue.step(db, task, name, lambda: None)
        counts.append(len(list(db.get_range_startswith(queue.contents.key()))))
        queue.ack(db, task)
        counts.append(len(list(db.get_range_startswith(queue.contents.key()))))
    taken, _, gone = counts[:3]
    assert counts == [taken, taken, gone, taken, taken + 2, gone]


def _nothing(_: object) -> None:
    """A step without an effect."""


def test_a_result_has_two_keys_and_without_result_ttl_none(trips: tuple[Database, Trips]) -> None:
    db, _ = trips
    queue = TaskQueue.create(db, "trips", "fifottl")
    counts = []
    for options in ({}, {"result_ttl": 60}, {}):
        queue.put(db, "x", **options)
        queue.ack(db, queue.take(db, 0), result="done")
        counts.append(len(list(db.get_range_startswith(queue.contents.key()))))
    assert counts[1:] == [counts[0] + 2] * 2


@pytest.mark.parametrize(
    ("kind", "keys", "trips_wanted"),
    [("fifottl", [None], 1), ("utube", [*range(9)], 2), ("utubettl", [1], 2), ("fair", [*range(3)], 1)],
)
def test_many_acks_together_wait_for_as_much_as_one(
    trips: tuple[Database, Trips], kind: str, keys: list[Any], trips_wanted: int
) -> None:
    db, engine = trips
    several = {"key_concurrency": 9} if kind.startswith("utube") else {}
    queue = TaskQueue.create(db, "trips", kind, **several)
    for number in range(18):
        queue.put(db, number, key=keys[number % len(keys)])
    tasks = queue.take_many(db, 9, session=fdbqueue.Session(db, ttr=1e9))
    targets = [queue._target(db, task, None) for task in tasks]
    source = calls_of(db, queue._shape).source

    def acks(tr: Any) -> list[Any]:
        return source.within(tr, lambda change: verbs.ack_each(change, targets))

    waits, done = trips_of(engine, db, acks)
    assert ([task.id for task in done], waits) == ([task.id for task in tasks], trips_wanted)


@pytest.mark.parametrize(
    ("kind", "options", "keys"), [("utube", {"key_concurrency": 2}, 16), ("fair", {}, 32)]
)
def test_many_tasks_of_many_keys_are_taken_together(
    trips: tuple[Database, Trips], kind: str, options: dict[str, Any], keys: int
) -> None:
    db, engine = trips
    queue = TaskQueue.create(db, "trips", kind, **options)
    session = fdbqueue.Session(db, ttr=1e9)
    for key in range(32):
        queue.put_many(db, range(2), key=key)
    waits, tasks = trips_of(engine, db, lambda tr: queue.take_many(tr, 32, session=session))
    assert len({task.key for task in tasks}) == keys
    assert (waits, len(tasks)) == (2 + keys // 16, 32)  # pointers, sixteen keys at a time, how they stand


@pytest.mark.parametrize(("capacity", "put"), [(None, 1), (9, 2)])
def test_the_round_trips_of_a_fair_queue(
    trips: tuple[Database, Trips], capacity: int | None, put: int
) -> None:
    """With a capacity, whether there is room must be known before the key function is called."""
    db, engine = trips
    queue = FairQueue(TEST_ROOT["trips"], key=lambda item: item[0], capacity=capacity)
    assert [trips_of(engine, db, lambda tr: queue.put(tr, "a1"))[0] for _ in range(2)] == [put] * 2
    assert trips_of(engine, db, queue.take_item) == (2, (True, "a1"))
