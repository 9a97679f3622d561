"""Feed: where a worker's tasks come from. One queue, or several in their shares.

An idle worker stands in the waiting line of each queue once, whatever the number of its threads: one request
and one watch per queue, and what is put wakes one worker, not all of them.
"""

from collections.abc import Sequence

from fdbqueue import limits
from fdbqueue.codec import NOT_HERE
from fdbqueue.database import Database, is_away
from fdbqueue.errors import FdbQueueError, QueueNotFound, UnknownSession
from fdbqueue.fleet.outage import Outage
from fdbqueue.fleet.shares import Shares
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
        self._shares = Shares([weight for _, weight in queues])
        self._look_at = [float("-inf")] * len(queues)
        self._outages = [Outage(database.runtime) for _ in queues]
        self._gone: set[int] = set()
        self._passed: dict[int, FdbQueueError] = {}
        """Queues of which the last take has found only tasks that cannot be read here."""
        self._tell_at = [float("-inf")] * len(queues)
        self._waiting = False

    def take(self, count: int, session: Session, timeout_s: float) -> Found:
        """Up to `count` tasks, waiting for the first; of several queues perhaps one more of each. Raises
        QueueNotFound when the last queue is gone, UnknownSession.
        """
        there = self._sound()
        if len(there) == 1:
            return self._take(there[0], count, session, timeout_s)
        return self._look(count, session) or self._wait(session, timeout_s)

    def end_waits(self, session: Session) -> None:
        """Whoever waits in `take` returns soon: to be repeated until he has."""
        for queue in self._queues if self._waiting else ():
            queue.end_waits(self._database, session=session)

    def is_empty(self) -> bool:
        """Whether the queues hold nothing that anybody will ever take, unless it is kicked."""
        return not any(self._live(number) for number in self._there())

    def require_readable(self) -> None:
        """Raises the error of a task that this process passes over, if the queues hold no others to come."""
        errors = [self._passed.get(number) for number in self._there() if self._live(number)]
        if errors and errors[0] is not None and None not in errors:
            raise errors[0]

    def _pass_over(self, number: int, error: FdbQueueError) -> None:
        """The others of its queue, and other queues, go on. Told of once in a while."""
        self._passed[number] = error
        now = self._runtime.monotonic()
        if now >= self._tell_at[number]:
            self._tell_at[number] = now + limits.TROUBLE_TOLD_EVERY_S
            _log.warning("the queue %r holds what is passed over: %s", self._queues[number].name, error)

    def _live(self, number: int) -> int:
        """How many tasks the queue holds that may be taken some time; none if it is gone."""
        try:
            tasks = self._queues[number].statistics(self._database)["tasks"]
        except QueueNotFound:
            self._go_on_without(number)
            return 0
        return tasks["ready"] + tasks["taken"] + tasks["delayed"]

    def _go_on_without(self, number: int) -> None:
        """Raises QueueNotFound if it was the last."""
        if number not in self._gone:
            _log.warning("the queue %r is gone: going on without it", self._queues[number].name)
        self._gone.add(number)
        self._there()

    def _there(self) -> list[int]:
        there = [number for number in range(len(self._queues)) if number not in self._gone]
        if not there:
            raise QueueNotFound(name=", ".join(queue.name for queue in self._queues))
        return there

    def _sound(self) -> list[int]:
        """Those that are there and are not left alone; all of them if there are none."""
        there = self._there()
        return [number for number in there if not self._outages[number].left_s()] or there

    def _leave_alone(self, number: int, error: Exception) -> bool:
        """Ask the queue later, longer each time, as it fails; false if it is the last that can be asked."""
        if not any(other != number and not self._outages[other].left_s() for other in self._there()):
            return False
        self._outages[number].met()
        title = f"nothing is taken from the queue {self._queues[number].name!r}, and it will be tried again"
        self._database.troubles.met(_log, title, error)
        return True

    def _look(self, count: int, session: Session) -> Found:
        """What the first queue has, by its share, that has anything now."""
        now = self._runtime.monotonic()
        for number in self._shares.order():
            # While others are busy, one that was empty is not asked every time.
            if number in self._gone or self._look_at[number] > now or self._outages[number].left_s():
                continue
            if found := self._take(number, count, session, 0):
                self._shares.took(number, len(found))
                return found
            self._shares.was_empty(number)
            self._look_at[number] = now + limits.EMPTY_QUEUE_LOOK_S
        return []

    def _take(self, number: int, count: int, session: Session, timeout_s: float) -> Found:
        queue = self._queues[number]
        self._waiting = timeout_s > 0
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
        """Stand in all lines at once until one of them has given something."""
        wait = Wait(self, session, timeout_s)
        threads: list[Thread] = []
        try:
            threads.extend(wait.start(number) for number in self._sound())
            wait.over.wait(timeout_s)
        except RuntimeError as error:  # no thread to be had: those that stand in line may bring something
            wait.errors.append(error)
        for thread in threads:
            while thread.is_alive():
                self.end_waits(session)
                thread.join(limits.EMPTY_QUEUE_LOOK_S / 10)
        if wait.errors and not wait.found:
            raise wait.errors[0]
        self._look_at = [float("-inf")] * len(self._look_at)
        for number, _ in wait.found:
            self._shares.took(number, 1)
        return [(self._queues[number], task) for number, task in wait.found]


class Wait:
    """A thread for each line, for as long as nothing comes."""

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
