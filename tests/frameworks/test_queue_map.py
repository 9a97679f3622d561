"""QueueMap: the task queues of an adapter are made at their first use, and again after a drop."""

from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.core.errors import QueueExists, QueueNotFound
from fdbqueue.integrations.common import QueueMap


@pytest.fixture
def db() -> Iterator[Database]:
    with fdbqueue.open("memory:") as db:
        yield db


def test_a_queue_has_the_namespace_in_its_name(db: Database) -> None:
    queues = QueueMap(lambda: db, "letters")
    assert queues.made("mails").name == "letters.mails"
    assert queues.made("mails") is queues.made("mails")
    assert QueueMap(lambda: db).made("mails").name == "mails"


def test_a_queue_that_was_dropped_is_made_again(db: Database) -> None:
    queues = QueueMap(lambda: db)
    queues.made("mails").drop(db)
    assert queues.use("mails", lambda queue: queue.put(db, 1).data) == 1


def test_a_queue_is_not_kept_if_its_transaction_ends(db: Database) -> None:
    queues, tr = QueueMap(lambda: db), db.create_transaction()
    queues.use("mails", lambda queue: queue.put(tr, 1), tr)
    tr.cancel()
    with pytest.raises(QueueNotFound):
        queues.there("mails")
    assert queues.made("mails").statistics(db)["tasks"]["ready"] == 0


def test_a_queue_with_other_options_is_refused_or_judged(db: Database) -> None:
    TaskQueue.create(db, "mails", "fifo")
    with pytest.raises(QueueExists):
        QueueMap(lambda: db).made("mails")
    asked: list[str] = []
    judged = QueueMap(lambda: db, require=lambda queue: asked.append(queue.kind))
    judged.made("mails")
    judged.made("mails")
    assert asked == ["fifo"]
