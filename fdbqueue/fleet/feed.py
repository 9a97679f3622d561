"""Feed: takes tasks for a worker, from one queue or from several by weight.

An idle worker has one request in the line of each queue, whatever the number of its threads. So it has one
watch per queue, and a put wakes one worker, not all of them.
"""

from collections.abc import Sequence

from fdbqueue import limits
from fdbqueue.codec import NOT_HERE
from fdbqueue.database import Database, is_away
from fdbqueue.errors import FdbQueueError, QueueNotFound, UnknownSession
from fdbqueue.fleet.outage import Outage
from fdbqueue.fleet.stride import StrideScheduler
from fdbqueue.logger import logger
from fdbqueue.runtime import Thread
from fdbqueue.sessions.session import Session
from fdbqueue.task import Task
from fdbqueue.tasks.queue import TaskQueue

Found = list[tuple[TaskQueue, Task]]

_log = logger("fdbqueue.worker")


class Feed:
    def __init__(self, database: Database, queues: Sequence[tuple[TaskQueue, int]]) -> None:
        """`queues` with their weights."""
        self._database = database
        self._runtime = database.runtime
        self._queues = [queue for queue, _ in queues]
        self._scheduler = StrideScheduler([weight for _, weight in queues])
        self._look_at = [float("-inf")] * len(queues)
        self._outages = [Outage(database.runtime) for _ in queues]
        self._gone: set[int] = set()
        self._passed: dict[int, FdbQueueError] = {}
        """By queue number: the error of the last take, if it found unreadable tasks only."""
        self._tell_at = [float("-inf")] * len(queues)
        self._waiting = False

    def take(self, count: int, session: Session, timeout_s: float) -> Found:
        """Wait for a task, and return up to `count`; from several queues, possibly one more of each.

        Raises: QueueNotFound when the last queue was dropped, UnknownSession.
        """
        there = self._sound()
        found = self._look(count, session) if len(there) > 1 else []
        if found:
            return found
        self._waiting = timeout_s > 0
        try:
            if len(there) == 1:
                return self._take(there[0], count, session, timeout_s)
            return self._wait(session, timeout_s)
        finally:
            self._waiting = False

    def end_waits(self, session: Session) -> None:
        """End a waiting `take`. It misses a wait that is about to begin: call it until `take` returns."""
        for queue in self._queues if self._waiting else ():
            queue.end_waits(self._database, session=session)

    def is_empty(self) -> bool:
        """True if the queues hold no tasks, except buried ones."""
        return not any(self._live(number) for number in self._there())

    def require_readable(self) -> None:
        """Raises the error of a task that this process cannot read, if no other task can be taken."""
        errors = [self._passed.get(number) for number in self._there() if self._live(number)]
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]

    def _pass_over(self, number: int, error: FdbQueueError) -> None:
        """Note that a queue holds a task that this process cannot read; log it now and then."""
        self._passed[number] = error
        now = self._runtime.monotonic()
        if now >= self._tell_at[number]:
            self._tell_at[number] = now + limits.TROUBLE_TOLD_EVERY_S
            _log.warning("passing over a task of the queue %r: %s", self._queues[number].name, error)

    def _live(self, number: int) -> int:
        """Return the number of tasks of the queue, except buried ones; 0 if it was dropped."""
        try:
            tasks = self._queues[number].statistics(self._database)["tasks"]
        except QueueNotFound:
            self._go_on_without(number)
            return 0
        return tasks["ready"] + tasks["taken"] + tasks["delayed"]

    def _go_on_without(self, number: int) -> None:
        """Leave out a dropped queue. Raises QueueNotFound if it was the last."""
        if number not in self._gone:
            _log.warning("the queue %r was dropped: going on without it", self._queues[number].name)
        self._gone.add(number)
        self._there()

    def _there(self) -> list[int]:
        there = [number for number in range(len(self._queues)) if number not in self._gone]
        if not there:
            raise QueueNotFound(name=", ".join(queue.name for queue in self._queues))
        return there

    def _sound(self) -> list[int]:
        """Return the queues without a running pause; all of them if each has one."""
        there = self._there()
        return [number for number in there if not self._outages[number].left_s()] or there

    def _leave_alone(self, number: int, error: Exception) -> bool:
        """Pause a failing queue, longer each time. Return False if no other queue can be asked meanwhile."""
        if not any(other != number and not self._outages[other].left_s() for other in self._there()):
            return False
        self._outages[number].met()
        title = f"nothing can be taken from the queue {self._queues[number].name!r}; it is tried again later"
        self._database.troubles.met(_log, title, error)
        return True

    def _look(self, count: int, session: Session) -> Found:
        """Take without waiting from the first queue, in the order of their turns, that has a task."""
        now = self._runtime.monotonic()
        for number in self._scheduler.order():
            if number in self._gone or self._outages[number].left_s():
                continue
            # An empty queue is asked again only after a while, as other queues may be busy.
            if self._look_at[number] > now:
                self._scheduler.was_empty(number)
                continue
            if found := self._take(number, count, session, 0):
                self._scheduler.took(number, len(found))
                return found
            self._scheduler.was_empty(number)
            self._look_at[number] = now + limits.EMPTY_QUEUE_LOOK_S
        return []

    def _take(self, number: int, count: int, session: Session, timeout_s: float) -> Found:
        queue = self._queues[number]
        try:
            found = queue.take_many(self._database, count, timeout_s, session=session)
        except QueueNotFound:
            self._go_on_without(number)
            found = []
        except NOT_HERE as error:
            self._pass_over(number, error)
            found = []
        except UnknownSession:
            raise
        except Exception as error:
            if is_away(error) or not self._leave_alone(number, error):
                raise
            found = []
        else:
            self._passed.pop(number, None)
            self._outages[number].over()
        return [(queue, task) for task in found]

    def _wait(self, session: Session, timeout_s: float) -> Found:
        """Wait in the lines of all queues at once, until one take returns a task."""
        wait = Wait(self, session, timeout_s)
        threads: list[Thread] = []
        try:
            threads.extend(wait.start(number) for number in self._sound())
            wait.over.wait(timeout_s)
        except RuntimeError as error:  # no thread can be started: the others may return a task
            wait.errors.append(error)
        for thread in threads:
            while thread.is_alive():
                self.end_waits(session)
                thread.join(limits.EMPTY_QUEUE_LOOK_S / 10)
        if wait.errors and not wait.found:
            raise wait.errors[0]
        self._look_at = [float("-inf")] * len(self._look_at)
        for number, _ in wait.found:
            self._scheduler.took(number, 1)
        return [(self._queues[number], task) for number, task in wait.found]


class Wait:
    """One waiting take per queue, each in a thread of its own; the first that returns ends the others."""

    def __init__(self, feed: Feed, session: Session, timeout_s: float) -> None:
        self._feed = feed
        self._session = session
        self._timeout_s = timeout_s
        self.over = feed._runtime.event()
        self.found: list[tuple[int, Task]] = []
        self.errors: list[Exception] = []

    def start(self, number: int) -> Thread:
        return self._feed._runtime.spawn(lambda: self._stand(number), "fdbqueue-waiter")

    def _stand(self, number: int) -> None:
        try:
            found = self._feed._take(number, 1, self._session, self._timeout_s)
            self.found += [(number, task) for _, task in found]
        except Exception as error:
            self.errors.append(error)
        finally:
            self.over.set()
