"""Takes from several queues at once: the first that has a message ends the wait in the others.

A tap takes in a thread of its own, for a channel on an event loop.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core.database import Database
from fdbqueue.core.error_root import heals
from fdbqueue.core.errors import WaitStopped
from fdbqueue.core.runtime import Event, Runtime
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.integrations.celery.databases import BrokerLost
from fdbqueue.tasks.queue import TaskQueue


@dataclass(frozen=True)
class Want:
    """A queue from which up to `most` messages are wanted for a channel."""

    channel: Any
    name: str
    queue: TaskQueue
    most: int


class Found(NamedTuple):
    want: Want
    task: Task


class Intake:
    def __init__(self, database: Database, session: Session) -> None:
        self._database = database
        self._session = session
        self._turn = 0

    def take(self, wants: Sequence[Want], timeout_s: float, stop: Event) -> list[Found]:
        """Messages of one of the queues, or of several that have got one at the same moment. Waits up to
        `timeout_s` for the first. Empty after that time, and when `stop` is set. Raises: the errors of a
        take.
        """
        if len(wants) == 1:
            return self._from(wants[0], wants[0].most, timeout_s, stop)
        self._turn += 1
        for number in range(len(wants)):
            want = wants[(number + self._turn) % len(wants)]
            if found := self._from(want, want.most, 0, stop):
                return found
        return _Wait(self, wants, timeout_s, stop).run(self._database) if timeout_s > 0 else []

    def _from(self, want: Want, count: int, timeout_s: float, stop: Event) -> list[Found]:
        with suppress(WaitStopped):
            taken = want.queue.take_many(self._database, count, timeout_s, session=self._session, stop=stop)
            return [Found(want, task) for task in taken]
        return []


class _Wait:
    """One waiting take per queue, each in a thread of its own."""

    def __init__(self, intake: Intake, wants: Sequence[Want], timeout_s: float, stop: Event) -> None:
        self._intake = intake
        self._wants = wants
        self._timeout_s = timeout_s
        self._stop = stop
        self._found: list[Found] = []
        self._errors: list[Exception] = []

    def run(self, database: Database) -> list[Found]:
        over = database.runtime.event()
        forget = self._stop.listen(over.set)
        try:
            threads = [
                database.runtime.spawn(partial(self._stand, want, over), "fdbqueue-celery-wait")
                for want in self._wants
            ]
            for thread in threads:
                thread.join()
        finally:
            forget()
        if self._errors and not self._found:
            raise self._errors[0]
        return self._found

    def _stand(self, want: Want, over: Event) -> None:
        try:
            self._found += self._intake._from(want, 1, self._timeout_s, over)
        except Exception as error:
            self._errors.append(error)
        finally:
            over.set()


WAIT_S = 30.0


class Tap:
    """A thread that takes messages for one channel, and wakes the event loop of a worker. `wants()` tells
    from where to `take`. Messages wait here until the loop calls `drawn`.
    """

    def __init__(
        self,
        runtime: Runtime,
        take: Callable[[Sequence[Want], float, Event], Sequence[Found]],
        wants: Callable[[], Sequence[Want]],
        receive: Callable[[Found], bool],
    ) -> None:
        self._runtime = runtime
        self._take = take
        self._wants = wants
        self._receive = receive
        self._inbox: deque[Found] = deque()
        self._error: Exception | None = None
        self._changed = self._runtime.event()
        self._stop: Event = self._runtime.event()
        self._ended = False
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """A descriptor that is readable when there is something to draw."""
        self._thread = self._runtime.spawn(self._run, "fdbqueue-celery-tap")

    def changed(self) -> None:
        """Look again from where to take, and end a wait that is under way."""
        self._changed.set()
        self._stop.set()

    def freed(self) -> None:
        """Look again from where to take, after a wait that is under way."""
        self._changed.set()

    def drawn(self) -> list[Found]:
        """The messages that have come. Raises the error that ended the takes, as BrokerLost if it heals."""
        os.eventfd_read(self.bell)
        if self._error is not None:
            if not heals(self._error):
                raise self._error
            raise BrokerLost(str(self._error)) from self._error
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def end(self) -> list[Found]:
        """Stop taking. Return the messages that have not been drawn."""
        self._ended = True
        self.changed()
        self._thread.join()
        os.close(self.bell)
        return list(self._inbox)

    def _run(self) -> None:
        try:
            while not self._ended:
                self._take_some()
        except Exception as error:
            self._error = error
            self._ring()

    def _take_some(self) -> None:
        self._changed.clear()
        # Before the look: a change after it ends the wait.
        stop = self._stop = self._runtime.event()
        wants = self._wants()
        if not wants or self._ended:
            if not self._ended:
                self._changed.wait()
            return
        taken = self._take(wants, WAIT_S, stop)
        if held := [found for found in taken if self._receive(found)]:
            self._inbox.extend(held)
            self._ring()

    def _ring(self) -> None:
        os.eventfd_write(self.bell, 1)
