"""Calls that mypy must accept. tests/test_types.py checks this file; nothing runs it."""

from typing import Any

import fdb  # type: ignore[import-untyped]

import fdbqueue
import fdbqueue.embedded


@fdbqueue.transactional
def place(tr: fdbqueue.Transaction, number: int, *, note: str = "") -> bool:
    tr[b"orders/%d" % number] = note.encode()
    emails.enqueue(tr, {"order": number})
    return tr[b"orders"].present() is True


@fdbqueue.transactional(parameter="where", retry_limit=3, timeout_s=1.5)
def count(queue: fdbqueue.TaskQueue, where: fdbqueue.DatabaseOrTransaction) -> int:
    return queue.statistics(where)["tasks"]["ready"]


calls = fdbqueue.Tasks("calls")


@calls.task
def send(to: str, subject: str = "hi") -> int:
    return len(to + subject)


@calls.task(transactional=True, pri=3, unique=lambda number: number)
def note(tr: fdbqueue.Transaction, number: int) -> bool:
    return place(tr, number)


class Orders:
    @fdbqueue.transactional
    def place(self, tr: fdbqueue.Transaction, number: int) -> bool:
        return place(tr, number)


def with_each(db: fdbqueue.AnyDatabase, either: fdbqueue.DatabaseOrTransaction) -> None:
    emails.enqueue(db, "a")
    emails.enqueue(either, "a")
    words.put(either, "a", stop=stop)


db = fdbqueue.open("memory:")
engine = fdbqueue.embedded.open("directory")
cluster: fdb.Database = fdb.open()
stop = fdbqueue.RealRuntime().event()
emails = fdbqueue.Queue(fdbqueue.Subspace(("emails",)))
words = fdbqueue.TaskQueue.create(db, "words", "fifottl", ttr=60)
elements = fdbqueue.SimpleElementQueue.named(db, "elements")

for database in (db, engine, cluster):
    emails.enqueue(database, {"a": 1})
    words.put(database, "a", pri=3)
    fdbqueue.Session(database)
    fdbqueue.PersistentQueue(database, "jobs")
for transaction in (db.create_transaction(), engine.create_transaction(), cluster.create_transaction()):
    emails.enqueue(transaction, {"a": 1})
    words.take(transaction)

try:
    words.ack(db, "id")
except (fdbqueue.NotTaken, fdbqueue.TaskNotFound) as error:
    refused: fdbqueue.FdbQueueError = error
placed: bool = place(db, 3, note="twice") or place(tr=db, number=4) or Orders().place(db, 5)
placed = place(cluster, 3) or place(db.create_transaction(), 6) or Orders().place(cluster, 5)
ready: int = count(words, db) + count(words, where=cluster)
with_each(engine, db.create_transaction())
task: fdbqueue.Task | None = words.take(db, 0, stop=stop)
found: Any = emails.dequeue(db, default=None, timeout=1.5)
name: str = elements.add(db, b"data")
called: int = send("ada", subject="yes")
sent: fdbqueue.Task = send.put(db, "ada") if called else send.options(delay=3).put(cluster, to="ada")
noted: bool = note(db.create_transaction(), 3)
sent = note.put(db.create_transaction(), 3) if noted else note.put(engine, number=3)
fdbqueue.Group.create(db, then=(words, *send.call("ada")))
fdbqueue.Worker(db, "calls", calls)
attempts: int = fdbqueue.current_task().attempts
fdbqueue.open(engine, session_ttr_s=30.0).close()
fdbqueue.open(cluster).close()
