"""Worker: threads of this process that take tasks and hand them to a handler.

One thread feeds (feed.py), as many as are asked for work (pool.py), and one keeps the leases (heartbeat.py).
A worker installs no signal handlers and configures no logging: programs do (fleet/child.py is one).
"""

import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from itertools import takewhile
from platform import node
from typing import Any

from fdbqueue import limits
from fdbqueue.arguments import (
    checked_bytes,
    checked_count,
    checked_items,
    checked_seconds,
    checked_span,
    checked_timeout,
)
from fdbqueue.database import as_database
from fdbqueue.deferred import checked_function
from fdbqueue.errors import (
    InvalidArgument,
    NotTaken,
    QueueNotFound,
    UnknownSession,
    WorkerUsed,
)
from fdbqueue.fleet.backoff import Backoff, checked_backoff
from fdbqueue.fleet.feed import Feed
from fdbqueue.fleet.heartbeat import Heartbeat
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.hooks import Event, Hooks, checked_hooks
from fdbqueue.fleet.outage import Outage
from fdbqueue.fleet.outcomes import (
    Away,
    Failed,
    Judgement,
    Policy,
    Snoozed,
    Unavailable,
    is_away,
    is_ours,
    judge,
    otherwise,
    troubles,
)
from fdbqueue.fleet.pool import Pool
from fdbqueue.fleet.presence import Appearance, Presence, fitting
from fdbqueue.fleet.settling import HEARTBEAT, ITS_THREAD, STOP, Settled, Settling, ended
from fdbqueue.fleet.status import Running, Tally, WorkerStatus
from fdbqueue.fleet.suspect import Suspect
from fdbqueue.logger import logger
from fdbqueue.registry.registry import checked_name
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.seam import AnyDatabase
from fdbqueue.sessions.keeper import keeper_of
from fdbqueue.sessions.session import Session
from fdbqueue.task import Failure
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.trouble import SURVIVED

Queues = str | TaskQueue | Iterable[str | TaskQueue] | Mapping[str, int]

_STOPPING_LOOK_S = 0.05
_TALLIED = {
    "succeeded": "done",
    "retried": "failed",
    "snoozed": "snoozed",
    "buried": "buried",
    "lease_lost": "lost",
}

_log = logger("fdbqueue.worker")


