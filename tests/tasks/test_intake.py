"""Intake: takes from several queues are fair, end when they are told to, and cost no task."""

import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from fdbqueue import Session, TaskQueue
from fdbqueue.core.runtime import Event
from fdbqueue.core.task import Task
from fdbqueue.tasks.intake import Intake
from tests.support import PATIENCE_S


@pytest.fixture
def queues(db, space):
    return [TaskQueue.create(db, name, "fifottl", root=space) for name in ("one", "two", "three")]


@pytest.fixture
def take(db, space):
    with Session(db, root=space) as session:

        def take(queue: TaskQueue, count: int, timeout_s: float, stop: Event) -> Sequence[Task]:
            return queue.take_many(db, count, timeout_s, session=session, stop=stop)

        yield take


def names_of(found):
    return [queue.name for queue, _ in found]


def test_a_call_without_a_wait_asks_every_queue(db, queues, take):
    """The queue was empty a moment ago, and a wait would find its new task."""
    one, two, _ = queues
    intake, stop, wanted = Intake(db.runtime, {}, rest_s=600.0), db.runtime.event(), {one: 1, two: 1}
    one.put(db, 1)
    assert names_of(intake.take(take, wanted, PATIENCE_S, stop)) == ["one"]
    assert intake.look(take, wanted, PATIENCE_S, stop) == []
    two.put(db, 1)
    assert names_of(intake.take(take, wanted, 0.0, stop)) == ["two"]


def test_a_stop_ends_a_wait_and_leaves_the_lines(db, queues, take):
    intake, stop = Intake(db.runtime, {}), db.runtime.event()
    found: list[object] = ["none yet"]

    def wait() -> None:
        found[:] = intake.take(take, dict.fromkeys(queues, 1), 600.0, stop)

    thread = threading.Thread(target=wait)
    thread.start()
    stop.set()
    thread.join(PATIENCE_S)
    assert found == []
    queues[1].put(db, 1)
    assert queues[1].statistics(db)["tasks"]["ready"] == 1


def test_a_take_that_is_stopped_already_takes_nothing(db, queues, take):
    queues[0].put(db, 1)
    intake, stop = Intake(db.runtime, {}), db.runtime.event()
    stop.set()
    for wanted in (dict.fromkeys(queues, 1), {queues[0]: 1}):
        assert intake.take(take, wanted, 600.0, stop) == []
    assert queues[0].statistics(db)["tasks"]["ready"] == 1


def test_a_failing_queue_leaves_their_turns_to_the_others(db, queues, take):
    one, two, _ = queues
    two.put_many(db, range(5))
    intake, stop = Intake(db.runtime, {}), db.runtime.event()

    def failing(queue: TaskQueue, count: int, timeout_s: float, stop: Event) -> Sequence[Task]:
        if queue is one:
            raise LookupError(queue.name)
        return take(queue, count, timeout_s, stop)

    found = []
    for _ in range(10):
        with suppress(LookupError):
            found += names_of(intake.take(failing, {one: 1, two: 1}, 0.0, stop))
    assert found == ["two"] * 5


def test_a_queue_is_asked_again_at_once_unless_it_rests(db, queues, take):
    one, two, _ = queues
    intake, stop = Intake(db.runtime, {}), db.runtime.event()
    assert intake.look(take, {one: 1, two: 1}, PATIENCE_S, stop) == []
    two.put(db, 1)
    assert names_of(intake.look(take, {one: 1, two: 1}, PATIENCE_S, stop)) == ["two"]


def test_each_queue_gives_as_many_tasks_as_the_others(db, queues, take):
    """Queues whose takes bring many tasks have fewer turns."""
    one, two, _ = queues
    one.put_many(db, range(50))
    two.put_many(db, range(50))
    intake, stop = Intake(db.runtime, {}), db.runtime.event()
    wanted = {one: 6, two: 2}
    names = [name for _ in range(12) for name in names_of(intake.take(take, wanted, 0.0, stop))]
    assert abs(names.count("one") - names.count("two")) <= 6
