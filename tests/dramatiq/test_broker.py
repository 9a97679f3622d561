"""The broker: messages are tasks, dead letters are buried, and a message shares the transaction of data."""

import gc
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound

import fdbqueue
from fdbqueue.integrations.dramatiq import FdbQueueBroker
from tests.support import wait_until

JOIN_MS = 60_000


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as db:
        yield db


@pytest.fixture
def broker(db: fdbqueue.Database) -> Iterator[FdbQueueBroker]:
    before = dramatiq.broker.global_broker
    broker = FdbQueueBroker(db)
    dramatiq.set_broker(broker)
    yield broker
    broker.close()
    dramatiq.broker.global_broker = before


@pytest.fixture
def worker(broker: FdbQueueBroker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
    worker.start()
    yield worker
    worker.stop()


def actor(function: Callable[..., Any], **options: Any) -> Any:
    return dramatiq.actor(function, actor_name=function.__name__, **options)


def test_a_message_is_a_task_that_tells_its_actor(broker: FdbQueueBroker) -> None:
    def mail(to: str) -> None: ...

    message = actor(mail, priority=7).send("ada")

    task = broker.task_queue("default").take(broker.database, 0)
    assert task is not None
    assert (task.headers, task.pri) == ({"actor": "mail", "message": message.message_id}, 7)
    assert dramatiq.Message.decode(task.data).args == ("ada",)


@pytest.mark.usefixtures("worker")
def test_a_message_goes_with_its_transaction(broker: FdbQueueBroker) -> None:
    seen = []

    def note(name: str) -> None:
        with broker.database as database:  # which does not close it
            seen.append((name, bytes(database[b"user"])))

    told = actor(note)

    def sign_up(tr: fdbqueue.Transaction, name: str) -> None:
        tr[b"user"] = name.encode()
        with broker.within(tr):
            told.send(name)

    tr = broker.database.create_transaction()
    sign_up(tr, "lost")
    tr.cancel()
    fdbqueue.transactional(sign_up)(broker.database, "ada")
    broker.join("default", timeout=JOIN_MS)

    assert seen == [("ada", b"ada")]


@pytest.mark.usefixtures("worker")
def test_a_delayed_message_waits_in_the_database(broker: FdbQueueBroker) -> None:
    def later() -> None: ...

    actor(later).send_with_options(delay=3_600_000)

    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=300)
    counts = broker.task_queue("default").statistics(broker.database)["tasks"]
    assert (counts["delayed"], counts["taken"]) == (1, 0)


@pytest.mark.usefixtures("worker")
def test_a_dead_letter_is_a_buried_task_with_its_error(broker: FdbQueueBroker) -> None:
    def fails() -> None:
        raise ZeroDivisionError("by nought")

    actor(fails, max_retries=0).send()
    broker.join("default", timeout=JOIN_MS)

    queue = broker.task_queue("default")
    [letter] = queue.tasks(broker.database, "!", 10)
    [failure] = queue.failures(broker.database, letter)
    assert (failure.error, failure.message) == ("ZeroDivisionError", "by nought")
    assert "in fails" in failure.detail


@pytest.mark.usefixtures("worker")
def test_a_dead_letter_that_is_kicked_runs_again(broker: FdbQueueBroker) -> None:
    seen = []

    def fails_once() -> None:
        seen.append(1)
        if len(seen) == 1:
            raise ZeroDivisionError

    actor(fails_once, max_retries=0).send()
    broker.join("default", timeout=JOIN_MS)
    broker.task_queue("default").kick(broker.database, 1)
    broker.join("default", timeout=JOIN_MS)

    assert seen == [1, 1]


@pytest.mark.usefixtures("worker")
def test_a_task_that_is_no_message_is_buried(broker: FdbQueueBroker) -> None:
    seen = []

    def runs() -> None:
        seen.append(1)

    told = actor(runs)
    broker.task_queue("default").put(broker.database, b"no message")
    told.send()
    broker.join("default", timeout=JOIN_MS)

    assert seen == [1]
    assert broker.task_queue("default").statistics(broker.database)["tasks"]["buried"] == 1


