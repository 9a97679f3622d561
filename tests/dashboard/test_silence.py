"""A database that does not answer, and a page that fails: a sentence, and never a traceback."""

from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.seam import FDBError
from tests.dashboard.conftest import NAME, Served
from tests.dashboard.support import browsing, path_of
from tests.tasks.support import StillClock

PATHS = ["/", "/queues/q", "/queues/q/dead", "/queues/q/tasks/" + "0" * 32]


def test_a_closed_database_gets_a_page() -> None:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        TaskQueue.create(db, "q")
        with browsing(db, write=True) as browser:
            db.close()
            clock.advance(60)
            for path in PATHS:
                assert "The database does not answer" in browser.said(path, 503)
            answer = browser.post("/queues/q/pause", 503, sure="yes")
            assert "not known whether the action has happened" in answer.text
            assert browser.get("/healthz") == "ok\n"


def test_a_silent_database_gets_a_page_in_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def silent(_: Any, __: Any, timeout_s: float) -> None:
        asked.append(timeout_s)
        raise FDBError(1031)

    monkeypatch.setattr("fdbqueue.operate.dashboard.guard.run", silent)
    served.clock.advance(60)
    for path in ("/", path_of(NAME)):
        assert "timed out" in served.reader.said(path, 503)
    assert asked == [limits.LOOK_TIMEOUT_S] * 2
    served.clock.advance(60)


def test_transactions_of_actions_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_TIMEOUT_S", 0.2)
    with fdbqueue.open("memory:") as db:
        TaskQueue.create(db, "q")
        with browsing(db, write=True) as browser:
            monkeypatch.setattr("fdbqueue.operate.dashboard.actions.TaskQueue.pause", _never)
            assert "timed out" in browser.post("/queues/q/pause", 503, sure="yes").text


def _never(_: TaskQueue, database: Any) -> None:
    """A commit that conflicts for ever."""
    tr = database.create_transaction()
    while True:
        tr.on_error(FDBError(1020)).wait()


def test_a_page_that_fails_tells_it_in_the_log(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("unforeseen")

    monkeypatch.setattr("fdbqueue.operate.dashboard.app.task_view", broken)
    page = served.reader.said(path_of(NAME, "tasks", served.ids["ready"]), 500)
    assert "the log of the dashboard has the reason" in page
    assert "unforeseen" not in page
    assert "unforeseen" in caplog.text
