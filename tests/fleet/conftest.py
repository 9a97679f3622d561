"""A queue, and a worker that works until it is empty."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fdbqueue import Backoff, Database, Hooks, TaskQueue, Worker

SOON = Backoff(first_s=0.01, cap_s=0.02)


@pytest.fixture(autouse=True)
def no_worker_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that has failed leaves no worker at work, which would delay the tests behind it."""
    started: list[Worker] = []
    start = Worker.start

    def noted(worker: Worker, **options: Any) -> None:
        started.append(worker)
        start(worker, **options)

    monkeypatch.setattr(Worker, "start", noted)
    yield
    for worker in started:
        worker.stop(at_once=True)


@pytest.fixture
def queue(db: Database, space: Any) -> TaskQueue:
    return TaskQueue.create(db, "jobs", "fifottl", ttr=30, root=space)


@pytest.fixture
def work(db: Database, space: Any, queue: TaskQueue) -> Callable[..., list[tuple[str, Any]]]:
    """Work until the queue is empty; return each outcome with its data, in order."""

    def run(handler: Callable[..., object], **options: Any) -> list[tuple[str, Any]]:
        told: list[tuple[str, Any]] = []
        note = lambda event: told.append((event.name, event.task.data))  # noqa: E731
        hooks = Hooks(succeeded=note, retried=note, buried=note, lease_lost=note)
        settings: dict[str, Any] = {"threads": 2, "backoff": SOON, "hooks": hooks, "root": space, **options}
        Worker(db, queue, handler, **settings).run(until_empty=True)
        return told

    return run
