"""A redrive moves each matching task once, at its rate, whatever process runs it."""

import pytest
from msgspec import structs

import fdbqueue
from fdbqueue import Database, DeadLetters, Failure, Group, Queue, RedriveState, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.errors import (
    InvalidArgument,
    NoRedrive,
    QueueKindMismatch,
    QueueNotFound,
    RedriveUnderWay,
    WaitStopped,
)
from fdbqueue.core.seam import engine_errors
from fdbqueue.tasks.failures import bytes_max
from fdbqueue.tasks.stored.records import id_bytes, packed_trace, record_of, record_to_bytes
from tests.dead.conftest import Grave

FAST = 1e6


def other(grave: Grave, kind: str = "fifottl", **options) -> TaskQueue:
    return TaskQueue.create(grave.db, "other", kind, root=grave.root, **options)


def data_of(queue: TaskQueue, db: Database) -> list:
    return [task.data for task in queue.tasks(db, "r", 1000)]


def test_a_redrive_kicks_the_tasks_that_match(grave: Grave) -> None:
    grave.bury("A", "one"), grave.bury("A", "two"), grave.bury("B", "two")
    begun = grave.letters.begin_redrive(grave.db, error="A", text="two", rate_per_s=FAST)
    assert (begun.state, begun.left, begun.moved) == (RedriveState.RUNNING, 2, 0)
    done = grave.letters.run_redrive(grave.db)
    assert (done.state, done.moved, done.passed, done.left) == (RedriveState.DONE, 1, 1, 0)
    assert grave.letters.redrive(grave.db) == done
    assert (grave.counted(), grave.tasks("ready")) == ({"A": 1, "B": 1}, 1)


def test_a_redrive_of_nothing_is_done_at_once(grave: Grave) -> None:
    assert grave.letters.redrive(grave.db) is None
    assert grave.letters.begin_redrive(grave.db).state == RedriveState.DONE
    assert grave.letters.run_redrive(grave.db).moved == 0


def test_a_redrive_keeps_its_rate(still: Grave, clock) -> None:
    for n in range(50):
        still.bury("A", data=n)
    still.letters.begin_redrive(still.db, rate_per_s=10)
    before = clock.now()
    assert still.letters.run_redrive(still.db).moved == 50
    assert 4.5 <= clock.now() - before <= 5.5


def test_a_slow_redrive_moves_one_task_at_a_time(still: Grave, clock) -> None:
    still.bury_each("A", "A", "A")
    still.letters.begin_redrive(still.db, rate_per_s=0.01)
    before = clock.now()
    assert still.letters.step_redrive(still.db).wait_s == pytest.approx(100)
    assert still.letters.step_redrive(still.db).moved == 0
    assert still.letters.run_redrive(still.db).moved == 3
    assert clock.now() - before == pytest.approx(200, abs=1)


def test_a_slow_redrive_skips_no_task_that_matches(still: Grave) -> None:
    """A step looks at more tasks than it may move, as others have another text."""
    for message in ("one", "two", "two", "one", "two"):
        still.bury("A", message)
    still.letters.begin_redrive(still.db, text="two", rate_per_s=1)
    done = still.letters.run_redrive(still.db)
    assert (done.moved, done.passed, still.tasks("buried")) == (3, 2, 2)


def test_a_redrive_looks_at_all_tasks_though_one_has_gone(still: Grave) -> None:
    """A step reads as many tasks as were there at the begin, and moves as few as its rate lets it."""
    ids = [still.bury("A", "x", data=n) for n in range(9)]
    still.letters.begin_redrive(still.db, text="x", rate_per_s=10)
    still.queue.delete(still.db, ids[0])
    assert still.letters.run_redrive(still.db).moved == 8


def test_a_redrive_does_not_count_tasks_that_have_expired(still: Grave, clock) -> None:
    still.bury("A", ttl=5)
    still.bury("A")
    still.letters.begin_redrive(still.db, rate_per_s=FAST)
    clock.advance(6)
    done = still.letters.run_redrive(still.db)
    assert (done.moved, done.passed, done.left) == (1, 0, 0)


