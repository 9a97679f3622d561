"""Takes from several queues at once: the first that has a message ends the wait in the others."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.database import Database
from fdbqueue.errors import WaitStopped
from fdbqueue.runtime import Event
from fdbqueue.sessions.session import Session
from fdbqueue.task import Task
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
    """The takes of one connection."""

    def __init__(self, database: Database, session: Session) -> None:
        self._database = database
        self._session = session
        self._turn = 0

    def take(self, wants: Sequence[Want], timeout_s: float, stop: Event) -> list[Found]:
        """Messages of one of the queues, or of several that have got one at the same moment.

        Waits up to `timeout_s` for the first. Empty after that time, and when `stop` is set.
        Raises: the errors of a take.
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