def test_a_consumer_holds_no_more_than_its_prefetch(broker: FdbQueueBroker) -> None:
    broker.declare_queue("default")
    for _ in range(3):
        broker.enqueue(dramatiq.Message("default", "any", (), {}, {}))
    consumer = broker.consume("default", prefetch=2, timeout=50)

    first, second, third = next(consumer), next(consumer), next(consumer)

    assert first is not None
    assert second is not None
    assert third is None
    consumer.ack(first)
    assert next(consumer) is not None
    consumer.close()


def test_a_thread_runs_messages_in_the_order_of_their_sends(broker: FdbQueueBroker) -> None:
    """The thread is paused until its worker has fetched all five."""
    ran: list[int] = []
    note = dramatiq.actor(ran.append, actor_name="note")
    worker = dramatiq.Worker(broker, worker_threads=1)
    worker.queue_prefetch = 10
    worker.start()
    try:
        (thread,) = worker.workers
        thread.pause()
        thread.paused_event.wait()
        for number in range(5):
            note.send(number)
        wait_until(lambda: worker.work_queue.qsize() == 5)
        worker.resume()
        broker.join("default", timeout=JOIN_MS)
    finally:
        worker.stop()
    assert ran == [0, 1, 2, 3, 4]


def test_messages_of_a_closed_consumer_are_ready_at_once(broker: FdbQueueBroker) -> None:
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "any", (), {}, {}))
    first = broker.consume("default", timeout=50)
    held = next(first)
    assert held is not None

    first.close()

    second = broker.consume("default", timeout=50)
    again = next(second)
    assert again is not None
    assert again.message_id == held.message_id
    first.ack(held)  # its lease is over: it changes nothing
    assert broker.task_queue("default").statistics(broker.database)["tasks"]["taken"] == 1
    second.close()


def test_messages_that_are_requeued_count_no_failure(broker: FdbQueueBroker) -> None:
    broker.declare_queue("default")
    broker.enqueue(dramatiq.Message("default", "any", (), {}, {}))
    consumer = broker.consume("default", timeout=50)

    consumer.requeue([next(consumer)])

    [task] = broker.task_queue("default").tasks(broker.database, "r", 10)
    assert task.failures == 0
    consumer.close()


def test_a_session_that_is_over_is_a_closed_connection(broker: FdbQueueBroker) -> None:
    """Then the worker of Dramatiq opens another consumer."""
    broker.declare_queue("default")
    consumer = broker.consume("default", timeout=50)
    consumer._session.end()

    with pytest.raises(ConnectionClosed):
        next(consumer)


def test_a_queue_that_was_dropped_is_made_again(broker: FdbQueueBroker) -> None:
    broker.declare_queue("default")
    broker.task_queue("default").drop(broker.database)

    broker.enqueue(dramatiq.Message("default", "any", (), {}, {}))

    assert broker.task_queue("default").statistics(broker.database)["tasks"]["ready"] == 1


def test_an_undeclared_queue_is_refused(broker: FdbQueueBroker) -> None:
    with pytest.raises(QueueNotFound):
        broker.enqueue(dramatiq.Message("other", "any", (), {}, {}))
    with pytest.raises(QueueNotFound):
        broker.consume("other")


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(("kind", "codec"), [("fifo", "bytes"), ("fifottl", "json")])
def test_a_queue_of_another_kind_or_codec_is_refused(db: fdbqueue.Database, kind: str, codec: str) -> None:
    """An operator may have made it, with the wrong options."""
    fdbqueue.TaskQueue.create(db, "dramatiq.default", kind, codec=codec)
    with pytest.raises(fdbqueue.QueueExists, match="asked for was"):
        actor(lambda: None).send()


def test_nothing_is_opened_before_the_first_message() -> None:
    broker = FdbQueueBroker("elsewhere:")

    broker.declare_queue("default")

    with pytest.raises(fdbqueue.UnknownUrl):
        broker.enqueue(dramatiq.Message("default", "any", (), {}, {}))


def test_the_error_of_an_actor_is_not_held(
    broker: FdbQueueBroker, worker: dramatiq.Worker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)  # a captured record holds the error
    seen: list[Any] = []

    class Held(Exception):
        pass

    def fails() -> None:
        error = Held()
        seen.append(weakref.ref(error))
        raise error

    actor(fails, max_retries=0).send()
    broker.join("default", timeout=JOIN_MS)
    worker.join()
    gc.collect()

    assert [error() for error in seen] == [None]
