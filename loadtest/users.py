"""The users: producer, consumer, mixed, fair tenants, crawl of micro-queues.

A user's step runs whole in one OS thread, so that killing its greenlet, which is how Locust stops users,
never comes between taking an item and noting it. Each call of the step is reported to Locust afterwards as
a request with its name, its latency and its error.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import gevent
from locust import User, constant, task

import fdbqueue
from fdbqueue import Queue, TaskQueue
from loadtest.run import Run, complete, item_of, run_of
from loadtest.threads import Done, timed

WAIT_S = 1.0
AFTER_ERROR_S = 1.0
PAUSE_S = 0.2
CALLS_PER_LOOK = 20
PAYLOAD = "v" * 100
TENANTS, HOSTS, LINKS = 50, 200, 2


class LibraryUser(User):
    """One caller of the library. Its process opens the database once, as a program's would."""

    abstract = True
    wait_time = constant(0)
    consumes = True

    def on_start(self) -> None:
        self.test: Run = run_of(self.environment)
        self._calls = 0

    @task
    def act(self) -> None:
        done = self.test.work(self.step)
        for call in done:
            self._report(call)
        if any(call.error for call in done):
            gevent.sleep(AFTER_ERROR_S)

    def step(self) -> Sequence[Done]:
        """One step of the user, in an OS thread; returns its calls."""
        raise NotImplementedError  # Locust's users have a metaclass of their own: no ABC

    def _report(self, call: Done) -> None:
        self.environment.events.request.fire(
            request_type=type(self).__name__,
            name=call.name,
            response_time=call.latency_ms,
            response_length=0,
            exception=call.error,
            context={},
        )

    # Parts of steps.

    def has_room(self, queue: Queue | TaskQueue) -> bool:
        """Whether to put more; it looks now and then, and if there is none, pauses."""
        self._calls += 1
        if self._calls % CALLS_PER_LOOK:
            return True
        room = self.test.queues.size(queue, self.test.db) < self.environment.parsed_options.backlog
        if not room:
            self.test.db.runtime.sleep(PAUSE_S)
        return bool(room)

    def data(self) -> dict[str, Any]:
        return {"item": list(self.test.new_item()), "payload": PAYLOAD}

    def put_plainly(self, name: str, put: Any, data: dict[str, Any]) -> Done:
        """A call given the database; the ledger hears of it afterwards, together with others."""
        done = timed(name, partial(put, self.test.db, data))
        note = self.test.book.doubtful if done.error else self.test.book.produced
        note(item_of(data))
        return done

    def put_within(self, tr: Any, queue: TaskQueue, data: dict[str, Any], **options: Any) -> None:
        """A put in a transaction that notes it in the ledger."""
        if self.test.ledger.produced(tr, item_of(data)):
            queue.put(tr, data, **options)

    def take_and_ack(self, queue: TaskQueue, **options: Any) -> list[Done]:
        """The loop of a worker. An answer of nothing is no request: it would only tell how long we waited."""
        took = timed("take", lambda: queue.take(self.test.db, WAIT_S))
        if took.answer is None:
            return [took] if took.error else []
        return [took, timed("ack", lambda: complete(self.test, queue, [took.answer], **options))]


class Producer(LibraryUser):
    """Puts into the recipe queue as long as there is room."""

    consumes = False

    def step(self) -> Sequence[Done]:
        queue = self.test.queues.plain
        return [self.put_plainly("enqueue", queue.enqueue, self.data())] if self.has_room(queue) else []


class Consumer(LibraryUser):
    """Takes from the recipe queue, waiting in its line."""

    def step(self) -> Sequence[Done]:
        done = timed("dequeue", lambda: self.test.queues.plain.dequeue(self.test.db, timeout=WAIT_S))
        if done.answer is not None:
            self.test.book.consumed(item_of(done.answer))
        return [done] if done.error or done.answer is not None else []


class Mixed(LibraryUser):
    """Puts a task in a transaction of its own, takes one, acks it beside the writes of the work."""

    def step(self) -> Sequence[Done]:
        queue = self.test.queues.mixed
        data = self.data()

        @fdbqueue.transactional
        def put(tr: Any) -> None:
            self.put_within(tr, queue, data, pri=data["item"][1] % 3)

        return [timed("put", lambda: put(self.test.db)), *self.take_and_ack(queue)]


class Tenant(LibraryUser):
    """Many tenants of very different size share a fair queue."""

    def step(self) -> Sequence[Done]:
        queue = self.test.queues.tenants
        tenant = int(TENANTS * self.test.db.runtime.random() ** 3)
        put = partial(queue.put, key=tenant)
        return [self.put_plainly("put", put, self.data()), *self.take_and_ack(queue)]


class Crawler(LibraryUser):
    """A micro-queue per host: fetches a page, and puts its links in the transaction of the ack."""

    def step(self) -> Sequence[Done]:
        queue = self.test.queues.crawl
        found = [self.data() for _ in range(LINKS if self.has_room(queue) else 0)]
        return self.take_and_ack(queue, more=lambda tr: self._put_all(tr, queue, found)) or [
            self._seed(queue)
        ]

    def _seed(self, queue: TaskQueue) -> Done:
        return self.put_plainly("put", partial(queue.put, key=self._host()), self.data())

    def _put_all(self, tr: Any, queue: TaskQueue, found: Sequence[dict[str, Any]]) -> None:
        for data in found:
            self.put_within(tr, queue, data, key=self._host())

    def _host(self) -> int:
        return int(HOSTS * self.test.db.runtime.random())