def test_processes_that_run_one_redrive_share_its_rate(still: Grave, clock) -> None:
    for n in range(20):
        still.bury("A", data=n)
    still.letters.begin_redrive(still.db, rate_per_s=10)
    second = Database(still.db.engine, clock)  # another process
    letters = DeadLetters.open(second, "grave", root=still.root)
    assert [still.letters.step_redrive(still.db).moved, letters.step_redrive(second).moved] == [2, 0]
    clock.advance(0.2)
    assert [letters.step_redrive(second).moved, still.letters.step_redrive(still.db).moved] == [2, 0]


def test_a_paused_redrive_moves_nothing_until_it_goes_on(grave: Grave) -> None:
    grave.bury_each("A", "A")
    grave.letters.begin_redrive(grave.db, rate_per_s=FAST)
    assert grave.letters.pause_redrive(grave.db).state == RedriveState.PAUSED
    assert grave.letters.run_redrive(grave.db).state == RedriveState.PAUSED
    assert grave.tasks("buried") == 2
    grave.letters.resume_redrive(grave.db)
    assert grave.letters.run_redrive(grave.db).moved == 2


def test_a_stopped_redrive_leaves_the_rest_buried(grave: Grave) -> None:
    grave.bury_each("A", "A")
    grave.letters.begin_redrive(grave.db)
    assert grave.letters.stop_redrive(grave.db).state == RedriveState.STOPPED
    assert (grave.letters.run_redrive(grave.db).moved, grave.tasks("buried")) == (0, 2)
    with pytest.raises(NoRedrive):
        grave.letters.resume_redrive(grave.db)
    assert grave.letters.begin_redrive(grave.db).left == 2


@pytest.mark.parametrize("state", ["running", "paused"])
def test_a_redrive_under_way_is_not_replaced(grave: Grave, state: str) -> None:
    grave.bury("A")
    grave.letters.begin_redrive(grave.db)
    if state == "paused":
        grave.letters.pause_redrive(grave.db)
    with pytest.raises(RedriveUnderWay, match=state):
        grave.letters.begin_redrive(grave.db)


def test_without_a_redrive_there_is_nothing_to_turn(grave: Grave) -> None:
    letters = grave.letters
    for call in (letters.pause_redrive, letters.resume_redrive, letters.stop_redrive, letters.step_redrive):
        with pytest.raises(NoRedrive):
            call(grave.db)


def test_a_redrive_moves_no_more_than_its_limit(grave: Grave) -> None:
    grave.bury_each("A", "A", "A")
    grave.letters.begin_redrive(grave.db, rate_per_s=FAST, limit=2)
    assert grave.letters.run_redrive(grave.db).moved == 2
    assert grave.tasks("buried") == 1


def test_a_task_that_fails_again_stays_buried(grave: Grave) -> None:
    """Otherwise a redrive of a task that always fails would never end."""
    grave.bury_each("A", "A")
    grave.letters.begin_redrive(grave.db, rate_per_s=5)
    assert grave.letters.step_redrive(grave.db).moved == 1
    task = grave.queue.take(grave.db, 0)
    grave.queue.bury(grave.db, task, failure=Failure("A"))
    assert grave.letters.run_redrive(grave.db).moved == 2
    assert grave.listed() == [task.id]


def test_a_redrive_ends_though_tasks_go_on_failing(grave: Grave) -> None:
    grave.bury_each("A", "A")
    grave.letters.begin_redrive(grave.db, rate_per_s=5)
    grave.bury_each("A", "A", "A")
    assert grave.letters.run_redrive(grave.db).moved == 2
    assert grave.tasks("buried") == 3


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "fair"])
def test_tasks_move_into_another_queue(grave: Grave, kind: str) -> None:
    into = other(grave, kind)
    large = "x" * (2 * limits.PAYLOAD_PIECE_BYTES_MAX)
    for data in (1, "two", large):
        grave.bury("A", data=data, pri=7)
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    assert grave.letters.run_redrive(grave.db).moved == 3
    assert data_of(into, grave.db) == [1, "two", large]
    assert (grave.tasks("total"), grave.counted()) == (0, {})
    task = into.take(grave.db, 0)
    assert (task.data, task.pri, task.attempts, task.failures) == (1, 7 if kind == "fifottl" else 0, 1, 0)


