"""Calls that mypy must refuse, one a line. tests/test_types.py checks this file; nothing runs it."""

import fdbqueue
import fdbqueue.embedded


@fdbqueue.transactional
def place(tr: fdbqueue.Transaction, number: int, *, note: str = "") -> bool:
    return tr[b"orders/%d" % number].present() is True


@fdbqueue.transactional(parameter="where")
def count(queue: fdbqueue.TaskQueue, where: fdbqueue.DatabaseOrTransaction) -> int:
    return queue.statistics(where)["tasks"]["ready"]


calls = fdbqueue.Tasks("calls")


@calls.task(pri=3)
def send(to: str, subject: str = "hi") -> int:
    return len(to + subject)


@calls.task(transactional=True)
def note(tr: fdbqueue.Transaction, number: int) -> None:
    tr[b"number"] = b"%d" % number


def refuse(db: fdbqueue.AnyDatabase, tr: fdbqueue.Transaction) -> None:
    # Each line below is wrong.
    emails.enqueue("memory:", 1)
    emails.enqueue(None, 1)
    emails.enqueue({"a": 1}, db)
    emails.enqueue(emails, 1)
    emails.enqueue(fdbqueue.Database, 1)
    emails.enqueue(tr.snapshot, 1)
    emails.enqueue(tr.get(b"key"), 1)
    emails.enqueue(db)
    emails.enque(db, 1)
    emails.dequeue(db, timeout="1")
    emails.dequeue(db, stop=True)
    emails.dequeue_many(db, "3")
    emails.items(db)
    emails.holder(tr)
    size: str = emails.size(db)
    words.put("words", 1)
    words.put(db)
    words.put(db, 1, ttr="60")
    words.put(db, 1, ttr_s=60)
    words.put(db, 1, 60)
    words.put_many(db, 1)
    words.take(db, "1")
    words.take(db, session="ada")
    words.take(tr.snapshot)
    words.take(db).data
    words.ack(db, 3)
    words.ack(tr)
    words.bury(db, "id", failure="why")
    words.kick(db, "3")
    words.tasks(db, 3, 10)
    words.tasks(db, "ready", 10).nexts
    words.statistics(db).ready
    words.on_task_change(lambda task: None)
    fdbqueue.TaskQueue.create("memory:", "words")
    fdbqueue.TaskQueue.create(db, 3)
    fdbqueue.TaskQueue.create(db, "words", ttr="60")
    fdbqueue.TaskQueue.open(db)
    fdbqueue.Queue.named("memory:", "emails")
    fdbqueue.FairQueue(subspace)
    fdbqueue.FairQueue(subspace, key="key")
    fair.put("memory:", 1)
    fair.put(db, 1, cost="2")
    elements.add(db, 3)
    elements.add("memory:", b"data")
    elements.get(db, b"name")
    elements.add_path(tr, "file")
    pieces.add(db, ["a"])
    fdbqueue.Session("memory:")
    fdbqueue.Session(tr)
    fdbqueue.Session(db, ttr="60")
    fdbqueue.PersistentQueue("memory:", "jobs")
    fdbqueue.PersistentQueue(tr, "jobs")
    fdbqueue.Worker("memory:", "words", print)
    fdbqueue.Worker(tr, "words", print)
    fdbqueue.Worker(db, "words", "module:handler")
    fdbqueue.Worker(db, "words", print, thread=3)
    fdbqueue.Worker(db, "words", print, threads="3")
    fdbqueue.Worker(db, "words", print, backoff=3.0)
    fdbqueue.Worker(db, "words", print, hooks=print)
    fdbqueue.Fleet(db, "words", "module:handler")
    fdbqueue.Fleet("memory:", "words", print)
    fdbqueue.Fleet("memory:", "words", "module:handler", processes="3")
    fdbqueue.Retry("3")
    fdbqueue.Snooze()
    fdbqueue.Done(3)
    fdbqueue.Hooks(buried="module:hook")
    fdbqueue.Backoff(first="1")
    fdbqueue.open(3)
    fdbqueue.open("memory:", session_ttr_s="30")
    fdbqueue.open("memory:", runtime=print)
    fdbqueue.workers("memory:")
    fdbqueue.list_queues("memory:")
    fdbqueue.statistics("memory:")
    fdbqueue.NoSuchName
    place("memory:", 3)
    place(3)
    place(db)
    place(tr)
    place(tr, "3")
    place(tr, 3, "note")
    place(tr, 3, notes="note")
    placed: str = place(tr, 3)
    count(words, "memory:")
    count(words)
    count(db, words)
    fdbqueue.transactional(retry_limit="3")
    fdbqueue.transactional(retries=3)
    fdbqueue.transactional("tr")
    words.producer().take(db)
    words.consumer().put(db, 1)
    emails.consumer().enqueue(db, 1)
    send(3)
    send("ada", about="yes")
    to: str = send("ada")
    send.put("ada")
    send.put(db)
    send.put(db, 3)
    send.put(tr, "ada", about="yes")
    send.call(3)
    send.options(delay=3).put(db, 3)
    note(3)
    note.put(db, tr, 3)
    note.put(db, "3")
    sent: str = send.put(db, "ada")
    send.putt(db, "ada")
    calls.task(3)
    calls.task(name=3)
    fdbqueue.Tasks(3)
    # Each line above is wrong.


subspace = fdbqueue.Subspace(("words",))
emails = fdbqueue.Queue(subspace)
words = fdbqueue.TaskQueue.open(fdbqueue.open("memory:"), "words")
fair = fdbqueue.FairQueue(subspace, key=str)
elements = fdbqueue.SimpleElementQueue(subspace)
pieces = fdbqueue.ElementQueue(subspace, {"body": "bytes"})