class Worker:
    """Takes tasks from `queues` and calls `handler` with each, in `threads` threads.

    `handler(task)` runs outside any transaction, its lease kept alive meanwhile; what its ending means is in
    fleet/outcomes.py. With `transactional`, `handler(tr, task)` runs in the transaction of the ack: what it
    writes there happens exactly once.
    """

    def __init__(
        self,
        db: AnyDatabase,
        queues: Queues,
        handler: Callable[..., object],
        *,
        threads: int = 8,
        transactional: bool = False,
        max_attempts: int | None = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # a value
        timeout_s: float | None = None,
        grace_s: float = 30.0,
        session_ttr_s: float = limits.SESSION_TTR_S,
        hooks: Hooks = Hooks(),  # noqa: B008  # a value
        root: Any = DEFAULT_ROOT,
        run_id: bytes = b"",
    ) -> None:
        """`queues`: a name or a TaskQueue, several, or names with weights. `max_attempts`: a task is buried
        when so many have failed (None: never). `timeout_s`: the attempt of a handler that runs longer has
        failed; its thread is given up and another started. `grace_s`: what runs when the worker is stopped
        has so long to end. `session_ttr_s`: so long after the death of this process its tasks come back, if
        their own ttr does not end before. `run_id`: the run of a fleet that the leases count for.

        Raises InvalidArgument, QueueNotFound, UnknownKind; DeferredBody for an asynchronous handler or a
        generator, whose call would do nothing. Reads the definitions; takes nothing.
        """
        self._database = as_database(db)
        self._runtime = self._database.runtime
        self._root = root
        self._run_id = checked_bytes("run_id", run_id, limits.RUN_ID_BYTES_MAX)
        self._handler = checked_function("handler", handler, "a function of a task")
        self._transactional = transactional
        self._timeout_s = None if timeout_s is None else checked_span("timeout_s", timeout_s)
        self._grace_s = checked_seconds("grace_s", grace_s)
        self._session_ttr_s = checked_span("session_ttr_s", session_ttr_s)
        self._threads = checked_count("threads", threads, limits.THREADS_MAX)
        if max_attempts is not None:
            checked_count("max_attempts", max_attempts)
        self._queues = opened(self._database, queues, root)
        self._hooks = checked_hooks(hooks)
        self._name = f"{node()}:{self._runtime.process_id()}"
        keys = RootKeys(root)
        self._feed = Feed(self._database, self._queues)
        self._settling = Settling(self._database, keys, Policy(max_attempts, checked_backoff(backoff)))
        silence = keeper_of(self._database, keys).silence
        self._heartbeat = Heartbeat(self._database, silence, self._timeout_s, self._overran, self._chores)
        self._appearance = Appearance(self._database, keys, lambda: self._session, self._presence)
        self._lock = self._runtime.lock()
        self._stopped = self._runtime.event()
        self._freed = self._runtime.event()
        self._ended = self._runtime.event()
        self._at_once = False
        self._state = "new"
        self._tally = Tally()
        self._overrun = 0
        # Of what tasks come from, and of what handlers depend on: the one may be there without the other.
        self._no_tasks, self._no_ground = Outage(self._runtime), Outage(self._runtime)
        self._suspect = Suspect()
        self._error: Exception | None = None
        self._emptied = False

    def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`; `until_empty`, or until the queues hold nothing but buried tasks. Raises
        QueueNotFound when the last of the queues has been dropped, WorkerUsed at the second call.
        """
        self.start(until_empty=until_empty)
        self.join()
        if self._error is not None:
            raise self._error

    def start(self, *, until_empty: bool = False) -> None:
        """Begin to work, in the background. Raises WorkerUsed, UnknownCodec; RuntimeError if no thread can be
        started: then nothing has begun.
        """
        if self._state != "new":
            raise WorkerUsed
        for queue, _ in self._queues:
            queue.require_codec()
        self._state = "working"
        self._since = self._runtime.now()
        with ExitStack() as undo:
            undo.callback(self._say_ended)
            self._session = self._new_session()
            undo.callback(self._end_session)
            self._pool = Pool(self._database, self._threads, self._work, self._freed)
            undo.callback(self._pool.end)
            self._heartbeat.start()
            undo.callback(self._heartbeat.end, limits.CLOSE_TIMEOUT_S)
            self._runtime.spawn(lambda: self._run(until_empty), "fdbqueue-feeder")
            undo.pop_all()  # from now on that is the feeder's to do

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more. What runs has its grace to end, or none if `at_once`; then it is released and its
        handler told that it has lost it. Returns at once, may be called again, and from a signal handler.
        """
        self._at_once = self._at_once or at_once
        self._stopped.set()
        self._freed.set()  # who waits for an idle thread has nothing more to give it
        self._heartbeat.wake()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; whether it has come. Raises InvalidArgument for a negative timeout."""
        return self._ended.wait(None if timeout_s is None else checked_timeout(timeout_s, "timeout_s"))

    @property
    def error(self) -> Exception | None:
        """What `run` raises."""
        return self._error

    @property
    def emptied(self) -> bool:
        """Whether it ended because nothing was left."""
        return self._emptied

    def status(self) -> WorkerStatus:
        now = self._runtime.monotonic()
        running = [
            Running(hold.task.id, hold.task.queue, now - hold.began_at)
            for hold in self._heartbeat.holds()
            if hold.began_at is not None and hold.open
        ]
        state = "stopping" if self._state == "working" and self._stopped.is_set() else self._state
        return WorkerStatus(state, self._tally, tuple(running), self._overrun)

    # Feeding: one thread.

    def _run(self, until_empty: bool) -> None:
        try:
            while not self._stopped.is_set():
                free = self._pool.wait_for_free(limits.WORKER_WAIT_S)
                if free and not self._wait_while_away():
                    self._start_some(free, until_empty)
        except Exception as error:
            _log.exception("the worker ends")
            self._error = error
        finally:
            self._stopped.set()
            with ExitStack() as last:  # each of them, whatever becomes of the others
                last.callback(self._say_ended)
                last.callback(self._end_session)
                last.callback(self._pool.end)
                last.callback(self._heartbeat.end, limits.CLOSE_TIMEOUT_S)
                try:
                    self._finish()
                except SURVIVED as error:
                    self._met("what the worker holds goes back with the end of its session", error)

    def _say_ended(self) -> None:
        self._state = "ended"
        self._ended.set()

    def _start_some(self, free: int, until_empty: bool) -> None:
        asked_at = self._runtime.now()
        found = self._take(free, limits.EMPTY_QUEUE_LOOK_S if until_empty else limits.WORKER_WAIT_S)
        holds = [Hold(queue, task, self._database, self._session, asked_at) for queue, task in found]
        for hold in holds:
            self._heartbeat.add(hold)
        # Several queues may have given one each, and nothing is begun once the end has come.
        room = 0 if self._stopped.is_set() else free
        # What is put off goes first: what is begun may be the end of this process.
        there = [hold for hold in holds[:room] if not hold.lost]  # they may have been long on their way
        begun = [hold for hold in there if not hold.task.orphaned or self._suspect.claim(hold)]
        for hold in holds:
            if hold not in begun:
                late = hold.task.orphaned and room
                self._return(hold, limits.SUSPECT_DELAY_S * (0.5 + self._runtime.random()) if late else 0.0)
        for hold in begun:
            self._pool.give(hold)
        if until_empty and not found and self._pool.free() == self._pool.size:
            self._end_if_empty()

    def _end_if_empty(self) -> None:
        """Raises the error of what is passed over, if nothing else is left."""
        if self._feed.is_empty():
            self._emptied = True
            self.stop()
        else:
            self._feed.require_readable()

    def _take(self, free: int, timeout_s: float) -> list[Any]:
        try:
            if self._session.lost:
                self._heartbeat.lose_all(self._session)
                self._session = self._new_session()
            found = self._feed.take(free, self._session, timeout_s)
            self._no_tasks.over()
            return found
        except UnknownSession:
            self._heartbeat.lose_all(self._session)
        except QueueNotFound:
            raise
        except Exception as error:
            self._is_away(self._no_tasks, error)
        return []

    def _new_session(self) -> Session:
        return Session(self._database, ttr=self._session_ttr_s, run_id=self._run_id, root=self._root)

    def _is_away(self, outage: Outage, error: BaseException) -> float:
        """Something that every task depends on is not there: take no more for so long."""
        pause_s = outage.met()
        if isinstance(error, (Unavailable, *troubles())):
            _log.warning("taking nothing for %.1f s: %s: %s", pause_s, type(error).__name__, error)
        else:
            self._met("nothing can be taken, and it will be tried again", error)
        return pause_s

    def _met(self, title: str, error: BaseException) -> None:
        self._database.troubles.met(_log, title, error)

    def _wait_while_away(self) -> bool:
        """Whether the worker was stopped meanwhile."""
        left_s = max(self._no_tasks.left_s(), self._no_ground.left_s())
        return left_s > 0 and self._stopped.wait(left_s)

    # Working: each thread of the pool.

    def _work(self, hold: Hold) -> bool:
        """Whether the thread goes on: not if it has been given up, and another hired."""
        try:
            if self._settling.bury_if_exhausted(hold):
                self._tell(hold, Settled("buried"))
            else:
                self._attempt(hold)
        except BaseException as error:  # whatever a handler raises
            if hold.claim(ITS_THREAD):
                self._tell(hold, self._settle(hold, error), error)
            if not isinstance(error, SURVIVED) and hold.claimant is not HEARTBEAT:
                raise  # the pool replaces the thread
        finally:
            hold.claim(ITS_THREAD)  # nothing more is to be said of it, whoever looks
            self._heartbeat.remove(hold)
        return hold.claimant is not HEARTBEAT

    def _attempt(self, hold: Hold) -> None:
        self._heartbeat.began(hold)
        self._hooks.tell(Event("started", hold.task), self._database.troubles)
        settled = self._settling.attempt(hold, self._handler, self._transactional)
        if hold.claim(ITS_THREAD):
            self._no_ground.over()
            self._tell(hold, settled)

    def _settle(self, hold: Hold, error: BaseException) -> Settled:
        """Do what `error` means for the task."""
        judgement = judge(error, self._name)
        try:
            if isinstance(judgement, Failed):
                self._no_ground.over()
                return self._settling.fail(hold, judgement)
            if isinstance(judgement, Snoozed):
                self._no_ground.over()
                return self._settling.snooze(hold, judgement.delay_s)
            if isinstance(judgement, Away):
                pause_s = self._is_away(self._no_ground, error)
                self._settling.give_back(hold, pause_s)
                return Settled("retried", pause_s)
            self._heartbeat.lose(hold)
        except NotTaken:
            own = ended(hold)
            if own is not None:
                return own
            self._heartbeat.lose(hold)
        except SURVIVED as failure:
            return self._settle_otherwise(hold, judgement, failure)
        return Settled("lease_lost")

    def _settle_otherwise(self, hold: Hold, judgement: Judgement, failure: BaseException) -> Settled:
        """Nothing has been written, and a lease without a ttr would last as long as this worker."""
        self._met(f"task {hold.task.id} could not be settled", failure)
        try:
            if not is_away(failure):
                return self._settling.fail(hold, otherwise(judgement, failure, self._name))
        except NotTaken:
            self._heartbeat.lose(hold)
            return Settled("lease_lost")
        except SURVIVED as again:
            self._met(f"task {hold.task.id} could not be settled", again)
        # Else the lease ends on its own, and that is written down.
        if hold.lease.until is None or not isinstance(judgement, Failed):
            self._owe_if_away(hold, failure)
        return Settled("lease_lost")

    def _owe_if_away(self, hold: Hold, error: BaseException) -> None:
        if is_away(error):
            self._heartbeat.owe(hold)

    def _tell(self, hold: Hold, settled: Settled, error: BaseException | None = None) -> None:
        counted = {_TALLIED[settled.name]: 1}
        with self._lock:
            self._tally = self._tally + Tally(**counted)
        seconds = 0.0 if hold.began_at is None else self._runtime.monotonic() - hold.began_at
        event = Event(settled.name, hold.task, seconds, error, settled.delay_s)
        self._hooks.tell(event, self._database.troubles)

    # Beside it: the heartbeat's thread.

    def _overran(self, hold: Hold) -> None:
        """Raises RuntimeError if no thread can be started."""
        self._pool.replace(lambda: self._give_up(hold))
        self._overrun += 1

    def _give_up(self, hold: Hold) -> None:
        """In the thread that replaces the one whose handler is still running."""
        hold.take_away()
        message = f"its handler ran longer than {self._timeout_s} s"
        failed = Failed(Failure("Timeout", message, _stack_of(hold.thread_id), self._name))
        try:
            self._tell(hold, self._settling.fail(hold, failed), TimeoutError(message))
        except NotTaken:
            self._tell(hold, Settled("lease_lost"))
        except SURVIVED as error:
            self._tell(hold, self._settle_otherwise(hold, failed, error), TimeoutError(message))
        finally:
            self._heartbeat.remove(hold)

    def _chores(self) -> float:
        now = self._runtime.monotonic()
        if self._session.lost:
            self._heartbeat.lose_all(self._session)
        if self._stopped.is_set() or self._session.lost:
            self._feed.end_waits(self._session)
            return now + _STOPPING_LOOK_S
        return self._appearance.tick()

    def _presence(self) -> Presence:
        status = self.status()
        names = [queue.name for queue, _ in self._queues]
        told = fitting(names)
        return Presence(
            host=node(),
            process_id=self._runtime.process_id(),
            queues=told,
            handler=getattr(self._handler, "__qualname__", type(self._handler).__name__),
            threads=self._threads,
            since=self._since,
            tally=status.tally,
            running=fitting(status.running[: limits.RUNNING_SHOWN]),
            seen=self._runtime.now(),
            more_queues=len(names) - len(told),
        )

    # The end.

    def _finish(self) -> None:
        until = self._runtime.monotonic() + self._grace_s
        while not self._at_once and self._runtime.monotonic() < until:
            if self._pool.wait_for_all(_STOPPING_LOOK_S):
                break
        for hold in self._heartbeat.holds():
            if hold.claim(STOP):
                hold.take_away()
                why = (
                    "the worker was stopped at once" if self._at_once else f"not done in {self._grace_s:g} s"
                )
                _log.warning("task %s of %s: given back, %s", hold.task.id, hold.task.queue, why)
                self._return(hold)

    def _end_session(self) -> None:
        try:
            self._session.end_within(limits.CLOSE_TIMEOUT_S)
        except Exception as error:
            self._met("the session ends only after its grace", error)

    def _return(self, hold: Hold, delay_s: float = 0.0) -> None:
        """Give back what is not to be worked on; at the latest, it comes back with the session's end."""
        hold.claim(STOP)
        try:
            self._settling.give_back(hold, delay_s, limits.CLOSE_TIMEOUT_S)
        except NotTaken:
            self._heartbeat.lose(hold)  # it went back by itself
        except Exception as error:
            self._met(f"task {hold.task.id} could not be given back", error)
            self._owe_if_away(hold, error)
        self._heartbeat.remove(hold)


def opened(db: AnyDatabase, queues: Queues, root: Any) -> list[tuple[TaskQueue, int]]:
    """The queues with their weights. Raises InvalidArgument, QueueNotFound, UnknownKind."""
    return [
        (queue if isinstance(queue, TaskQueue) else TaskQueue.open(db, queue, root=root), weight)
        for queue, weight in weights_of(queues).items()
    ]


def weights_of(queues: Any) -> dict[Any, int]:
    """Raises InvalidArgument."""
    if isinstance(queues, str | TaskQueue):
        queues = [queues]
    names = checked_items("queues", queues)
    for queue in names:
        if not isinstance(queue, TaskQueue):
            checked_name(queue)
    weights = {queue: queues[queue] if isinstance(queues, Mapping) else 1 for queue in names}
    if not weights:
        raise InvalidArgument(name="queues", wanted="one queue or more", got=queues)
    for weight in weights.values():
        checked_count("weight", weight, limits.WEIGHT_MAX)
    return weights


def names_of(weights: Mapping[Any, int]) -> dict[str, int]:
    """The same for other processes, which open their queues by name."""
    return {
        queue.name if isinstance(queue, TaskQueue) else queue: weight for queue, weight in weights.items()
    }


def _stack_of(thread_id: int) -> str:
    """Where the handler is hanging: the frames above ours; empty if that cannot be formatted."""
    frame = sys._current_frames().get(thread_id)
    with suppress(Exception):  # of a stack that moves meanwhile; the failure is to be written down
        frames = list(traceback.walk_stack(frame)) if frame is not None else []
        above = list(takewhile(lambda entry: not is_ours(entry[0]), frames))
        return "".join(traceback.StackSummary.extract(iter(above[::-1])).format())
    return ""
