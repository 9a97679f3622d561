"""Commits of takes and of requests that end with 1039, and arrive later or not at all."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Queue, TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.errors import DatabaseClosed, WaitStopped
from fdbqueue.core.line.decision import LineKeys, Look, Reason
from fdbqueue.core.runtime import Event
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.tasks.stored.records import TaskKeys
from tests.queue_support import Quiet, registered
from tests.support import (
    CLUSTER_VERSION_CHANGED,
    NOT_COMMITTED,
    PATIENCE_S,
    commit_code,
    wait_until,
)

REGISTERS, TAKES = "set_versionstamped_key", "clear"


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


class LateTransaction:
    """A transaction of an engine. The first that calls the method `owner.verb` is late."""

    def __init__(self, owner: "LateEngine") -> None:
        self._owner = owner
        self._tr = owner.engine.create_transaction()
        self._called: list[str] = []

    def commit(self) -> Any:
        if self._owner.verb in self._called and self._owner.late is None:
            self._tr.get_read_version().wait()  # a cluster gives each commit one before it is sent
            self._owner.late = self._tr
            return FailedCommit(self._owner, CLUSTER_VERSION_CHANGED)
        if self._owner.late is not None:
            self._owner.at_next_commit()
        return self._tr.commit()

    def on_error(self, error: Any) -> Any:
        if error.code != CLUSTER_VERSION_CHANGED:
            return self._tr.on_error(error)
        self._tr = self._owner.engine.create_transaction()
        self._owner.meanwhile()
        return self._tr.get_read_version()

    def __getattr__(self, name: str) -> Any:
        self._called.append(name)
        return getattr(self._tr, name)


class FailedCommit:
    def __init__(self, owner: "LateEngine", code: int) -> None:
        self._owner = owner
        self._code = code

    def wait(self) -> None:
        raise self._owner.error(self._code)


class LateEngine:
    """An engine's database. `moment`: when the late commit arrives, relative to the commit after it."""

    def __init__(self, engine: Any, error: type[Exception], moment: str, verb: str) -> None:
        self.engine = engine
        self.error = error
        self.moment = moment
        self.verb = verb
        self.late: Any = None
        self.ends: Callable[[], object] = lambda: None
        """Called after the error of the late commit."""

    def create_transaction(self) -> LateTransaction:
        return LateTransaction(self)

    def meanwhile(self) -> None:
        if self.moment == "before":
            self.arrive()
        self.ends()

    def at_next_commit(self) -> None:
        if self.moment == "during":
            self.arrive()

    def arrive(self) -> int:
        """Return the error code of the late commit, 0 if it is committed."""
        self.moment = "arrived"
        return commit_code(self.late)


@dataclass(frozen=True)
class Kind:
    """A queue with a line: its calls, given a database."""

    line: LineKeys
    put: Callable[[Database, str], object]
    wait: Callable[[Database, float, Event], Any]
    ready: Callable[[Database], int]
    gives_back: bool
    """A take that a stopped call has not asked for any more is undone."""


def recipe(_: Database, space: Subspace) -> Kind:
    queue = Queue(space[0], root=space[1])
    return Kind(
        LineKeys(QueueKeys(space[0]).line),
        put=queue.enqueue,
        wait=lambda db, timeout, stop: queue.dequeue(db, timeout=timeout, stop=stop),
        ready=queue.size,
        gives_back=False,
    )


def tasks(db: Database, space: Subspace) -> Kind:
    queue = TaskQueue.create(db, "late", root=space)
    return Kind(
        LineKeys(TaskKeys(queue.contents).line),
        put=queue.put,
        wait=lambda db, timeout, stop: queue.take(db, timeout, stop=stop),
        ready=lambda db: queue.statistics(db)["tasks"]["ready"],
        gives_back=True,
    )


