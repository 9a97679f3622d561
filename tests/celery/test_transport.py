"""What our transport adds to kombu's promises: leases, transactions, dead letters, and queues that go."""

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from kombu.exceptions import ChannelError

import fdbqueue
import fdbqueue.integrations.celery
from fdbqueue import TaskQueue
from fdbqueue.core.errors import ClusterMismatch, QueueKindMismatch, StorageReplaced, UnknownBrokerUrl
from fdbqueue.core.registry import Registry
from fdbqueue.integrations.celery.channel import Tap, Want
from fdbqueue.integrations.celery.databases import BrokerLost, told_to_kombu
from tests.conftest import CLUSTER_FILE
from tests.support import PATIENCE_S, wait_until


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"fdbqueue+embedded://{tmp_path}/data"


@pytest.fixture
def broker(address: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(address) as connection:
        yield connection


@pytest.fixture
def db(address: str) -> fdbqueue.Database:
    return fdbqueue.integrations.celery.database(address)


def counts(db: fdbqueue.Database, name: str) -> dict[str, int]:
    tasks: dict[str, int] = TaskQueue.open(db, name).statistics(db)["tasks"]
    return tasks


def send(broker: kombu.Connection, name: str, body: Any, **options: Any) -> None:
    kombu.Producer(broker.default_channel).publish(body, routing_key=name, **options)


def received(broker: kombu.Connection, name: str) -> Any:
    return kombu.Queue(name)(broker.default_channel).get()


def test_a_queue_of_celery_is_a_queue_of_fdbqueue(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    send(broker, "letters", {"to": "all"}, priority=9)
    task = TaskQueue.open(db, "letters").tasks(db, "r", 1)[0]
    assert task.data["body"] == '{"to": "all"}'
    assert task.pri == 255 - 9


def test_a_message_of_a_transaction_is_there_after_its_commit(
    broker: kombu.Connection, db: fdbqueue.Database
) -> None:
    """So is its queue, if it is new, and not if the transaction is given up."""
    for commits in (False, True):
        tr = db.create_transaction()
        with fdbqueue.integrations.celery.transaction(tr):
            send(broker, "letters", 1)
        tr[b"order"] = b"1"
        assert received(broker, "letters") is None
        if commits:
            tr.commit().wait()
    assert received(broker, "letters").payload == 1
    assert received(broker, "letters") is None


@pytest.mark.skipif(CLUSTER_FILE is None, reason="FDB_CLUSTER_FILE names no cluster")
def test_a_new_queue_of_a_transaction_leaves_no_thread() -> None:
    """The fixture of all tests fails a test that leaves the keeper of a database behind."""
    address = f"fdbqueue+fdb://{CLUSTER_FILE}"
    tr = fdbqueue.integrations.celery.database(address).create_transaction()
    with kombu.Connection(address) as broker, fdbqueue.integrations.celery.transaction(tr):
        send(broker, f"letters-{os.urandom(4).hex()}", 1)


def test_a_fanout_in_a_transaction_is_there_after_its_commit(
    broker: kombu.Connection, db: fdbqueue.Database
) -> None:
    exchange = kombu.Exchange("news", "fanout")
    bound = [kombu.Queue(name, exchange)(broker.default_channel) for name in ("one", "two")]
    for queue in bound:
        queue.declare()
    tr = db.create_transaction()
    with fdbqueue.integrations.celery.transaction(tr):
        kombu.Producer(broker.default_channel).publish("hi", exchange=exchange)
    assert [queue.get() for queue in bound] == [None, None]
    tr.commit().wait()
    assert [queue.get().payload for queue in bound] == ["hi", "hi"]


def test_a_closed_connection_releases_its_messages(address: str, db: fdbqueue.Database) -> None:
    with kombu.Connection(address) as first:
        send(first, "letters", 1)
        received(first, "letters")
        assert counts(db, "letters")["taken"] == 1
    with kombu.Connection(address) as second:
        again = received(second, "letters")
        assert again.delivery_info["redelivered"]


def test_a_rejected_message_is_a_dead_letter(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    send(broker, "letters", 1)
    received(broker, "letters").reject()
    assert counts(db, "letters")["buried"] == 1
    TaskQueue.open(db, "letters").kick(db)
    assert received(broker, "letters").payload == 1


def test_data_that_are_no_message_are_a_dead_letter(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    send(broker, "letters", 1)
    queue = TaskQueue.open(db, "letters")
    queue.put(db, {"of": "another program"}, pri=0)
    assert received(broker, "letters") is None
    assert counts(db, "letters")["buried"] == 1
    assert received(broker, "letters").payload == 1


def test_an_ack_after_the_end_of_the_lease_is_told(
    broker: kombu.Connection, db: fdbqueue.Database, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker, "letters", 1)
    message = received(broker, "letters")
    TaskQueue.open(db, "letters").release_all(db)
    message.ack()
    assert "has ended before it was settled" in caplog.text
    assert received(broker, "letters").payload == 1


def test_a_purge_leaves_the_messages_that_are_held(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    for number in range(3):
        send(broker, "letters", number)
    send(broker, "letters", 3, headers={"eta": "2099-01-01T00:00:00+00:00"})
    received(broker, "letters")
    assert kombu.Queue("letters")(broker.default_channel).purge() == 3
    assert counts(db, "letters") | {"taken": 1, "ready": 0, "delayed": 0} == counts(db, "letters")


def test_the_prefetch_count_is_a_bound_over_several_queues(
    broker: kombu.Connection, db: fdbqueue.Database
) -> None:
    names, got = ("one", "two", "three"), []
    channel = broker.default_channel
    with kombu.Consumer(channel, [kombu.Queue(name) for name in names], prefetch_count=2) as consumer:
        consumer.register_callback(lambda _, message: got.append(message))
        for name in names:
            for number in range(3):
                send(broker, name, number)
        broker.drain_events(timeout=PATIENCE_S)
        while len(got) < 2:
            broker.drain_events(timeout=PATIENCE_S)
        assert sum(counts(db, name)["taken"] for name in names) == 2
        with pytest.raises(TimeoutError):
            broker.drain_events(timeout=0.1)
        got[0].ack()
        broker.drain_events(timeout=PATIENCE_S)
        assert len(got) == 3


def test_a_queue_with_auto_delete_goes_with_its_connection(address: str, db: fdbqueue.Database) -> None:
    exchange = kombu.Exchange("news", "fanout")
    with kombu.Connection(address) as first, kombu.Connection(address) as second:
        kombu.Queue("mine", exchange, auto_delete=True, durable=False)(first.default_channel).declare()
        assert "mine" in [queue.name for queue in Registry().names(db)]
        first.close()
        assert "mine" not in [queue.name for queue in Registry().names(db)]
        kombu.Producer(second.default_channel).publish("hi", exchange=exchange, declare=[exchange])


def test_a_queue_of_a_dead_connection_is_removed(address: str, db: fdbqueue.Database) -> None:
    """Its process did not close the connection: only the end of its session tells."""
    exchange = kombu.Exchange("news", "fanout")
    first, second = kombu.Connection(address), kombu.Connection(address)
    kombu.Queue("mine", exchange, exclusive=True, durable=False)(first.default_channel).declare()
    first.transport.session.end()
    with second:
        kombu.Producer(second.default_channel).publish("hi", exchange=exchange, declare=[exchange])
        assert counts(db, "mine")["ready"] == 0
        kombu.Queue("yours", exchange, exclusive=True, durable=False)(second.default_channel).declare()
        assert "mine" not in [queue.name for queue in Registry().names(db)]
    first.close()


def test_a_queue_that_was_dropped_is_made_again(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    send(broker, "letters", 1)
    Registry().drop(db, "letters")
    send(broker, "letters", 2)
    assert received(broker, "letters").payload == 2


def test_a_queue_of_another_kind_is_refused(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    TaskQueue.create(db, "letters", "fifo")
    with pytest.raises(QueueKindMismatch):
        send(broker, "letters", 1)


def test_a_queue_with_other_options_is_used_as_it_is(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    TaskQueue.create(db, "letters", "limfifottl", capacity=5, ttr=9)
    send(broker, "letters", 1)
    assert received(broker, "letters").payload == 1


def test_a_passive_declaration_makes_no_queue(broker: kombu.Connection) -> None:
    with pytest.raises(ChannelError, match="NOT_FOUND"):
        kombu.Queue("letters")(broker.default_channel).queue_declare(passive=True)


def test_a_session_that_has_ended_is_a_lost_connection(broker: kombu.Connection) -> None:
    """Celery connects again then, with another session."""
    send(broker, "letters", 1)
    broker.transport.session.end()
    with pytest.raises(BrokerLost):
        received(broker, "letters")
    broker.close()
    assert received(broker, "letters").payload == 1


def test_an_address_is_refused_in_one_sentence() -> None:
    with pytest.raises(UnknownBrokerUrl, match="names no database"):
        kombu.Connection("fdbqueue+redis:///somewhere").connect()


def test_messages_survive_the_fork_of_their_process(broker: kombu.Connection, db: fdbqueue.Database) -> None:
    """A child that ends its copy of the connection ends no lease of its parent."""
    send(broker, "letters", 1)
    message = received(broker, "letters")
    child = os.fork()
    if child == 0:
        try:
            broker.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert counts(db, "letters")["taken"] == 1
    message.ack()
    assert counts(db, "letters")["taken"] == 0


def test_a_message_wakes_an_event_loop(broker: kombu.Connection) -> None:
    """The loop waits for a descriptor, and a thread for the message."""
    from kombu.asynchronous.hub import Hub

    got: list[Any] = []
    loop = Hub()
    broker.transport.register_with_event_loop(broker.connection, loop)
    consumer = kombu.Consumer(broker.channel(), [kombu.Queue("letters")], prefetch_count=2)
    consumer.register_callback(lambda body, message: (got.append(body), message.ack()))
    with consumer:
        for number in range(5):
            send(broker, "letters", number)

        def have_come() -> bool:
            loop.run_once()
            return got == list(range(5))

        wait_until(have_come)
    broker.close()
    loop.close()


def test_an_error_that_does_not_heal_is_no_lost_connection(
    broker: kombu.Connection, db: fdbqueue.Database, tmp_path: Path
) -> None:
    """Celery would connect again, for ever."""
    send(broker, "letters", 1)
    (tmp_path / "data").rename(tmp_path / "elsewhere")

    def take(*_: object) -> Any:
        return received(broker, "letters")

    tap = Tap(db.runtime, take, lambda: {Want(None, "letters", TaskQueue.open(db, "letters")): 1}, bool)
    wait_until(lambda: bool(select.select([tap.bell], [], [], 0)[0]))
    with pytest.raises(StorageReplaced):
        tap.drawn()
    tap.end()
    with pytest.raises(ClusterMismatch), told_to_kombu():
        raise ClusterMismatch(url="fdb:", cluster="7.3", library="7.1", cure="")
