"""A real Celery worker on our broker and result backend keeps the promises of the page."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from celery import chord, group
from celery.exceptions import ChordError, TaskRevokedError

import fdbqueue.integrations.celery
from tests.celery.workers import PATIENCE_S, Place
from tests.conftest import CLUSTER_FILE, SLOW
from tests.support import wait_until


@pytest.fixture(params=["embedded", "fdb"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    """A broker on each engine that several processes can share."""
    if request.param == "embedded":
        return Place(tmp_path)
    if CLUSTER_FILE is None:
        pytest.skip("FDB_CLUSTER_FILE names no cluster")
    return Place(tmp_path, CLUSTER_FILE)


@pytest.fixture
def tasks(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module: Any = place.app(monkeypatch)
    yield module
    module.app.close()
    fdbqueue.integrations.celery.close()


def result_of(sent: Any) -> Any:
    return sent.get(timeout=PATIENCE_S)


@pytest.mark.in_turn(4)
def test_a_worker_keeps_the_promises_of_the_page(place: Place, tasks: ModuleType) -> None:
    """One worker for all of them, as its start takes longer than all tasks."""
    with place.worker("--concurrency", "2"):
        long = tasks.sleep.delay(4)  # twice the time after which a dead worker's tasks come back
        runs_tasks_groups_chains_and_chords(tasks)
        delays_tasks_until_their_eta(tasks)
        retries_and_reports_failures(tasks)
        answers_remote_control(tasks)
        takes_urgent_tasks_first(tasks)
        puts_within_a_transaction_of_a_task(tasks)
        result_of(long)
    assert place.log().count(f"sleep[{long.id}] received") == 1
    assert "CRITICAL" not in place.log()


def runs_tasks_groups_chains_and_chords(tasks: Any) -> None:
    add, total = tasks.add, tasks.total
    assert result_of(add.delay(1, 2)) == 3
    assert result_of(group(add.s(i, i) for i in range(20))()) == [2 * i for i in range(20)]
    assert result_of((add.s(1, 1) | add.s(3)).apply_async()) == 5
    assert result_of(chord([add.s(i, i) for i in range(10)], total.s())()) == 90
    nested = chord([group(add.s(1, 1), add.s(2, 2)), add.s(3, 3)], tasks.shape.s())()
    assert sorted(result_of(nested)) == [2, 4, 6]  # Celery makes one header of nested groups
    parts = [add.s(1, 1) | group(add.s(1), add.s(2)), add.s(3, 3)]
    assert result_of(chord(parts, tasks.shape.s())()) == [[3, 4], 6]
    assert sorted(result_of(chord((part.clone() for part in parts), tasks.shape.s())())) == [3, 4, 6]
    broken = chord([add.s(1, 1), tasks.fail.s()], total.s())
    with pytest.raises(ValueError, match="no such luck"):
        result_of(broken())
    assert isinstance(broken().get(timeout=PATIENCE_S, propagate=False), ChordError)


def delays_tasks_until_their_eta(tasks: Any) -> None:
    due = time.time() + 1.5
    sent = tasks.run_at.apply_async(countdown=1.5)
    queue = fdbqueue.TaskQueue.open(fdbqueue.integrations.celery.database(tasks.BROKER), tasks.QUEUE)
    assert queue.statistics(fdbqueue.integrations.celery.database(tasks.BROKER))["tasks"]["delayed"] == 1
    assert due - 0.01 <= result_of(sent)


def retries_and_reports_failures(tasks: Any) -> None:
    assert result_of(tasks.third_time_lucky.delay()) == 2
    with pytest.raises(ValueError, match="no such luck"):
        result_of(tasks.fail.delay())


def answers_remote_control(tasks: Any) -> None:
    (answer,) = tasks.app.control.inspect(timeout=PATIENCE_S, limit=1).ping().values()
    assert answer == {"ok": "pong"}
    tasks.app.control.revoke("dd" * 16, reply=True, limit=1, timeout=PATIENCE_S)
    revoked = tasks.note.apply_async(("revoked",), task_id="dd" * 16)
    with pytest.raises(TaskRevokedError):
        result_of(revoked)
    assert "revoked" not in tasks.seen()


def takes_urgent_tasks_first(tasks: Any) -> None:
    """While the worker consumes nothing, three tasks come together."""
    control, queue = tasks.app.control, tasks.QUEUE
    control.cancel_consumer(queue, reply=True, limit=1, timeout=PATIENCE_S)
    sent = [tasks.note.apply_async((f"p{level}",), priority=level) for level in (3, 0, 9)]
    control.add_consumer(queue, reply=True, limit=1, timeout=PATIENCE_S)
    assert [result_of(one) for one in sent] == ["p3", "p0", "p9"]
    order = [word for word in tasks.seen() if word.startswith("p")]
    assert order.index("p0") == 2, order


def puts_within_a_transaction_of_a_task(tasks: Any) -> None:
    result_of(tasks.note_in_a_transaction.delay("given-up", commits=False))
    result_of(tasks.note_in_a_transaction.delay("committed", commits=True))
    wait_until(lambda: "committed" in tasks.seen(), PATIENCE_S)
    assert "given-up" not in tasks.seen()


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("start", [pytest.param("fork", marks=pytest.mark.slow), "spawn"])
def test_children_work_after_max_tasks_per_child(place: Place, tasks: Any, start: str) -> None:
    """As on a cluster, where the children of a pool are started afresh: results, chords, own transactions."""
    with place.worker("--concurrency", "1", "--max-tasks-per-child", "2", START=start):
        children = {result_of(tasks.process_id.delay()) for _ in range(3)}
        assert len(children) == 2
        assert result_of(chord([tasks.add.s(1, 1), tasks.add.s(2, 2)], tasks.total.s())()) == 6
        puts_within_a_transaction_of_a_task(tasks)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("pool", ["threads", pytest.param("solo", marks=pytest.mark.slow)])
def test_other_pools_work(place: Place, tasks: Any, pool: str) -> None:
    with place.worker("--pool", pool, "--concurrency", "2"):
        assert result_of(chord([tasks.add.s(i, i) for i in range(5)], tasks.total.s())()) == 20


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_pools_of_greenlets_are_refused_at_start(place: Place, pool: str) -> None:
    pytest.importorskip(pool)
    process = place.start("--pool", pool)
    assert process.wait(PATIENCE_S) == 1
    assert f"The {pool} pool of Celery cannot be used with fdbqueue" in place.log()


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("round_", range(5 if SLOW else 1))
def test_a_killed_worker_loses_no_task(place: Place, tasks: Any, round_: int) -> None:  # noqa: ARG001
    """Only the tasks that its two children were running may run twice, as Celery promises."""
    count = 1000 if SLOW else 40
    words = [f"w{number}" for number in range(count)]
    with tasks.app.producer_pool.acquire(block=True) as producer:
        for word in words:
            tasks.note.apply_async((word,), producer=producer, ignore_result=True)
    with place.worker("--concurrency", "2") as killed:
        wait_until(lambda: len(tasks.seen()) >= count // 2, PATIENCE_S)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    with place.worker("--concurrency", "2"):
        wait_until(lambda: set(tasks.seen()) == set(words), PATIENCE_S)
    assert len(tasks.seen()) <= count + 2


@pytest.mark.in_turn(4)
def test_acks_early_never_run_a_task_twice(place: Place, tasks: Any) -> None:
    """A task is gone if its worker dies in the middle, as with every broker."""
    with place.worker("--concurrency", "1", ACKS="early") as killed:
        sent = tasks.sleep.delay(600)
        wait_until(lambda: sent.id in place.log(), PATIENCE_S)
        queue = fdbqueue.TaskQueue.open(fdbqueue.integrations.celery.database(tasks.BROKER), tasks.QUEUE)
        db = fdbqueue.integrations.celery.database(tasks.BROKER)
        wait_until(lambda: queue.statistics(db)["calls"]["ack"] == 1, PATIENCE_S)
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
    assert queue.statistics(db)["tasks"]["taken"] == 0
