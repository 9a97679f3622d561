"""Feed: takes tasks for a worker, from one queue or from several by weight; and decides which of them begin.

It leaves out a queue that was dropped, and pauses one that fails, as long as there are others.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum, auto
from functools import partial

from fdbqueue.core import limits, observing
from fdbqueue.core.codec import NOT_HERE
from fdbqueue.core.database import Database, is_away
from fdbqueue.core.errors import (
    DatabaseClosed,
    FdbQueueError,
    LayoutNewer,
    QueueNotFound,
    UnknownSession,
    heals,
)
from fdbqueue.core.logger import logger
from fdbqueue.core.runtime import Event, Runtime
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.fleet.held import Hold
from fdbqueue.tasks.intake import Intake
from fdbqueue.tasks.queue import TaskQueue

Found = list[tuple[TaskQueue, Task]]

_log = logger("fdbqueue.worker")


class Outage:
    """The growing pauses of a worker while something is away."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._pause_s = 0.0
        self._until = float("-inf")

    def met(self) -> float:
        """Start a pause; return its length, or that of the pause under way: eight failures are one outage."""
        with self._lock:
            now = self._runtime.monotonic()
            if now >= self._until:
                self._pause_s = min(2 * self._pause_s or limits.AWAY_FIRST_S, limits.AWAY_MAX_S)
                self._until = now + self._pause_s
            return self._pause_s

    def over(self) -> None:
        with self._lock:
            self._pause_s, self._until = 0.0, float("-inf")

    def left_s(self) -> float:
        return max(0.0, self._until - self._runtime.monotonic())


class Feed:
    def __init__(
        self, database: Database, queues: Sequence[tuple[TaskQueue, int]], overtake: int = 0
    ) -> None:
        """`overtake`: as for Taking.take, in the queues that know it."""
        self._overtake = overtake
        self._database = database
        self._runtime = database.runtime
        self._queues = [queue for queue, _ in queues]
        self._intake = Intake(
            self._runtime,
            {number: weight for number, (_, weight) in enumerate(queues)},
            limits.EMPTY_QUEUE_LOOK_S,
        )
        self._outages = [Outage(database.runtime) for _ in queues]
        self._gone: dict[int, FdbQueueError] = {}
        """By queue number: the error of a queue from which nothing can be taken any more."""
        self._passed: dict[int, FdbQueueError] = {}
        """By queue number: the error of the last take, if it found unreadable tasks only."""
        self._tell_at = [float("-inf")] * len(queues)
        self._stop = self._runtime.event()

    def take(self, count: int, session: Session, timeout_s: float) -> Found:
        """Wait for a task, and return up to `count`; from several queues, possibly one more of each. Raises:
        when the last queue is gone, QueueNotFound or LayoutNewer; UnknownSession.
        """
        stop = self._stop = self._runtime.event()

        def take(number: int, count: int, timeout_s: float, stop: Event) -> list[Task]:
            return self._take(number, count, session, timeout_s, stop)

        found = self._intake.look(take, dict.fromkeys(self._sound(), count), timeout_s, stop)
        if not found:
            found = self._intake.wait(take, dict.fromkeys(self._sound(), count), timeout_s, stop)
        return [(self._queues[number], task) for number, task in found]

    def more(self, queue: TaskQueue, count: int, session: Session) -> list[Task]:
        """Take up to `count` tasks of one of the queues, without a wait."""
        return self._take(self._queues.index(queue), count, session, 0, self._runtime.event())

    def end_waits(self) -> None:
        """End a waiting `take`. It misses a wait that is about to begin: call it until `take` returns."""
        self._stop.set()

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
        except QueueNotFound as error:
            self._go_on_without(number, error)
            return 0
        return tasks["ready"] + tasks["taken"] + tasks["delayed"]

    def _go_on_without(self, number: int, error: FdbQueueError) -> None:
        """Leave out a queue that was dropped or upgraded. Raises its error if it was the last."""
        if number not in self._gone:
            _log.warning("going on without the queue %r: %s", self._queues[number].name, error)
        self._gone[number] = error
        self._there()

    def _there(self) -> list[int]:
        there = [number for number in range(len(self._queues)) if number not in self._gone]
        if not there:
            for error in self._gone.values():
                if not isinstance(error, QueueNotFound):
                    raise error
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

    def _take(self, number: int, count: int, session: Session, timeout_s: float, stop: Event) -> list[Task]:
        queue = self._queues[number]
        try:
            found = self._taken(queue, count, session, timeout_s, stop)
        except UnknownSession:
            raise
        except (QueueNotFound, LayoutNewer) as error:
            self._go_on_without(number, error)
        except NOT_HERE as error:
            self._pass_over(number, error)
        except Exception as error:
            if is_away(error) or not heals(error) or not self._leave_alone(number, error):
                raise
        else:
            self._passed.pop(number, None)
            self._outages[number].over()
            return found
        return []

    def _taken(
        self, queue: TaskQueue, count: int, session: Session, timeout_s: float, stop: Event
    ) -> list[Task]:
        # As the `stop` of the take, the event would give its tasks back. If an outage hinders that, they lose
        # their leases, and an attempt counts. A worker that holds them excuses it.
        forget = stop.listen(partial(self._end_waits, queue, session))
        try:
            overtake = queue._shape.overtake_of(self._overtake)
            return queue.take_many(self._database, count, timeout_s, session=session, overtake=overtake)
        finally:
            forget()

    def _end_waits(self, queue: TaskQueue, session: Session) -> None:
        with suppress(DatabaseClosed):  # which has ended them
            queue.end_waits(self._database, session=session)


