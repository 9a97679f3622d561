"""on_task_change: told of each change once, after the commit, and no more than told (section 13)."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from fdbqueue import Task, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.events import Callback
from tests.support import PATIENCE_S
from tests.tasks.support import MakeBench


class Told:
    """The events that a callback got; waits for a number of them."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, str, str]] = []
        self._more = threading.Condition()

    def __call__(self, task: Task, event: str) -> None:
        with self._more:
            self.events.append((task.data, event, task.state.value))
            self._more.notify_all()

    def names(self, count: int) -> list[str]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.events) >= count, PATIENCE_S)
            return [event for _, event, _ in self.events]


def test_puts_that_share_a_transaction_tell_an_end_once(bench: MakeBench) -> None:
    """The first put ends an expired task in the change with which the second one goes on."""
    b, told = bench("fifottl"), Told()
    b.put(1, ttl=1, unique="a")
    b.put(2, unique="b")
    b.clock.advance(2)
    b.queue.on_task_change(told)
    drafts = [b.queue._draft(3, {"unique": unique, "on_conflict": "replace"}) for unique in "ab"]
    put = b.queue._calls(b.db)._put_in
    run(b.db, lambda tr: put(tr, drafts, bytes(limits.RANDOM_SUFFIX_BYTES), 0))
    assert sorted(told.names(3)) == ["delete", "put", "ttl"]


def test_every_change_has_its_event(bench: MakeBench) -> None:
    b, told = bench("fifottl", ttr=5), Told()
    b.queue.on_task_change(told)
    b.put(1, ttl=20, delay=1)
    b.clock.advance(1)
    task = b.take()
    b.queue.touch(b.db, task, 1)
    b.queue.release(b.db, task)
    b.queue.bury(b.db, task.id)
    b.queue.kick(b.db)
    b.take()
    b.clock.advance(6)
    b.sweep()
    b.clock.advance(50)
    b.sweep()
    b.queue.cancel(b.db, b.put(1))
    expected = ["put", "delay", "take", "touch", "release", "bury", "kick", "take", "ttr", "delete", "ttl"]
    assert told.names(14) == [*expected, "put", "delete", "cancel"]
    assert {data for data, _, _ in told.events} == {1}
    assert "".join(state for _, _, state in told.events) == "~rttr!rtr--r--"


def test_a_transaction_that_does_not_commit_tells_nothing(bench: MakeBench) -> None:
    b, told = bench(), Told()
    b.queue.on_task_change(told)
    tr = b.db.create_transaction()
    b.queue.put(tr, "never")
    tr.cancel()
    tr = b.db.create_transaction()
    b.queue.put(tr, "once")
    assert told.events == []
    tr.commit().wait()
    b.put("last")
    told.names(2)
    assert [data for data, _, _ in told.events] == ["once", "last"]


def test_an_exception_in_a_callback_is_logged_and_nothing_else(
    bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    b, told = bench(), Told()

    def fails(task: Task, event: str) -> None:
        told(task, event)
        raise RuntimeError("broken callback")

    b.queue.on_task_change(fails)
    with caplog.at_level(logging.ERROR, logger="fdbqueue"):
        b.put(1)
        b.put(2)
        told.names(2)
        b.queue.on_task_change(told)
        b.put(3)
        told.names(3)
    assert caplog.text.count("broken callback") >= 1
    assert b.counts("ready") == (3,)


class Noticed:
    """A lock that calls `beside` just after its third release by the thread of the callbacks."""

    def __init__(self, lock: Any, beside: Callable[[], object]) -> None:
        self._lock, self._beside, self._releases = lock, beside, 0

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *of: object) -> None:
        self._lock.__exit__(*of)
        if threading.current_thread().name == "fdbqueue-callbacks":
            self._releases += 1
            if self._releases == 3:
                self._beside()


def test_a_change_is_told_while_the_telling_thread_ends(bench: MakeBench) -> None:
    """The thread has found no more events. It takes the first one, tells it, and looks again."""
    b, told = bench(), Told()
    b.queue.on_task_change(told)
    callbacks = calls_of(b.db, b.queue._shape).callbacks
    callbacks._lock = Noticed(callbacks._lock, lambda: b.put("beside"))
    b.put("first")
    assert told.names(2) == ["put", "put"]
    assert [data for data, _, _ in told.events] == ["first", "beside"]


def test_one_thread_at_a_time_tells_a_callback(bench: MakeBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two would tell changes beside one another, and in any order."""
    b, told, entered, may_go = bench(), Told(), threading.Event(), threading.Event()
    spawned, spawn = list[str](), b.clock.spawn

    def noted(target: Callable[[], None], name: str) -> Any:
        spawned.append(name)
        return spawn(target, name)

    def callback(task: Task, event: str) -> None:
        entered.set()
        assert may_go.wait(PATIENCE_S)
        told(task, event)

    monkeypatch.setattr(b.clock, "spawn", noted)
    b.queue.on_task_change(callback)
    b.put("first")
    assert entered.wait(PATIENCE_S)
    b.put("second")
    may_go.set()
    told.names(2)
    assert [data for data, _, _ in told.events] == ["first", "second"]
    assert spawned.count("fdbqueue-callbacks") == 1


def test_installing_returns_the_previous_callback(bench: MakeBench) -> None:
    b = bench()
    first: Callback = Told()
    assert b.queue.on_task_change(first) is None
    assert b.queue.on_task_change() is first
    assert b.queue.on_task_change() is None


class Point(msgspec.Struct):
    x: int


def test_a_callback_gets_data_of_the_type_of_its_handle(bench: MakeBench) -> None:
    """Not of the handle that has installed the one before it."""
    b, told = bench(), Told()
    b.queue.on_task_change(Told())
    TaskQueue.open(b.db, "bench", type=Point).on_task_change(told)
    b.put({"x": 1})
    told.names(1)
    assert [data for data, _, _ in told.events] == [Point(1)]
