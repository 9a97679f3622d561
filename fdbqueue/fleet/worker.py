"""Worker: threads of this process that take tasks and call a handler with each.

One thread takes tasks (feed.py), those of a pool of `threads` threads run handlers, and one renews the leases
(settling.py). A worker installs no signal handlers and configures no logging: programs do (fleet/child.py).

A coroutine function runs as a handler on an event loop, which a worker without one does not need.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Self, Unpack

from fdbqueue.core import limits
from fdbqueue.core import logger as loggers
from fdbqueue.core.arguments import checked_bytes, checked_function, checked_timeout, require_finished
from fdbqueue.core.database import Database, Handle, as_database, require_open
from fdbqueue.core.errors import (
    DeferredBody,
    LayoutNewer,
    NotTaken,
    QueueNotFound,
    UnknownSession,
    WorkerUsed,
    heals,
)
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure
from fdbqueue.core.visible import SURVIVED
from fdbqueue.fleet.around import Around, Once, checked_once
from fdbqueue.fleet.feed import Feed, Found, Outage, Refill, Start, Starting
from fdbqueue.fleet.functions import Tasks, tasks_in
from fdbqueue.fleet.gate import Gate
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.options import Hooks, Queues, WorkerKeywords, WorkerOptions, checked_hooks, opened
from fdbqueue.fleet.outcomes import (
    Away,
    Cancelled,
    Failed,
    HandedOff,
    Judgement,
    Lost,
    Snoozed,
    Unavailable,
    is_away,
    judge,
    otherwise,
    stack_of,
    troubles,
)
from fdbqueue.fleet.pool import ThreadPool
from fdbqueue.fleet.settling import (
    HEARTBEAT,
    ITS_THREAD,
    STOP,
    USED_UP,
    Heartbeat,
    Settled,
    Settling,
    Telling,
    ended,
)
from fdbqueue.fleet.status import Appearance, Presence, Running, WorkerStatus, presence_of
from fdbqueue.fleet.usual import Usual
from fdbqueue.tasks.queue import TaskQueue

_log = loggers.logger("fdbqueue.worker")

_LOOP_WORKER = "fdbqueue.aio.worker"
_BATCHES = "fdbqueue.fleet.batches"
_TIMING = "fdbqueue.fleet.timing"


def is_asynchronous(handler: Any) -> bool:
    """True for a coroutine function: also a partial of one, and an object with an asynchronous `__call__`."""
    while isinstance(handler, partial):
        handler = handler.func
    if isinstance(handler, Tasks):
        return handler.awaits
    call = inspect.getattr_static(type(handler), "__call__", None)
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def loop_worker_class(handler: Any) -> Any:
    """The class of workers with an event loop. Raises DeferredBody without the extra `aio`. It stands above
    this room and needs greenlet, so it is imported by its name.
    """
    try:
        return importlib.import_module(_LOOP_WORKER).LoopWorker
    except ModuleNotFoundError as error:
        if error.name != "greenlet":
            raise
        message = (
            "handler is a coroutine function, which a worker runs only with the extra aio: "
            "pip install 'fdbqueue[aio]'. A plain function may run a coroutine with asyncio.run()."
        )
        raise DeferredBody(message, name="handler", kind="a coroutine function", got=handler) from None


class ChosenByHandler(Handle):
    """Base of the worker: the handler decides whether it has an event loop. A base, as the signature of a
    class is that of its own `__init__`, unless it has a `__new__`, too.
    """

    __slots__ = (
        "_appearance",
        "_around",
        "_asked_to_stop",
        "_at_once",
        "_database",
        "_emptied",
        "_ended",
        "_error",
        "_feed",
        "_freed",
        "_functions",
        "_gate",
        "_handler",
        "_heartbeat",
        "_name",
        "_no_ground",
        "_no_tasks",
        "_options",
        "_overrun",
        "_pool",
        "_queues",
        "_ready",
        "_refill",
        "_root",
        "_run_id",
        "_runtime",
        "_session",
        "_settling",
        "_since",
        "_starting",
        "_state",
        "_stopped",
        "_telling",
        "_timing",
        "_usual",
    )
    """All state of a worker."""

    _chooses: bool = True
    _database: Database
    _queues: Sequence[tuple[TaskQueue, int]]
    _state: str

    def __new__(cls, *args: Any, **options: Any) -> Self:
        handler = options.get("handler", args[2] if len(args) > 2 else None)
        chosen: Any = _with_loop(cls, handler) if cls._chooses and is_asynchronous(handler) else cls
        if options.get("batch") is not None:  # imported by its name: it stands above this file
            batches = importlib.import_module(_BATCHES).BatchWorker
            chosen = type(cls.__name__, (batches,) if chosen is Worker else (batches, chosen), {})
        made: Self = object.__new__(chosen)
        return made

    def _shown(self) -> dict[str, Any]:
        queues = [queue.name for queue, _ in self._queues]
        return {"queues": queues, "state": self._state, **self._database._shown()}


def _with_loop(cls: type, handler: Any) -> type:
    """The class of workers with an event loop; for a subclass of the worker, a class of both."""
    with_loop: type = loop_worker_class(handler)
    return with_loop if issubclass(with_loop, cls) else type(cls.__name__, (cls, with_loop), {})


def _timing_of(database: Database, keys: RootKeys, queues: Sequence[TaskQueue]) -> Any:
    """The Timing of the queues with a chronicle; None without any: its file is imported by its name."""
    kept = [queue for queue in queues if queue.options.get("chronicle")]
    return importlib.import_module(_TIMING).Timing(database, keys, kept) if kept else None


_STOPPING_LOOK_S = 0.05


class Worker(ChosenByHandler):
    """Takes tasks from `queues`, and calls `handler` with each, in several threads.

    `handler(task)` runs outside any transaction; meanwhile the worker renews its lease. docs/workers.md says
    what each outcome means for the task. With `transactional`, `handler(tr, task)` runs in the transaction of
    the ack, so its writes there happen exactly once. A `Tasks` is a handler, too (docs/functions.md).
    """

    __slots__ = ()

    _hold_class = Hold

    def __init__(
        self,
        db: AnyDatabase,
        queues: Queues,
        handler: Callable[..., object],
        *,
        hooks: Hooks = Hooks(),  # noqa: B008  # a value
        root: Any = DEFAULT_ROOT,
        run_id: bytes = b"",
        setup: Once | None = None,
        teardown: Once | None = None,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Open the queues; take nothing yet. WorkerOptions documents the `options`.

        `queues`: a name or a TaskQueue, several of them, or a mapping of names to weights. `run_id`: the run
        of a fleet that counts the outcomes. `setup()` runs once before the first take, and again after a
        pause if it fails; `teardown()` once after the last task. docs/workers.md says more.

        Reads: the definitions of the queues.
        If `handler` is a coroutine function, it runs on an event loop of the worker, in one thread, and its
        task is a `fdbqueue.aio.HeldTask`. That needs the extra `aio`.

        Raises: InvalidArgument, QueueNotFound, UnknownKind; DeferredBody for a generator function, and for a
        coroutine function without the extra.
        """
        self._database = database = as_database(db)
        self._runtime = self._database.runtime
        self._root, keys = root, RootKeys(root)
        self._run_id = checked_bytes("run_id", run_id, limits.RUN_ID_BYTES_MAX)
        self._handler = checked_function("handler", handler, "a function of a task")
        self._options = chosen = WorkerOptions.checked(**options)
        self._functions = tasks_in(handler, chosen.batch)
        self._queues = opened(self._database, queues, root)
        self._usual = Usual(self._functions)
        self._timing = _timing_of(database, keys, [queue for queue, _ in self._queues])
        self._telling = Telling(self._database, checked_hooks(hooks), self._usual, self._timing)
        on_loop = not self._chooses
        begin, end = checked_once("setup", setup, on_loop), checked_once("teardown", teardown, on_loop)
        self._around = Around(self._database, begin, end, self._call_once)
        self._name = f"{self._runtime.host_name()}:{self._runtime.process_id()}"
        self._feed = Feed(self._database, self._queues, chosen.overtake)
        self._settling = Settling(database, keys, chosen.asked)
        silence = keeper_of(database, keys).silence
        beyond = self._overran, self._chores, self._end_with
        self._heartbeat = Heartbeat(database, silence, chosen.timeout_s, *beyond)
        self._gate = Gate()
        shown = (lambda: self._session), self._presence, self._gate
        self._appearance = Appearance(self._database, keys, *shown)
        self._stopped, self._freed, self._ended = (self._runtime.event() for _ in range(3))
        self._at_once = self._asked_to_stop = False
        self._state = "new"
        self._overrun = 0
        # Two, as handlers may depend on another database than that of the queues.
        self._no_tasks, self._no_ground = Outage(self._runtime), Outage(self._runtime)
        self._starting = Starting()
        self._refill: Refill | None = None
        self._error: Exception | None = None
        self._emptied = False

    def run(self, *, until_empty: bool = False) -> None:
        """Work until `stop()`. With `until_empty`, also end as soon as the queues hold buried tasks only.

        Raises: QueueNotFound or LayoutNewer when the last queue was dropped or upgraded; DatabaseClosed; an
        error that does not heal, such as StorageReplaced; WorkerUsed at the second call.
        """
        self.start(until_empty=until_empty)
        self.join()
        if self._error is not None:
            raise self._error

    def start(self, *, until_empty: bool = False) -> None:
        """Begin to work, in the background.

        Raises: WorkerUsed, UnknownCodec; RuntimeError, before any work, if no thread can be started.
        """
        self._require_startable()
        self._state = "working"
        self._since = self._runtime.now()
        with ExitStack() as undo:
            undo.callback(self._say_ended)
            self._session = self._new_session()
            undo.callback(self._end_session)
            self._pool = ThreadPool(self._database, self._places(), self._work, self._freed)
            undo.callback(self._pool.end)
            if len(self._queues) == 1 and not (self._options.transactional or self._options.batch):
                [(queue, _)] = self._queues
                asked = self._session_that_takes, self._pool.free, self._held, self._freed
                self._refill = Refill(self._database, queue, *asked, self._options.overtake)
                self._settling.acks, self._gate.is_idle = self._refill.acks, self._refill.is_idle
            self._appearance.begin()
            self._heartbeat.start()
            undo.callback(self._heartbeat.end, limits.CLOSE_TIMEOUT_S)
            if self._timing is not None:
                self._timing.start()
                undo.callback(self._timing.end)
            self._runtime.spawn(lambda: self._run(until_empty), "fdbqueue-feeder")
            undo.pop_all()  # from now on the feeder does it

    def _require_startable(self) -> None:
        if self._state != "new":
            raise WorkerUsed
        for queue, _ in self._queues:
            queue.require_codec()

    def stop(self, *, at_once: bool = False) -> None:
        """Take no more tasks, and return at once. A signal handler may call it, and it may be called again.

        Running handlers have `grace_s` to end, or no time if `at_once`. Then their tasks are released, and
        `HeldTask.lost` becomes true for them.
        """
        if at_once:
            self._at_once = True
        self._asked_to_stop = True
        self._take_no_more()

    def _take_no_more(self) -> None:
        self._stopped.set()
        self._freed.set()  # wakes the feeder, if it waits for an idle thread
        self._heartbeat.wake()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end; return True if it has come. Raises InvalidArgument for a negative timeout."""
        return self._ended.wait(None if timeout_s is None else checked_timeout(timeout_s, "timeout_s"))

    @property
    def error(self) -> Exception | None:
        """The error that ended the worker: `run` raises it."""
        return self._error

    @property
    def emptied(self) -> bool:
        """True if the worker ended because its queues were empty."""
        return self._emptied

    @property
    def drained(self) -> bool:
        """True if `fdbqueue fleet drain` has told it to end: its process should end, too."""
        return self._gate.is_drained

    def status(self) -> WorkerStatus:
        now = self._runtime.monotonic()
        running = [
            Running(
                hold.task.id,
                hold.task.queue,
                now - hold.began_at,
                hold.cancelled,
                hold.fraction,
                self._usual.seconds(hold.task.queue, hold.task),
                hold.lost,
            )
            for hold in self._heartbeat.look()
            if hold.began_at is not None and hold.open
        ]
        state = "stopping" if self._state == "working" and self._stopped.is_set() else self._state
        return WorkerStatus(state, self._telling.tally, tuple(running), self._overrun, self._around.trouble)

    # Feeding: one thread.

    def _call_once(self, name: str, function: Once) -> object:
        return require_finished(name, function())

    def _run(self, until_empty: bool) -> None:
        try:
            self._around.begin(self._stopped, self._require_open)
            while not self._stopped.is_set():
                self._require_open()
                lies = self._refill is not None and self._refill.lies_for(0)
                free = self._pool.wait_for_free(limits.REFILL_LIES_S if lies else limits.WORKER_WAIT_S)
                away_s = max(self._no_tasks.left_s(), self._no_ground.left_s())
                if away_s > 0 or (free and not self._gate.enter()):
                    self._return_refill()  # and again in a moment: acks may have begun to take
                    self._stopped.wait(min(away_s or limits.REFILL_LIES_S, limits.REFILL_LIES_S))
                    if away_s <= 0:
                        self._take(0, 0.0)  # without a session, no worker hears of the end of a pause
                elif free:
                    self._start_some(free, until_empty)
                    self._gate.leave()
                elif self._refill is not None and self._refill.lies_for(limits.REFILL_LIES_S):
                    self._return_refill()  # the threads that were freed are in slow hooks
        except Exception as error:
            self._end_with(error)
        finally:
            self._gate.leave()
            self._stopped.set()
            with ExitStack() as last:  # all of them, also if one raises
                last.callback(self._say_ended)
                last.callback(self._around.end)
                last.callback(self._end_session)
                last.callback(self._pool.end)
                last.callback(self._heartbeat.end, limits.CLOSE_TIMEOUT_S)
                if self._timing is not None:
                    last.callback(self._timing.end)
                try:
                    self._finish()
                except SURVIVED as error:
                    self._met("the tasks of this worker go back when its session ends", error)

    def _end_with(self, error: Exception) -> None:
        """Stop, as the error would come again and again; `run` raises it. The heartbeat may call it, too."""
        self._met("the worker ends", error)
        self._error = self._error or error
        self.stop()

    def _say_ended(self) -> None:
        self._state = "ended"
        self._ended.set()

    def _start_some(self, free: int, until_empty: bool) -> None:
        holds = self._holds(free, limits.EMPTY_QUEUE_LOOK_S if until_empty else limits.WORKER_WAIT_S)
        self._give(holds or [], free)
        if until_empty and holds == [] and self._pool.free() == self._pool.size:
            if self._feed.is_empty():
                self._emptied = True
                self.stop()
            else:  # nothing but an unreadable task may be left
                self._feed.require_readable()

    def _give(self, holds: list[Hold], free: int) -> None:
        starts = self._starting.decide(holds, free, self._stopped.is_set())
        decided = list(zip(holds, starts, strict=True))
        for hold, start in decided:  # first: a task that is begun may end this process
            if start is not Start.BEGIN:
                self._return(hold, self._suspect_delay_s() if start is Start.PUT_OFF else 0.0)
                self._gave()
        for hold, start in decided:
            if start is Start.BEGIN:
                self._pool.give(hold)
                self._gave()

    def _gave(self) -> None:
        if self._refill is not None:
            self._refill.gave()

    def _holds(self, free: int, timeout_s: float) -> list[Hold] | None:
        """Take tasks, and renew their leases from now on. None if acks take them."""
        if self._refill is None:
            return self._taken(free, timeout_s)
        return self._refill.found(free) or self._refill.feed(lambda: self._taken(free, timeout_s))

    def _taken(self, free: int, timeout_s: float) -> list[Hold]:
        asked_at = self._runtime.now()
        found = self._take(free, timeout_s)
        return self._held(found, self._session, asked_at)

    def _held(self, found: Found, session: Session, asked_at: float) -> list[Hold]:
        db, functions, within = self._database, self._functions, self._options.transactional
        made = self._hold_class
        if functions is None:
            holds = [made(queue, task, db, session, asked_at, within) for queue, task in found]
        else:
            each = [(queue, task, within or functions.runs_within(task)) for queue, task in found]
            holds = [made(queue, task, db, session, asked_at, one) for queue, task, one in each]
        for hold in holds:
            self._heartbeat.add(hold)
        return holds

    def _session_that_takes(self) -> Session | None:
        """The session for a take beside acks; None to take nothing."""
        is_away = self._no_tasks.left_s() > 0 or self._no_ground.left_s() > 0
        may_take = not is_away and self._gate.is_open and not self._stopped.is_set()
        return self._session if may_take and not self._session.lost else None

    def _suspect_delay_s(self) -> float:
        return limits.SUSPECT_DELAY_S * (0.5 + self._runtime.random())

    def _take(self, free: int, timeout_s: float) -> Found:
        """Replace a lost session, and take at most `free` tasks."""
        try:
            if self._session.lost:
                self._heartbeat.lose_all(self._session)
                self._session = self._new_session()
            found = self._feed.take(free, self._session, timeout_s) if free else []
            self._no_tasks.over()
            return found
        except UnknownSession:
            self._heartbeat.lose_all(self._session)
        except Exception as error:
            self._require_open()
            if isinstance(error, QueueNotFound | LayoutNewer) or not heals(error):
                raise
            self._is_away(self._no_tasks, error)
        return []

    def _require_open(self) -> None:
        require_open(self._database)

    def _new_session(self) -> Session:
        return Session(self._database, ttr=self._options.session_ttr_s, run_id=self._run_id, root=self._root)

    def _is_away(self, outage: Outage, error: BaseException) -> float:
        """Start a pause, as something that every task needs is unavailable; return its length."""
        pause_s = outage.met()
        if isinstance(error, (Unavailable, *troubles())):
            _log.warning("taking nothing for %.1f s: %s: %s", pause_s, type(error).__name__, error)
        else:
            self._met("no task can be taken; the worker tries again", error)
        return pause_s

    def _met(self, title: str, error: BaseException) -> None:
        self._database.troubles.met(_log, title, error)

    # Working: each thread of the pool.

    def _work(self, hold: Hold) -> bool:
        """Run an attempt. Return False if the thread overran, and another one has replaced it."""
        named = loggers.enter(hold.task.queue, hold.task)
        try:
            if self._settling.bury_if_exhausted(hold):
                self._telling.ended(hold, USED_UP)
            else:
                self._attempt(hold)
        except BaseException as error:  # a handler may raise any
            if hold.claim(ITS_THREAD):
                self._telling.ended(hold, self._settle(hold, error), error)
            if not isinstance(error, SURVIVED) and hold.claimant is not HEARTBEAT:
                raise  # the pool replaces the thread
        finally:
            if hold.claim(ITS_THREAD):  # otherwise its claimant removes it, after the commit of the outcome
                self._heartbeat.remove(hold)
            self._telling.left(hold)
            loggers.leave(named)
        return hold.claimant is not HEARTBEAT

    def _attempt(self, hold: Hold) -> None:
        self._heartbeat.began(hold)
        self._telling.began(hold)
        settled = self._settling.attempt(hold, self._handler, hold.transactional)
        if hold.claim(ITS_THREAD):
            self._no_ground.over()
            self._telling.ended(hold, settled)

    def _settle(self, hold: Hold, error: BaseException) -> Settled:
        return self._settle_as(hold, judge(error, self._name, hold.cancelled), error)

    def _settle_as(self, hold: Hold, judgement: Judgement, error: BaseException) -> Settled:
        if not isinstance(judgement, Away | Lost):
            self._no_ground.over()
        try:
            if isinstance(judgement, Failed):
                return self._settling.fail(hold, judgement)
            if isinstance(judgement, Snoozed):
                return self._settling.snooze(hold, judgement.delay_s)
            if isinstance(judgement, HandedOff):
                return self._settling.hand_off(hold, judgement.ttl_s, judgement.for_)
            if isinstance(judgement, Cancelled):
                return self._settling.cancel(hold)
            if isinstance(judgement, Away):
                return self._settling.put_off(hold, self._is_away(self._no_ground, error))
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
        """Commit another outcome, as `judgement`'s failed: a lease without a ttr would last as the worker."""
        self._met(f"task {hold.task.id} could not be settled", failure)
        try:
            if not is_away(failure):
                return self._settling.fail(hold, otherwise(judgement, failure, self._name))
        except NotTaken:
            self._heartbeat.lose(hold)
            return Settled("lease_lost")
        except SURVIVED as again:
            self._met(f"task {hold.task.id} could not be settled", again)
        # In all other cases the lease ends by itself, and the end is counted.
        if is_away(failure) and (hold.lease.until is None or not isinstance(judgement, Failed)):
            self._heartbeat.owe(hold)
        return Settled("lease_lost")

    # Beside it: the heartbeat's thread.

    def _overran(self, hold: Hold) -> None:
        self._pool.replace(lambda: self._give_up(hold))
        self._overrun += 1

    def _give_up(self, hold: Hold) -> None:
        """Fail the attempt. Runs in the thread that replaces the one with the hanging handler."""
        hold.take_away()
        message = f"its handler ran longer than {self._options.timeout_s} s"
        failed = Failed(Failure("Timeout", message, stack_of(hold.thread_id), self._name))
        overran = TimeoutError(message)
        with loggers.about(hold.task.queue, hold.task):
            try:
                self._telling.ended(hold, self._settling.fail(hold, failed), overran)
            except NotTaken:
                # A transactional handler that has called a verb in a transaction has mostly not committed it.
                own = None if hold.transactional and hold.ended_within else ended(hold)
                self._telling.ended(hold, own or Settled("lease_lost"))
            except SURVIVED as error:
                self._telling.ended(hold, self._settle_otherwise(hold, failed, error), overran)
            finally:
                self._heartbeat.remove(hold)

    def _chores(self) -> float:
        now, session = self._runtime.monotonic(), self._session  # the feed may replace it at any moment
        if session.lost:
            self._heartbeat.lose_all(session)
        if self._ends_takes(session):
            self._feed.end_waits()
        again = float("inf") if self._asked_to_stop or session.lost else self._appearance.tick()
        if self.drained and not self._stopped.is_set():
            self._take_no_more()
        return min(again, now + _STOPPING_LOOK_S) if self._ends_takes(session) else again

    def _ends_takes(self, session: Session) -> bool:
        return self._stopped.is_set() or session.lost or not self._gate.is_settled()

    def _places(self) -> int:
        return self._options.threads

    def _presence(self) -> Presence:
        names = [queue.name for queue, _ in self._queues]
        handler = getattr(self._handler, "__qualname__", type(self._handler).__name__)
        status, is_full = self.status(), not self._pool.free()
        full_s = min((one.for_s for one in status.running), default=0.0) if is_full else 0.0
        seen = self._since, status, self._gate.answer(), len(self._heartbeat.look()), full_s
        return presence_of(self._runtime, names, handler, self._places(), *seen)

    # The end.

    def _finish(self) -> None:
        while self.drained and not self._asked_to_stop:  # a drain leaves running handlers their time
            self._return_refill()
            if self._pool.wait_for_all(_STOPPING_LOOK_S):
                break
        grace_s = self._options.grace_s
        until = self._runtime.monotonic() + grace_s
        while not self._at_once and self._runtime.monotonic() < until:
            self._return_refill()
            if self._pool.wait_for_all(_STOPPING_LOOK_S):
                break
        self._return_refill()  # a take that was under way
        why = "the worker was stopped at once" if self._at_once else f"not done in {grace_s:g} s"
        for hold in self._heartbeat.holds():
            if hold.claim(STOP):
                hold.take_away()
                with loggers.about(hold.task.queue, hold.task):
                    _log.warning("task %s of %s: given back, %s", hold.task.id, hold.task.queue, why)
                self._telling.given_back(hold)
                self._return(hold)

    def _return_refill(self) -> None:
        for hold in [] if self._refill is None else self._refill.found():
            self._return(hold)
            self._gave()

    def _end_session(self) -> None:
        try:
            self._session.end_within(limits.CLOSE_TIMEOUT_S)
        except Exception as error:
            self._met("the session will end by its ttr", error)

    def _return(self, hold: Hold, delay_s: float = 0.0) -> None:
        """Release a task without an outcome. If that fails, the end of the session releases it."""
        hold.claim(STOP)
        try:
            self._settling.give_back(hold, delay_s, limits.CLOSE_TIMEOUT_S)
        except NotTaken:
            self._heartbeat.lose(hold)  # its lease had ended
        except Exception as error:
            with loggers.about(hold.task.queue, hold.task):
                self._met(f"task {hold.task.id} could not be given back", error)
            if is_away(error):
                self._heartbeat.owe(hold)
        self._heartbeat.remove(hold)
