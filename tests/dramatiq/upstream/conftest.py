"""The fixtures that Dramatiq's own tests name, with brokers and backends of fdbqueue.

Its source distribution leaves this file out. The tests of its broker for tests look at dead letters, and at
errors in `join`: the class below has that face, over FdbQueueBroker as it is.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.encoder import PickleEncoder

import fdbqueue
from fdbqueue.integrations.dramatiq import (
    FdbQueueBroker,
    FdbQueueConsumer,
    FdbQueueRateLimits,
    FdbQueueResults,
)


class RecordingConsumer(FdbQueueConsumer):
    dead_letters: list[Any]

    def nack(self, message: Any) -> None:
        message.letter = message._exception
        self.dead_letters.append(message)  # first: `join` looks here as soon as the queue is empty
        super().nack(message)


class QueueFace:
    """A task queue with the methods of the `queue.Queue` that Dramatiq's broker for tests has."""

    def __init__(self, broker: FdbQueueBroker, name: str) -> None:
        self._broker = broker
        self._name = name

    @property
    def _queue(self) -> fdbqueue.TaskQueue:
        return self._broker.task_queue(self._name)

    @property
    def _counts(self) -> Any:
        return self._queue.statistics(self._broker.database)["tasks"]

    def put(self, data: bytes) -> None:
        self._queue.put(self._broker.database, data)

    def get(self, timeout: float = 0) -> bytes:
        task = self._queue.take(self._broker.database, timeout)
        assert task is not None
        self._queue.ack(self._broker.database, task)
        data: bytes = task.data
        return data

    def qsize(self) -> int:
        ready: int = self._counts["ready"]
        return ready

    @property
    def unfinished_tasks(self) -> int:
        counts = self._counts
        unfinished: int = counts["ready"] + counts["taken"]
        return unfinished


class RecordingBroker(FdbQueueBroker):
    """Remembers the dead letters of this process, and raises their errors in `join`."""

    def __init__(self, *arguments: Any, fail_fast_default: bool = True, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fail_fast_default = fail_fast_default
        self.dead_letters_by_queue: dict[str, list[Any]] = defaultdict(list)

    @property
    def dead_letters(self) -> list[Any]:
        return [message for letters in self.dead_letters_by_queue.values() for message in letters]

    def declare_queue(self, queue_name: str) -> None:
        super().declare_queue(queue_name)
        self.queues[queue_name] = QueueFace(self, queue_name)

    def flush(self, queue_name: str) -> None:
        super().flush(queue_name)
        self.dead_letters_by_queue[queue_name].clear()

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 100) -> FdbQueueConsumer:
        consumer = super().consume(queue_name, prefetch, timeout)
        consumer.__class__ = RecordingConsumer
        consumer.dead_letters = self.dead_letters_by_queue[queue_name]  # type: ignore[attr-defined]
        return consumer

    def join(self, queue_name: str, *, timeout: int | None = None, fail_fast: bool | None = None) -> None:
        super().join(queue_name, timeout=timeout)
        if self.fail_fast_default if fail_fast is None else fail_fast:
            for message in self.dead_letters_by_queue[queue_name]:
                raise message.letter or RuntimeError("rejected")


def _running(broker: FdbQueueBroker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as db:
        yield db


@pytest.fixture
def stub_broker(db: fdbqueue.Database) -> Iterator[RecordingBroker]:
    broker = RecordingBroker(db)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


@pytest.fixture
def stub_worker(stub_broker: RecordingBroker) -> Iterator[dramatiq.Worker]:
    yield from _running(stub_broker)


@pytest.fixture
def redis_broker(stub_broker: RecordingBroker) -> RecordingBroker:
    return stub_broker


@pytest.fixture
def redis_worker(stub_worker: dramatiq.Worker) -> dramatiq.Worker:
    return stub_worker


@pytest.fixture
def result_backend(db: fdbqueue.Database) -> FdbQueueResults:
    return FdbQueueResults(db)


@pytest.fixture
def redis_result_backend(result_backend: FdbQueueResults) -> FdbQueueResults:
    return result_backend


@pytest.fixture
def rate_limiter_backend(db: fdbqueue.Database) -> FdbQueueRateLimits:
    return FdbQueueRateLimits(db)


@pytest.fixture
def pickle_encoder() -> Iterator[PickleEncoder]:
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(PickleEncoder())
    yield dramatiq.get_encoder()
    dramatiq.set_encoder(before)
