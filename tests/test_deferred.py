"""Nothing is taken for done that has not run: coroutines and generators are refused, or their result is."""

import asyncio
import gc
import logging
import threading
import warnings
from unittest.mock import AsyncMock, MagicMock

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import (
    Backoff,
    Bury,
    Done,
    Event,
    FairQueue,
    HeldTask,
    Hooks,
    Retry,
    Session,
    TaskQueue,
    TaskState,
    Worker,
)
from fdbqueue.core.arguments import checked_function, require_finished
from fdbqueue.core.errors import DeferredBody, DeferredResult, InvalidArgument
from fdbqueue.fleet.worker import is_asynchronous
from fdbqueue.tasks.options import register_kind
from fdbqueue.testing import Simulation
from tests.deferred import REFUSED, RETURNING, coroutine, generator
from tests.support import wait_until

SOON = Backoff(first_s=0.01, cap_s=0.02)


@pytest.fixture
def db():
    with fdbqueue.open("memory:") as database:
        yield database


@pytest.fixture
def queue(db):
    return TaskQueue.create(db, "jobs", "fifottl", ttr=30)


@pytest.fixture(autouse=True)
def _no_warning():
    """A coroutine that is never awaited warns when it is collected: each of them has to be closed."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()


refused = pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
returning = pytest.mark.parametrize("function", RETURNING.values(), ids=RETURNING)


def test_a_deferred_handler_is_refused_before_anything_is_taken(db, queue):
    queue.put(db, "x")
    for function in REFUSED.values():
        if is_asynchronous(function):
            continue  # an event loop runs it: tests/aio/test_worker.py
        with pytest.raises(DeferredBody, match="must be a plain function, not a"):
            Worker(db, "jobs", function)
    assert queue.statistics(db)["calls"]["take"] == 0


@pytest.mark.parametrize("transactional", [False, True])
def test_a_handler_that_returns_unfinished_work_has_failed(db, queue, transactional):
    """Each kind of result, as the name in the task says."""
    ids = [queue.put(db, name).id for name in RETURNING]

    def handler(*arguments):
        return RETURNING[arguments[-1].data](*arguments)

    worker = Worker(db, queue, handler, attempts=2, backoff=SOON, transactional=transactional)
    worker.run(until_empty=True)
    tally = worker.status().tally
    assert (tally.done, tally.failed, tally.buried) == (0, len(ids), len(ids))
    for id_ in ids:
        [failure, _] = queue.failures(db, id_)
        assert failure.error == "DeferredResult"
        assert failure.message.startswith("the handler returned a")


def test_a_verdict_that_is_returned_is_a_failed_attempt(db, queue):
    """It would be acked, whatever it says."""
    verdicts = [Retry(1), Bury, Done()]
    ids = [queue.put(db, n).id for n in range(len(verdicts))]
    Worker(db, queue, lambda task: verdicts[task.data], attempts=1).run(until_empty=True)
    for id_ in ids:
        assert "instead of raising it" in queue.failures(db, id_)[0].message


def test_plain_functions_pass():
    """Plain functions that resemble asynchronous ones pass, too."""

    class Handler:
        def __init__(self, task):
            pass

        async def close(self):
            pass

    def bridged(_):
        asyncio.run(coroutine())

    for handler in (print, Handler, bridged, MagicMock(), lambda _: None):
        assert checked_function("handler", handler) is handler
    for result in (None, [1], "text", MagicMock(), Handler(1), iter([1]), open):
        assert require_finished("the handler", result) is result
    with pytest.raises(DeferredBody):
        checked_function("handler", AsyncMock())


def test_the_hint_for_a_generator_is_not_to_yield():
    with pytest.raises(DeferredBody, match=r"run its body\. A plain function may run a coroutine"):
        checked_function("handler", coroutine)
    with pytest.raises(DeferredBody, match=r"run its body\. A plain function returns, and does not yield\.$"):
        checked_function("handler", generator)
    for name in ("generator", "async_generator", "context_manager", "async_context_manager"):
        with pytest.raises(DeferredResult, match=r"has not run\. A plain function returns, and"):
            require_finished("the handler", RETURNING[name]())


@refused
def test_effects_and_hooks_are_refused(function):
    with pytest.raises(DeferredBody, match=r"^effect must be"):
        Done(function)
    with pytest.raises(DeferredBody, match=r"^hook buried must be"):
        Hooks(buried=function)


def test_other_callbacks_are_refused(db, queue):
    """Key functions, callbacks of changes, sessions' `wanted`, disciplines, transactional functions."""
    space = Subspace(("fair",))
    refusals = [
        lambda function: FairQueue(space, key=function),
        queue.on_task_change,
        lambda function: Session(db, wanted=function),
        lambda function: register_kind("never", function, ()),
        fdbqueue.transactional,
    ]
    for call in refusals:
        for function in REFUSED.values():
            with pytest.raises(DeferredBody):
                call(function)
    assert queue.on_task_change() is None


def test_what_cannot_be_called_is_refused(db, queue):
    refusals = [
        lambda: Worker(db, queue, "handler"),
        lambda: Hooks(started="hook"),
        lambda: Done("effect"),
        lambda: FairQueue(Subspace(("fair",)), key="name"),
        lambda: queue.on_task_change("callback"),
        lambda: Session(db, wanted=True),
    ]
    for call in refusals:
        with pytest.raises(InvalidArgument):
            call()


def test_a_simulated_client_is_refused():
    simulation = Simulation(seed=1)
    with pytest.raises(DeferredBody, match="client reader"):
        simulation.client(generator, "reader")


def test_an_effect_with_unfinished_work_fails_its_attempt(db, queue):
    ids = [queue.put(db, name).id for name in RETURNING]

    def handler(task):
        raise Done(RETURNING[task.data])

    Worker(db, queue, handler, attempts=1).run(until_empty=True)
    for id_ in ids:
        assert queue.failures(db, id_)[0].message.startswith("the effect returned a")


@returning
def test_a_hook_that_returns_unfinished_work_is_logged(db, function, caplog):
    Hooks(succeeded=function).tell(Event("succeeded", HeldTask("id", TaskState.TAKEN, "x")), db.troubles)
    assert "hook succeeded returned a" in caplog.text


def test_a_callback_that_returns_unfinished_work_is_logged(db, queue, caplog):
    queue.on_task_change(RETURNING["coroutine"])
    queue.put(db, "x")
    wait_until(lambda: "on_task_change returned a coroutine" in caplog.text)


def test_a_key_that_is_unfinished_work_is_refused(db):
    fair = FairQueue(Subspace(("fair",)), key=RETURNING["sync_wrapper"], capacity=None)
    with pytest.raises(DeferredResult, match="the key function returned a coroutine"):
        fair.put(db, "x")
    assert fair.size(db) == 0


def test_a_session_stays_if_wanted_returns_unfinished_work(db, caplog):
    """The error is told once, and the heartbeats of the process go on."""
    with caplog.at_level(logging.ERROR), Session(db, wanted=RETURNING["coroutine"]) as session:
        wait_until(lambda: "wanted returned a coroutine" in caplog.text)
        assert not session.lost
        threading.Event().wait(0.5)
    assert caplog.text.count("wanted returned") == 1


def test_a_transaction_with_unfinished_work_is_not_committed(db):
    @fdbqueue.transactional
    def write(tr, returning):
        tr[b"k"] = b"v"
        return returning()

    for function in RETURNING.values():
        with pytest.raises(DeferredResult):
            write(db, function)
    assert db[b"k"] is None