class Refill:
    """Tasks that the acks of a worker take along, from its one queue, for the threads that they free.

    While they do, the thread that feeds takes nothing, and while it takes or waits, they take nothing: two
    takes at once would find more tasks than threads.
    """

    def __init__(
        self,
        database: Database,
        queue: TaskQueue,
        session: Callable[[], Session | None],
        free: Callable[[], int],
        hold: Callable[[Found, Session, float], list[Hold]],
        freed: Event,
        overtake: int,
    ) -> None:
        """`session`: that of the worker; None while it takes nothing. `hold` renews the leases of tasks that
        were taken in a session from a time on. `freed` is set when tasks may have come.
        """
        self.acks = queue._calls(database).acks_with(self)
        self.overtake = queue._shape.overtake_of(overtake)
        self._database = database
        self._queue = queue
        self._runtime = database.runtime
        self._session = session
        self._free = free
        self._hold = hold
        self._freed = freed
        self._lock = database.runtime.lock()
        self._asked: tuple[Session, float] | None = None
        """The session and the begin of a take that is under way."""
        self._feeds = False
        self._giving = 0
        """The number of tasks that the thread that feeds has, and has not given to threads yet."""
        self._rests_until = float("-inf")
        self._found: list[Hold] = []
        self._since = 0.0
        """The time at which the oldest of them came, as runtime.monotonic()."""

    # The side of acks: one thread at a time, which leads them.

    def begin(self, acks: int) -> tuple[Session, int] | None:
        with self._lock:
            session = self._session()  # within: a pause that comes later sees this take (`is_idle`)
            if session is None or self._feeds or self._runtime.monotonic() < self._rests_until:
                return None
            self._asked = session, self._runtime.now()
            idle = max(0, self._free() - len(self._found) - self._giving)
            return session, min(limits.VERB_BATCH, acks + idle)

    def add(self, tasks: Sequence[Task]) -> None:
        assert self._asked is not None  # it has begun
        holds = self._hold([(self._queue, task) for task in tasks], *self._asked)
        with self._lock:
            self._since = self._since if self._found else self._runtime.monotonic()
            self._found += holds

    def over(self, rests: bool) -> None:
        self._asked = None
        if rests:  # in a crowd, the line is cheaper than races
            self._rests_until = self._runtime.monotonic() + limits.STAGED_HINT_S
        self._freed.set()

    def is_idle(self) -> bool:
        """True if no acks take."""
        with self._lock:
            return self._is_idle()

    def _is_idle(self) -> bool:
        # If an interrupt has ended the acks, their take is over, although they have not said so.
        return self._asked is None or not self.acks.is_led()

    # The side of the thread that feeds.

    def found(self, count: int | None = None) -> list[Hold]:
        """The next tasks that were taken along, up to `count`. `gave` is called behind each of them."""
        with self._lock:
            count = len(self._found) if count is None else count
            found, self._found = self._found[:count], self._found[count:]
            self._giving = len(found)
        if found and observing.observers:
            self._queue._tell_taken(self._database, [hold.lease for hold in found])
        return found

    def lies_for(self, seconds: float) -> bool:
        """True if tasks have waited here for a thread for that time."""
        return bool(self._found) and self._runtime.monotonic() - self._since >= seconds

    def feed(self, take: Callable[[], list[Hold]]) -> list[Hold] | None:
        """Take, while no acks do. If they do, wait until their tasks have come, or a thread is free: None."""
        with self._lock:
            self._feeds = not self._found and self._is_idle()
        if not self._feeds:
            self._freed.wait(limits.WORKER_WAIT_S)
            self._freed.clear()
            return None
        try:
            found = take()
            self._giving = len(found)
            return found
        finally:
            self._feeds = False

    def gave(self) -> None:
        """One of the tasks was given to a thread, or back."""
        self._giving -= 1


class Start(Enum):
    BEGIN = auto()
    GIVE_BACK = auto()  # ready again at once
    PUT_OFF = auto()  # ready again after about limits.SUSPECT_DELAY_S


class Starting:
    """Decides which of the tasks that one take returned a worker begins; for the one thread that begins them.

    The last lease of a *suspect* task ended without an outcome: the task may have killed its process. Such a
    process loses the tasks of its other threads too, and all of them come back together as suspects. If one
    worker began them all again, the next death would count against each of them, until all were buried. So a
    worker runs one suspect at a time, up to the commit of its outcome, and puts the others off.
    """

    def __init__(self) -> None:
        self._suspect: Hold | None = None

    def decide(self, holds: Sequence[Hold], room: int, stopping: bool) -> list[Start]:
        """Return a decision for each of `holds`, for a worker with `room` idle threads."""
        found = []
        for number, hold in enumerate(holds):
            # If the next suspect kills this process during the commit of this one, both are lost.
            has_suspect = self._suspect is not None and not self._suspect.settled
            found.append(start_of(hold, number < room, has_suspect, stopping))
            if found[-1] is Start.BEGIN and hold.task.orphaned:
                self._suspect = hold
        return found


def start_of(hold: Hold, has_room: bool, has_suspect: bool, stopping: bool) -> Start:
    """Decide about one task, by the first case that applies.

    1. The worker is stopping, or the task was cancelled: give the task back. A cancelled one ends with that.
    2. The task is a suspect, and cannot begin now: put it off.
    3. No thread is idle (several queues gave a task each), or the lease has ended: give the task back.
    4. Otherwise begin.
    """
    may_begin = has_room and not hold.lost
    if stopping or hold.cancelled:
        return Start.GIVE_BACK
    if hold.task.orphaned and not (may_begin and not has_suspect):
        return Start.PUT_OFF
    return Start.BEGIN if may_begin else Start.GIVE_BACK