def test_tasks_bring_their_failures_into_another_queue(grave: Grave) -> None:
    into, db = other(grave), grave.db
    task = grave.queue.put(db, 1)
    for n in range(limits.FAILURES_KEPT + 1):
        held = grave.queue.take(db, 0)
        grave.queue.release(db, held, failure=Failure("A", f"{n}", 9_000 * "t", "here:1"))
    grave.queue.bury(db, task.id)
    before, keys = grave.queue.failures(db, task), grave.queue._shape.keys
    under, record = keys.failures_of(id_bytes(task.id)), record_of(bytes(db[keys.task(id_bytes(task.id))]))
    assert sum(len(row.value) for row in db.get_range(under.start, under.stop)) <= bytes_max(record)
    assert [failure.message for failure in before] == [str(n) for n in range(1, limits.FAILURES_KEPT + 1)]
    grave.letters.begin_redrive(db, into="other", rate_per_s=FAST)
    grave.letters.run_redrive(db)
    moved = into.take(db, 0)
    assert (into.failures(db, moved), moved.failures) == (before, 0)
    buried = into.bury(db, moved, failure=Failure("B"))
    [found] = DeadLetters.open(db, "other", root=grave.root).classes(db)
    assert (buried.failures, found.error) == (1, "B")
    assert [failure.error for failure in into.failures(db, buried)] == [*["A"] * 9, "B"]
    into.delete(db, buried)
    assert fdbqueue.verify(db, "other", root=grave.root).findings == ()


def test_task_keys_costs_headers_and_traces_go_with_tasks(db, space) -> None:
    grave = Grave(db, space, "fair")
    into, trace = other(grave, "fair"), {"traceparent": "00-1-2-01"}
    key = grave.queue._shape.keys.task(id_bytes(grave.bury("A", key="gold", cost=3, headers={"a": "b"})))
    db[key] = record_to_bytes(structs.replace(record_of(bytes(db[key])), trace=packed_trace(trace)))
    grave.letters.begin_redrive(db, into="other", rate_per_s=FAST)
    grave.letters.run_redrive(db)
    task = into.take(db, 0)
    moved = record_of(bytes(db[into._shape.keys.task(id_bytes(task.id))]))
    assert (task.key, moved.cost, task.trace, task.headers) == ("gold", 3, trace, {"a": "b"})


def test_a_full_queue_takes_no_more_than_its_room(grave: Grave) -> None:
    into = other(grave, "limfifottl", capacity=2)
    grave.bury_each("A", "A", "A")
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    assert grave.letters.step_redrive(grave.db).moved == 2
    waits = grave.letters.step_redrive(grave.db)
    assert (waits.moved, waits.is_full, waits.redrive.state) == (0, True, RedriveState.RUNNING)
    assert waits.wait_s == limits.REDRIVE_LOOK_S
    into.ack(grave.db, into.take(grave.db, 0))
    assert grave.letters.run_redrive(grave.db).moved == 3


def test_a_queue_that_cannot_take_the_tasks_is_refused(grave: Grave) -> None:
    grave.bury("A")
    other(grave, codec="msgpack")
    Queue.named(grave.db, "plain", root=grave.root)
    for into, error in (
        ("nowhere", QueueNotFound),
        ("grave", InvalidArgument),
        ("other", InvalidArgument),
        ("plain", QueueKindMismatch),
    ):
        with pytest.raises(error):
            grave.letters.begin_redrive(grave.db, into=into)
    assert grave.letters.redrive(grave.db) is None


