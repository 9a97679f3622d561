"""A registration in a line that is late: its commit ends with 1039, and arrives later or not at all."""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Queue, TaskQueue
from fdbqueue.errors import DatabaseClosed, WaitStopped
from fdbqueue.line.keys import LineKeys
from fdbqueue.recipe.keys import QueueKeys
from fdbqueue.records.keys import TaskKeys
from fdbqueue.runtime import Event
from tests.queue_support import Quiet
from tests.support import NOT_COMMITTED, PATIENCE_S, commit_code, wait_until

CLUSTER_VERSION_CHANGED = 1039


class Interrupted(BaseException):
    """As KeyboardInterrupt."""


class LateTransaction:
    """A transaction of an engine. The first that registers a request is late."""

    def __init__(self, owner: "LateEngine") -> None:
        self._owner = owner
        self._tr = owner.engine.create_transaction()
        self._registers = False

    def set_versionstamped_key(self, key: bytes, value: bytes) -> None:
        self._registers = True
        self._tr.set_versionstamped_key(key, value)

    def commit(self) -> Any:
        if self._registers and self._owner.late is None:
            self._tr.get_read_version().wait()  # a cluster gives each commit one before it is sent
            self._owner.late = self._tr
            return LateCommit(self._owner)
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
        return getattr(self._tr, name)


class LateCommit:
    def __init__(self, owner: "LateEngine") -> None:
        self._owner = owner

    def wait(self) -> None:
        raise self._owner.error(CLUSTER_VERSION_CHANGED)


class LateEngine:
    """An engine's database. `moment`: when the late commit arrives, relative to the commit after it."""

    def __init__(self, engine: Any, error: type[Exception], moment: str) -> None:
        self.engine = engine
        self.error = error
        self.moment = moment
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


Wait = Callable[[Database, float, Event], Any]


@pytest.fixture(params=["recipe", "tasks"])
def waiting(request: pytest.FixtureRequest, db: Database, space: Subspace) -> tuple[Wait, LineKeys]:
    """A call that waits, and its line."""
    if request.param == "recipe":
        items = Queue(space[0], root=space[1])
        line = LineKeys(QueueKeys(space[0]).line)
        return lambda on, timeout, stop: items.dequeue(on, timeout=timeout, stop=stop), line
    tasks = TaskQueue.create(db, "late", root=space)
    line = LineKeys(TaskKeys(tasks.contents).line)
    return lambda on, timeout, stop: tasks.take(on, timeout, stop=stop), line


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("end", ["interrupt", "stop", "timeout", "close"])
def test_a_late_registration_leaves_no_request(
    db: Database, fdb_module: ModuleType, waiting: tuple[Wait, LineKeys], end: str, moment: str
) -> None:
    """The call ends while its registration is late, in each of the ways in which a wait can end."""
    wait, line = waiting
    engine = LateEngine(db.engine, fdb_module.FDBError, moment)
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
        assert wait(client, timeout_s, stop) is None
    assert engine.late is not None
    assert engine.moment == "arrived" or engine.arrive() == NOT_COMMITTED
    assert list(db.get_range_startswith(line.prefix)) == []
    client.close()
    if end == "close":
        closing.join(PATIENCE_S)