@pytest.fixture(params=[recipe, tasks])
def kind(request: pytest.FixtureRequest, db: Database, space: Subspace) -> Kind:
    made: Kind = request.param(db, space)
    return made


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("end", ["interrupt", "stop", "timeout", "close"])
def test_a_late_registration_leaves_no_request(
    db: Database, fdb_module: ModuleType, kind: Kind, end: str, moment: str
) -> None:
    """The call ends while its registration is late, in each of the ways in which a wait can end."""
    engine = LateEngine(db.engine, fdb_module.FDBError, moment, REGISTERS)
    client = Database(engine, Quiet())  # type: ignore[arg-type]  # options are never asked for
    stop = client.runtime.event()
    closing = threading.Thread(target=client.close)

    def interrupt() -> None:
        raise Interrupted

    def close() -> None:
        closing.start()
        wait_until(lambda: client.closed)

    timeout_s = 0.01 if end == "timeout" else PATIENCE_S
    pause = partial(client.runtime.sleep, 2 * timeout_s)
    engine.ends = {"interrupt": interrupt, "stop": stop.set, "timeout": pause, "close": close}[end]
    with suppress(Interrupted, WaitStopped, DatabaseClosed):
        assert kind.wait(client, timeout_s, stop) is None
    assert engine.late is not None
    assert engine.moment == "arrived" or engine.arrive() == NOT_COMMITTED
    assert list(db.get_range_startswith(kind.line.prefix)) == []
    client.close()
    if end == "close":
        closing.join(PATIENCE_S)


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_item_for_a_late_registration_is_not_lost(
    db: Database, fdb_module: ModuleType, space: Subspace, interrupted: bool
) -> None:
    """Another process serves the request before its owner knows that it is in the line."""
    engine = LateEngine(db.engine, fdb_module.FDBError, "before", REGISTERS)
    client = Database(engine, Quiet())  # type: ignore[arg-type]  # options are never asked for
    queue = Queue(space[0], root=space[1])
    line = queue._recipe.zero.line

    def serve() -> None:
        queue.enqueue_many(db, ["its item", "another"])
        now_us = db.runtime.now_us()
        server = registered(db, line, b"the server's", now_us)
        assert run(db, lambda tr: line.look(tr, server, Look(now_us, Reason.NEGLECT))).answers == ["another"]
        if interrupted:
            raise Interrupted

    engine.ends = serve
    if interrupted:
        with pytest.raises(Interrupted):
            queue.dequeue(client, timeout=PATIENCE_S)
    else:
        assert queue.dequeue(client, timeout=PATIENCE_S) == "its item"
    assert list(queue.items(db, 9)) == ["its item"] * interrupted
    assert list(db.get_range_startswith(line.keys.prefix)) == []
    client.close()


@pytest.mark.parametrize("moment", ["before", "during"])
@pytest.mark.parametrize("in_line", [False, True])
def test_a_late_take_of_a_stopped_call_loses_no_item(
    db: Database, fdb_module: ModuleType, kind: Kind, in_line: bool, moment: str
) -> None:
    """The call is stopped while its take is late. A plain item is returned, and a task is given back."""
    engine = LateEngine(db.engine, fdb_module.FDBError, moment, TAKES)
    client = Database(engine, Quiet())  # type: ignore[arg-type]  # options are never asked for
    stop = client.runtime.event()
    engine.ends = stop.set

    def put() -> None:
        if in_line:
            wait_until(lambda: list(db.get_range_startswith(kind.line.prefix)) != [])
        kind.put(db, "item")

    putting = threading.Thread(target=put)
    putting.start()
    if not in_line:
        putting.join(PATIENCE_S)
    if kind.gives_back:
        with pytest.raises(WaitStopped):
            kind.wait(client, PATIENCE_S, stop)
    else:
        assert kind.wait(client, PATIENCE_S, stop) == "item"
    putting.join(PATIENCE_S)
    assert engine.moment == "arrived"
    assert kind.ready(db) == int(kind.gives_back)
    assert list(db.get_range_startswith(kind.line.prefix)) == []
    client.close()