def test_a_redrive_survives_the_drop_of_the_other_queue(grave: Grave) -> None:
    into = other(grave)
    grave.bury("A")
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    into.drop(grave.db)
    with pytest.raises(QueueNotFound):
        grave.letters.run_redrive(grave.db)
    assert grave.tasks("buried") == 1
    other(grave)
    assert grave.letters.run_redrive(grave.db).moved == 1


def test_a_queue_made_again_with_another_codec_gets_no_task(grave: Grave) -> None:
    """Payloads are moved unread: the other codec could not read them."""
    into = other(grave)
    grave.bury("A", data="x")
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    into.drop(grave.db)
    other(grave, codec="msgpack")
    with pytest.raises(InvalidArgument):
        grave.letters.run_redrive(grave.db)
    assert grave.tasks("buried") == 1


def test_a_task_of_then_waits_for_no_group_elsewhere(grave: Grave) -> None:
    into = other(grave)
    of = Group.create(grave.db, then=(grave.queue, "then"), root=grave.root)
    grave.queue.bury(grave.db, of.progress(grave.db).then)
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    assert grave.letters.run_redrive(grave.db).moved == 1
    task = into.take(grave.db, 0)
    assert (task.data, task.waits_for) == ("then", None)


def test_a_task_with_a_lost_payload_stays(grave: Grave) -> None:
    other(grave)
    grave.bury("A", data="x" * 1_000)
    under = grave.queue._shape.keys.payloads_of(b"")
    grave.db.clear_range(under.start, under.stop)
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    done = grave.letters.run_redrive(grave.db)
    assert (done.moved, done.passed, grave.tasks("buried")) == (0, 1, 1)


def test_payloads_and_failures_of_one_step_are_bounded(grave: Grave, monkeypatch) -> None:
    monkeypatch.setattr(limits, "MOVED_BYTES_MAX", 34_000)  # a failure counts as 12,000, a record as 2,000
    into = other(grave)
    for n in range(5):
        grave.bury("A", data=f"{n}" * 400)
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    assert grave.letters.step_redrive(grave.db).moved == 2
    assert grave.letters.run_redrive(grave.db).moved == 5
    assert into.statistics(grave.db)["tasks"]["ready"] == 5


def test_one_step_with_long_keys_fits_a_transaction(db: Database, space) -> None:
    """Each move writes the task key and the unique key a dozen times, and each again as a conflict."""
    grave = Grave(db, space, "utubettl", ttr=60, partitions=2)
    other(grave, "utubettl", ttr=60, partitions=2)
    for n in range(limits.VERB_BATCH):
        long = f"{n:0980}"
        grave.bury(None, data="x" * 19_900, key=long, unique=long, headers={"h": "v" * 900}, result_ttl=3600)
    grave.letters.begin_redrive(db, into="other", rate_per_s=FAST)
    assert grave.letters.run_redrive(db).moved == limits.VERB_BATCH


@pytest.mark.parametrize(
    ("slow", "fast", "state"),
    [("step", "pause", RedriveState.PAUSED), ("resume", "stop", RedriveState.STOPPED)],
)
def test_of_two_calls_about_a_redrive_the_later_sees_the_other(
    grave: Grave, slow: str, fast: str, state: RedriveState
) -> None:
    """Both read and write the redrive: a step overwrites no pause, and a resume undoes no stop."""
    grave.bury_each("A", "A")
    grave.letters.begin_redrive(grave.db, rate_per_s=5)
    late = grave.db.create_transaction()
    getattr(grave.letters, f"{slow}_redrive")(late)
    getattr(grave.letters, f"{fast}_redrive")(grave.db)
    with pytest.raises(engine_errors()):
        late.commit().wait()
    assert (grave.letters.redrive(grave.db).state, grave.tasks("buried")) == (state, 2)


def test_a_later_redrive_begins_at_the_first_task(grave: Grave) -> None:
    """Tasks that were buried again have their old places."""
    grave.bury_each("A", "A", "A")
    grave.letters.begin_redrive(grave.db, rate_per_s=FAST, limit=2)
    grave.letters.run_redrive(grave.db)
    for _ in range(2):
        grave.queue.bury(grave.db, grave.queue.take(grave.db, 0))
    grave.letters.begin_redrive(grave.db, rate_per_s=FAST)
    assert grave.letters.run_redrive(grave.db).moved == grave.tasks("ready") == 3


