"""Attempts and backoff: those of the put, else of the queue, else of the worker, else the default."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Backoff, DeadLetters, Failure, Group, Schedule, TaskQueue, verify
from fdbqueue.core.errors import QueueExists
from fdbqueue.core.registry import Definition
from fdbqueue.tasks.attempts import USUAL, Asked, asked, in_force, of_extra, of_settings
from fdbqueue.tasks.options import Settings, settings_of, stored_settings
from fdbqueue.tasks.stored.records import Extra
from tests.exports.support import export, imported
from tests.tasks.partitions import MakeParted, PartitionsBench

ODD = Failure("Odd", "very")
FIXED = Backoff(8, growth=1, cap_s=8)
"""A pause of 4 to 8 seconds."""

numbers = st.none() | st.integers(1, 9) | st.just(math.inf)
spans = st.floats(0, 1e6)
backoffs = st.none() | st.builds(
    lambda ends, growth: Backoff(min(ends), growth, max(ends)), st.tuples(spans, spans), st.floats(1, 1_000)
)
saying = st.builds(Asked, numbers, backoffs)


@given(saying, saying, saying)
def test_the_first_source_decides(task: Asked, queue: Asked, worker: Asked) -> None:
    found = in_force(task, queue, worker)
    said = {"task": task, "queue": queue, "worker": worker, "default": USUAL}
    for field, value, who in (
        ("attempts", found.attempts, found.attempts_from),
        ("backoff", found.backoff, found.backoff_from),
    ):
        before = list(said)[: list(said).index(who)]
        assert [getattr(said[name], field) for name in before] == [None] * len(before)
        assert value == getattr(said[who], field)
        assert value is not None


@given(saying, saying)
def test_without_a_worker_the_rest_is_its(task: Asked, queue: Asked) -> None:
    found, with_one = in_force(task, queue), in_force(task, queue, Asked())
    for value, who, other, other_who in (
        (found.attempts, found.attempts_from, with_one.attempts, with_one.attempts_from),
        (found.backoff, found.backoff_from, with_one.backoff, with_one.backoff_from),
    ):
        assert (value, who) == ((None, "worker") if other_who == "default" else (other, other_who))


@given(saying)
def test_a_record_and_a_definition_give_it_back(said: Asked) -> None:
    given_ = {name: value for name, value in said._asdict().items() if value is not None}
    extra = Extra(**(asked(given_, None, None) if given_ else {}))
    assert of_extra(msgspec.msgpack.decode(msgspec.msgpack.encode(extra), type=Extra)) == said
    stored = msgspec.json.decode(msgspec.json.encode(settings_of(given_).to_options()))
    definition = Definition("q", 1, "fifo", stored)
    assert of_settings(stored_settings(definition)) == said
    assert not given_ or stored != Settings().to_options()


@pytest.mark.parametrize("part", [None, 3, [], ["x"], [1, [1]], [1, [-1, 2, 3]], {"a": 1}])
def test_a_part_that_cannot_be_read_counts_as_none(part: Any) -> None:
    assert of_extra(Extra(more=(part,))) == Asked()


def fail(b: PartitionsBench, **options: Any) -> Any:
    """Take the next task, and release it with a failure."""
    return b.queue.release(b.db, b.take(), failure=ODD, **options)


def test_a_release_with_a_failure_counts_by_the_queue(parted: MakeParted) -> None:
    b = parted("fifo", attempts=3)
    id_ = b.put(1)
    assert [fail(b).state.value for _ in range(3)] == ["r", "r", "!"]
    assert [one.outcome for one in b.queue.failures(b.db, id_)] == ["retried", "retried", "buried"]
    b.queue.kick(b.db)
    kicked = fail(b)
    assert (kicked.failures, kicked.state) == (1, "r")


@pytest.mark.parametrize(("own", "states"), [(1, "!"), (3, "rr!"), (math.inf, "rrrr")])
def test_the_number_of_a_put_goes_before_that_of_the_queue(
    parted: MakeParted, own: float, states: str
) -> None:
    b = parted("fifo", attempts=2)
    b.put(1, attempts=own)
    assert "".join(fail(b).state.value for _ in states) == states


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utubettl", "fair", "bag"])
def test_the_backoff_in_force_delays(parted: MakeParted, kind: str) -> None:
    """In kinds without delays, too."""
    b = parted(kind, backoff=Backoff(1_000, cap_s=1_000))
    b.put(1, backoff=FIXED)
    b.put(2)
    pauses = {task.data: task.until - b.clock.now() for task in (fail(b), fail(b))}
    assert 4 <= pauses[1] <= 8
    assert 500 <= pauses[2] <= 1_000


def test_a_delay_of_the_call_goes_before_a_backoff(parted: MakeParted) -> None:
    b = parted(backoff=FIXED, attempts=2)
    b.put(1)
    assert fail(b, delay=0).state == "r"
    assert fail(b, delay=30).state == "!"  # and buries all the same


def test_without_either_a_release_is_as_before(parted: MakeParted) -> None:
    b = parted()
    b.put(1)
    assert {fail(b).state.value for _ in range(9)} == {"r"}
    b.take()
    assert b.queue.release(b.db, b.queue.tasks(b.db, "t", 1)[0].id, session=b.session).failures == 9


def test_a_release_without_a_failure_does_not_count(parted: MakeParted) -> None:
    b = parted(attempts=1, backoff=FIXED)
    b.put(1)
    assert {b.queue.release(b.db, b.take()).state.value for _ in range(5)} == {"r"}


def test_a_lost_lease_counts(parted: MakeParted) -> None:
    b = parted(attempts=2, ttr=5)
    b.put(1)
    b.take()
    b.clock.advance(6)
    assert fail(b).state == "!"


def test_a_task_that_was_cancelled_ends(parted: MakeParted) -> None:
    b = parted(attempts=1)
    b.put(1)
    task = b.take()
    b.queue.cancel(b.db, task)
    assert b.queue.release(b.db, task, failure=ODD).state == "-"


def test_it_is_part_of_the_caller_s_transaction(parted: MakeParted) -> None:
    b = parted(attempts=1)
    b.put(1)
    task = b.take()
    tr = b.db.create_transaction()
    assert b.queue.release(tr, task, failure=ODD).state == "!"
    assert b.queue.peek(b.db, task).state == "t"
    tr.commit().wait()
    assert b.queue.peek(b.db, task).state == "!"


# They go with their task, and are shown.


def test_a_repartition_keeps_them(parted: MakeParted) -> None:
    b = parted("utubettl", attempts=9)
    ids = [b.put(n, key=n, delay=1, attempts=1, backoff=FIXED) for n in range(8)]
    b.repartition(4)
    b.settle()
    assert len(set(b.places().values())) > 1
    assert {b.queue.peek(b.db, id_).attempts_max for id_ in ids} == {1}
    assert [fail(b).state.value for _ in ids] == ["!"] * 8
    assert b.queue.options["attempts"] == 9
    assert verify(b.db, root=b.root).sound


def test_a_redrive_into_another_queue_keeps_those_of_the_put(parted: MakeParted) -> None:
    b = parted(attempts=1)
    other = TaskQueue.create(b.db, "other", attempts=7, root=b.root)
    b.put("own", attempts=2, backoff=FIXED)
    b.put("none")
    for _ in range(2):
        b.queue.bury(b.db, b.take(), failure=ODD)
    letters = DeadLetters.open(b.db, "bench", root=b.root)
    letters.begin_redrive(b.db, into="other", rate_per_s=1e6)
    while letters.step_redrive(b.db).redrive.is_open:
        b.clock.advance(1)
    found = {task.data: other.explain(b.db, task) for task in other.tasks(b.db, "r", 9)}
    told = {data: (one.attempts_max, one.attempts_from) for data, one in found.items()}
    assert told == {"own": (2, "task"), "none": (7, "queue")}


def test_tasks_of_groups_and_schedules_have_them(parted: MakeParted) -> None:
    b = parted()
    group = Group.create(b.db, then=(b.queue, "then", {"attempts": 3}), root=b.root)
    group.put(b.db, b.queue, "member", attempts=4)
    schedule = Schedule.create(
        b.db, "s", queue="bench", every=60, attempts=math.inf, backoff=FIXED, root=b.root
    )
    task = schedule.run(b.db)
    assert task.attempts_max == math.inf
    assert {one.data: one.attempts_max for one in b.queue.tasks(b.db, "~", 9)} == {"then": 3}
    [member, _] = b.queue.tasks(b.db, "r", 9)
    assert member.attempts_max == 4
    assert schedule.status(b.db).options == {"attempts": math.inf, "backoff": FIXED}


def test_put_many_gives_each_the_same(parted: MakeParted) -> None:
    b = parted()
    assert [t.attempts_max for t in b.queue.put_many(b.db, [1, 2], attempts=2, backoff=FIXED)] == [2, 2]


def test_a_later_put_of_the_unique_key_may_say_others(parted: MakeParted) -> None:
    b = parted()
    id_ = b.put(1, unique="k", attempts=2)
    for own, found in ((None, 2), (5, 5)):
        b.put(1, unique="k", on_conflict="replace", attempts=own)
        assert b.queue.peek(b.db, id_).attempts_max == found


@pytest.mark.parametrize(
    ("own", "queue", "told"),
    [
        (2, 3, (2, "task")),
        (None, 3, (3, "queue")),
        (None, None, (None, "worker")),
        (math.inf, 3, (math.inf, "task")),
    ],
)
def test_explain_tells_the_number_and_its_source(
    parted: MakeParted, own: float | None, queue: float | None, told: tuple[float | None, str]
) -> None:
    b = parted(attempts=queue)
    found = b.queue.explain(b.db, b.put(1, attempts=own))
    assert (found.attempts_max, found.attempts_from) == told


def test_explain_tells_how_many_are_left(parted: MakeParted) -> None:
    b = parted(attempts=3, backoff=FIXED)
    id_ = b.put(1)
    fail(b)
    [reason] = b.queue.explain(b.db, id_).reasons
    assert reason.text == "It is delayed after Odd: very. It has failed 1 time; its queue allows 3."


def test_an_equal_queue_is_opened(parted: MakeParted) -> None:
    b = parted()
    options: dict[str, Any] = {"attempts": math.inf, "backoff": FIXED, "root": b.root}
    made = TaskQueue.create(b.db, "new", **options)
    TaskQueue.create(b.db, "new", if_not_exists=True, **options)
    TaskQueue.create(b.db, "new", if_not_exists=True, root=b.root)
    with pytest.raises(QueueExists, match="attempts = inf; asked for was attempts = 2"):
        TaskQueue.create(b.db, "new", if_not_exists=True, attempts=2, root=b.root)
    assert (made.options["attempts"], made.options["backoff"]) == (math.inf, FIXED)


def test_a_queue_without_them_is_stored_as_before(parted: MakeParted) -> None:
    b = parted()
    assert not {"attempts", "backoff"} & set(b.queue.options)
    b.put(1, headers={"a": "b"})
    [row] = [row for row in b.contents().items() if b"\xa1a\xa1b" in row[1]][:1]
    assert msgspec.msgpack.decode(row[1])[-1][-1] == []


def test_an_export_brings_them(tmp_path: Path, parted: MakeParted) -> None:
    b = parted(attempts=3, backoff=FIXED)
    id_ = b.put(1, attempts=math.inf, backoff=Backoff(1))
    b.queue.pause(b.db)
    export(b.db, tmp_path / "export", root=b.root)
    with fdbqueue.open("memory:") as db:
        imported(db, tmp_path / "export")
        there = TaskQueue.open(db, "bench")
        assert (there.options["attempts"], there.options["backoff"]) == (3, FIXED)
        assert there.peek(db, id_).attempts_max == math.inf
        assert verify(db).sound
