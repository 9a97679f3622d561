"""A worker goes by the attempts and the backoff of the task, then of its queue, then by its own."""

import math
from typing import Any

import pytest

from fdbqueue import Backoff, Failure, Hooks, Session, TaskQueue, TaskState, Worker
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.options import WorkerOptions
from fdbqueue.fleet.settling import Settling
from fdbqueue.fleet.status import Orders, orders_of, to_line
from fdbqueue.tasks.attempts import Asked
from tests.fleet.conftest import SOON

RARE = Backoff(1_000, cap_s=1_000)


@pytest.fixture
def make(db, space):
    def make(**options: Any) -> TaskQueue:
        return TaskQueue.create(db, "counted", root=space, backoff=SOON, **options)

    return make


def odd(_):
    raise ValueError("odd")


@pytest.mark.parametrize(
    ("own", "queue", "worker", "most"),
    [
        (2, 3, 1, 2),
        (3, 2, 1, 3),
        (None, 2, 3, 2),
        (None, None, 3, 3),
        (None, None, None, 5),
        (None, 2, math.inf, 2),
    ],
)
def test_the_first_number_that_is_said_counts(db, make, space, own, queue, worker, most):
    q = make(attempts=queue)
    id_ = q.put(db, "x", attempts=own).id
    Worker(db, q, odd, threads=1, attempts=worker, root=space).run(until_empty=True)
    assert [one.outcome for one in q.failures(db, id_)] == ["retried"] * (most - 1) + ["buried"]


def test_inf_of_a_put_goes_before_the_number_of_the_worker(db, make, space):
    q, begun = make(attempts=1), []

    def handler(task):
        begun.append(task.attempts_max)
        if task.attempts < 4:
            raise ValueError

    q.put(db, "x", attempts=math.inf)
    Worker(db, q, handler, threads=1, attempts=1, root=space).run(until_empty=True)
    assert begun == [math.inf] * 4


def test_the_backoff_of_the_queue_goes_before_that_of_the_worker(db, make, space):
    """Otherwise the worker would not end."""
    make().put(db, "x", attempts=3)
    Worker(db, "counted", odd, threads=1, backoff=RARE, root=space).run(until_empty=True)


@pytest.mark.parametrize(("own", "queue", "worker"), [(2, 9, 9), (None, 2, 9), (None, None, 2)])
def test_lost_leases_bury_by_the_number_in_force(db, make, space, own, queue, worker, caplog):
    q = make(attempts=queue)
    id_ = q.put(db, "poison", attempts=own).id
    for _ in range(2):
        session = Session(db, root=space)
        assert q.take(db, 5, session=session)
        end_session(db, session._keys, session.id, lambda *_: True, died=True)
    Worker(db, q, lambda _: pytest.fail("begun"), attempts=worker, root=space).run(until_empty=True)
    assert [one.outcome for one in q.failures(db, id_)] == ["lease_lost", "exhausted"]
    assert f"task {id_} of counted: buried: its attempts are used up" in caplog.text


def test_lost_leases_below_the_number_in_force_bury_nothing(db, make, space):
    q, begun = make(), []
    q.put(db, "x", attempts=3)
    for _ in range(2):
        session = Session(db, root=space)
        assert q.take(db, 5, session=session)
        end_session(db, session._keys, session.id, lambda *_: True, died=True)
    Worker(db, q, lambda task: begun.append(task.failures), attempts=1, root=space).run(until_empty=True)
    assert begun == [2]


def test_a_verb_of_the_handler_that_buries_is_told_so(db, make, space):
    """Its release with a failure was the last one that the queue allows."""
    q, told = make(attempts=1), []
    hooks = Hooks(buried=lambda event: told.append(event.task.data))
    q.put(db, "x")
    Worker(db, q, lambda task: q.release(db, task, failure=Failure("Odd")), hooks=hooks, root=space).run(
        until_empty=True
    )
    assert told == ["x"]


def test_a_running_worker_goes_by_another_number_of_the_queue(db, other, make, space):
    """Another process changes it while the handler runs."""
    q, begun = make(attempts=9), []
    twin = TaskQueue.open(other, "counted", root=space)

    def handler(task):
        begun.append(task.failures)
        if task.failures == 1:
            twin.alter(other, attempts=2)
        raise ValueError("odd")

    id_ = q.put(db, "x").id
    Worker(db, q, handler, threads=1, root=space).run(until_empty=True)
    assert begun == [0, 1]
    assert [one.outcome for one in q.failures(db, id_)] == ["retried", "buried"]


def test_a_running_worker_goes_by_another_backoff_of_the_queue(db, other, space):
    """With that of before, it would not end."""
    q = TaskQueue.create(db, "slow", root=space, backoff=RARE, attempts=3)
    twin = TaskQueue.open(other, "slow", root=space)

    def handler(task):
        if not task.failures:
            twin.alter(other, backoff=SOON)
        raise ValueError("odd")

    id_ = q.put(db, "x").id
    Worker(db, q, handler, threads=1, root=space).run(until_empty=True)
    assert len(q.failures(db, id_)) == 3


@pytest.mark.parametrize(("own", "after", "buried"), [(None, 9, False), (None, 1, True), (2, 9, True)])
def test_lost_leases_bury_by_the_number_in_force_after_a_change(db, other, make, space, own, after, buried):
    """The change comes between the take and the start of the attempt. This process has not met it yet."""
    q = make(attempts=2)
    id_ = q.put(db, "poison", attempts=own).id
    for _ in range(2):
        session = Session(db, root=space)
        assert q.take(db, 5, session=session)
        end_session(db, session._keys, session.id, lambda *_: True, died=True)
    session = Session(db, root=space)
    hold = Hold(q, q.take(db, 5, session=session), db, session, db.runtime.now())
    TaskQueue.open(other, "counted", root=space).alter(other, attempts=after)
    assert Settling(db, RootKeys(space), Asked()).bury_if_exhausted(hold) == buried
    assert (q.peek(db, id_).state == TaskState.BURIED) == buried


@pytest.mark.parametrize("said", [None, 3, math.inf])
def test_the_orders_of_a_fleet_carry_them(said):
    options = {} if said is None else {"attempts": said, "backoff": RARE}
    orders = Orders("memory:", "", {}, "a:b", WorkerOptions.checked(**options))
    found = orders_of(to_line(orders)).options
    assert (found.keywords()["attempts"], found.backoff) == (said, options.get("backoff"))
    assert WorkerOptions.checked(**found.keywords()) == found