def test_a_redrive_by_text_leaves_tasks_buried_later(grave: Grave) -> None:
    """A step with a text looks at more tasks than it moves, and may look no farther than its begin did."""
    grave.bury("A", "one"), grave.bury("A", "one")
    grave.letters.begin_redrive(grave.db, text="two", rate_per_s=FAST)
    grave.bury("A", "two")
    done = grave.letters.run_redrive(grave.db)
    assert (done.moved, done.passed, grave.tasks("buried")) == (0, 2, 3)


def test_a_slow_run_learns_soon_that_its_redrive_was_stopped(still: Grave, clock, monkeypatch) -> None:
    """Another process stops it while the run waits for its next step."""
    still.bury_each("A", "A")
    still.letters.begin_redrive(still.db, rate_per_s=0.001)
    pause = Waiter.pause

    def stop_and_pause(waiter, seconds: float) -> None:
        if still.letters.redrive(still.db).is_open:
            still.letters.stop_redrive(still.db)
        pause(waiter, seconds)

    monkeypatch.setattr(Waiter, "pause", stop_and_pause)
    before = clock.now()
    assert still.letters.run_redrive(still.db).state == RedriveState.STOPPED
    assert clock.now() - before <= limits.REDRIVE_LOOK_S


def test_a_run_that_is_stopped_leaves_the_redrive(grave: Grave) -> None:
    grave.bury("A")
    grave.letters.begin_redrive(grave.db)
    stop = grave.db.runtime.event()
    stop.set()
    with pytest.raises(WaitStopped):
        grave.letters.run_redrive(grave.db, stop=stop)
    assert grave.letters.redrive(grave.db).state == RedriveState.RUNNING


@pytest.mark.parametrize(
    "wanted",
    [{"rate_per_s": 0}, {"rate_per_s": float("inf")}, {"rate_per_s": True}, {"limit": 0}, {"into": ""}],
)
def test_what_is_no_rate_and_no_number_is_refused(grave: Grave, wanted) -> None:
    with pytest.raises(InvalidArgument):
        grave.letters.begin_redrive(grave.db, **wanted)


def test_a_damaged_redrive_counts_as_none(grave: Grave) -> None:
    grave.bury("A")
    grave.letters.begin_redrive(grave.db)
    grave.db[grave.queue._shape.keys.redrive] = b"\xc1"
    assert grave.letters.redrive(grave.db) is None
    assert grave.letters.begin_redrive(grave.db).left == 1


def test_each_task_brings_its_own_failures_behind_one_that_stays(grave: Grave) -> None:
    """The payload of the first one cannot be read."""
    into, db = other(grave), grave.db
    lost, *ids = [grave.bury("A", f"of {n}", "x" * 1_000) for n in range(3)]
    under = grave.queue._shape.keys.payloads_of(id_bytes(lost))
    db.clear_range(under.start, under.stop)
    grave.letters.begin_redrive(db, into="other", rate_per_s=1e6)
    assert grave.letters.run_redrive(db).moved == len(ids)
    told: list[list[str]] = []
    while (task := into.take(db, 0)) is not None:
        told.append([failure.message for failure in into.failures(db, task)])
        into.bury(db, task, failure=Failure("B"))
    assert told == [["of 1"], ["of 2"]]
    assert grave.listed() == [lost]


def test_a_unique_key_stays_behind(grave: Grave) -> None:
    into = other(grave)
    grave.bury("A", unique="k")
    grave.letters.begin_redrive(grave.db, into="other", rate_per_s=FAST)
    grave.letters.run_redrive(grave.db)
    task = into.take(grave.db, 0)
    assert task is not None
    assert task.unique is None
    assert not grave.queue.put(grave.db, "B", unique="k").existed
    assert fdbqueue.verify(grave.db, root=grave.root).findings == ()
