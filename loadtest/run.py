"""One test run, as one process sees it: the database, the queues, the ledger, the threads."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from fdb.subspace_impl import Subspace
from locust.env import Environment

import fdbqueue
from fdbqueue import Queue, Task, TaskQueue
from fdbqueue.core import limits
from loadtest.ledger import Book, ItemId, Ledger, Verdict, judge
from loadtest.threads import Threads

SPACE = Subspace(("fdbqueue-load",))
TTR_S = 60.0
DRAINED_TOGETHER = 100
# A result for a dead process returns after its deadline: the last look waits for that time.
RETURN_S = 2 * limits.REQUEST_DEADLINE_S
_ERASED_TOGETHER = 5_000


@dataclass(frozen=True)
class Queues:
    """Where the users meet; all below the run's own root."""

    plain: Queue
    mixed: TaskQueue
    tenants: TaskQueue
    crawl: TaskQueue

    @classmethod
    def of(cls, db: fdbqueue.Database, root: Subspace) -> "Queues":
        def tasks(name: str, kind: str, **options: Any) -> TaskQueue:
            return TaskQueue.create(db, name, kind, if_not_exists=True, root=root, **options)

        return cls(
            Queue.named(db, "plain", root=root),
            tasks("mixed", "fifottl", ttr=TTR_S),
            tasks("tenants", "fair"),
            tasks("crawl", "utube"),
        )

    @property
    def of_tasks(self) -> tuple[TaskQueue, ...]:
        return self.mixed, self.tenants, self.crawl

    def size(self, queue: Queue | TaskQueue, db: fdbqueue.Database) -> int:
        """How much waits to be taken."""
        return queue.size(db) if isinstance(queue, Queue) else queue.statistics(db)["tasks"]["ready"]


class Run:
    """Has a database of its own: what belongs to a connection (sessions, receipts) ends with the run."""

    def __init__(self, url: str | None, run_id: str, threads: Threads) -> None:
        """Raises what fdbqueue.open raises."""
        self.url = url
        self.db = db = fdbqueue.open(url)
        self.threads = threads
        self.space = SPACE[run_id]
        self.process = f"{db.runtime.process_id()}-{db.runtime.random_bytes(4).hex()}"
        self.queues = Queues.of(self.db, self.space["root"])
        self.ledger = Ledger(self.space["ledger"])
        self.book = Book(self.db, self.ledger, self.process)
        self._numbers = count()

    def new_item(self) -> ItemId:
        return self.process, next(self._numbers)

    def work(self, body: Callable[[], Any]) -> Any:
        """Do `body` in an OS thread."""
        return self.threads.run(body)

    def leave(self) -> None:
        """A worker's end: its last word is said when all is written and its database closed."""
        self.book.write()
        self.db.close()
        with fdbqueue.open(self.url) as db:
            self.ledger.close_book(db, self.process)


_runs: "WeakKeyDictionary[Environment, Run]" = WeakKeyDictionary()


def run_of(environment: Environment) -> Run:
    """The test run that is under way. Raises KeyError before and after one."""
    return _runs[environment]


def begin(environment: Environment, run: Run) -> None:
    _runs[environment] = run


def end(environment: Environment) -> Run | None:
    """No process may find the run any more."""
    return _runs.pop(environment, None)


def complete(
    run: Run, queue: TaskQueue, tasks: Sequence[Task], more: Callable[[Any], None] = lambda _: None
) -> None:
    """Ack `tasks`, note their deliveries and do `more`, in one transaction: all of it once, or nothing.

    Raises NotTaken.
    """
    deliveries = [(task, run.db.runtime.random_bytes(8)) for task in tasks]

    @fdbqueue.transactional
    def body(tr: Any) -> None:
        # Noted already: an earlier attempt with an unknown result has committed.
        fresh = [
            task for task, delivery in deliveries if run.ledger.consumed(tr, item_of(task.data), delivery)
        ]
        for task in fresh:
            queue.ack(tr, task)
        if fresh:
            more(tr)

    body(run.db)


def item_of(data: Any) -> ItemId:
    process, number = data["item"]
    return process, number


# The end of a run: no other process works on it any more.


def drain(run: Run, wait_s: float = 0.0) -> int:
    """Take and note the remaining items, and return their number."""
    left = 0
    plain = run.queues.plain
    while values := plain.dequeue_many(run.db, DRAINED_TOGETHER) or late(plain, run.db, wait_s):
        left += len(values)
        for value in values:
            run.book.consumed(item_of(value))
    for queue in run.queues.of_tasks:
        queue.release_all(run.db)
        while tasks := queue.take_many(run.db, DRAINED_TOGETHER):
            left += len(tasks)
            complete(run, queue, tasks)
    return left


def late(queue: Queue, db: fdbqueue.Database, wait_s: float) -> list[Any]:
    value = queue.dequeue(db, timeout=wait_s)
    return [] if value is None else [value]


def settle(run: Run) -> Verdict:
    """Drain everything, judge, and verify the queues. If something is missing, wait for the items of dead
    processes.
    """
    drain(run)
    run.book.close()
    verdict = judge(run.db, run.ledger)
    if verdict.lost and verdict.open_books:
        drain(run, wait_s=RETURN_S)
        run.book.close()
        verdict = judge(run.db, run.ledger)
    found = fdbqueue.verify(run.db, root=run.space["root"])
    return replace(verdict, findings=[finding.text for finding in found.findings])


def erase(url: str | None, space: Subspace) -> None:
    """Remove all that a run has written, a bounded part at a time: a long one has written a lot."""
    whole = space.range()
    with fdbqueue.open(url) as db:
        while erase_some(db, whole.start, whole.stop):
            pass


@fdbqueue.transactional
def erase_some(tr: Any, begin: bytes, end: bytes) -> bool:
    """Clear the first keys of a range; whether there were any. Conflicts with nothing."""
    keys = [row.key for row in tr.snapshot.get_range(begin, end, limit=_ERASED_TOGETHER)]
    if keys:
        tr.clear_range(begin, keys[-1] + b"\x00")
    return bool(keys)
