"""What workers tell: a supervisor, in lines of JSON; and listings of all workers, in the database.

A supervisor and its processes exchange orders, reports and counts. `AtWork` is beside them: the tasks that
the handlers of the process run, in a file.

A presence is the state of a worker in the database (`fdbqueue top`), as JSON: one key per worker, which goes
with its session. The worker writes it when its state has changed, at most every limits.PRESENCE_EVERY_S
seconds. With it, the worker reads its orders (gate.py).
"""

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from itertools import accumulate, takewhile
from operator import add
from typing import Any, TypeVar

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import writable
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.database import Database, is_transaction, run, ticks_of
from fdbqueue.core.errors import InvalidArgument, UnknownSession, heals
from fdbqueue.core.logger import logger
from fdbqueue.core.registry import checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.sessions.ending import RUN_ENDS
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.core.version import __version__
from fdbqueue.fleet.gate import NONE, REASONS, Gate, Order, ask_order
from fdbqueue.fleet.options import Event, Hook, Hooks, WorkerOptions
from fdbqueue.fleet.outcomes import troubles
from fdbqueue.tasks.stored.records import unpacked

T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    id: str
    queue: str
    for_s: float
    cancelled: bool = False
    """True if the task was cancelled, and the worker knows it."""
    fraction: float | None = None
    """The progress that its handler has told."""
    usual_s: float | None = None
    """The mean run time of its class in this worker; None before the first one has ended."""
    lost: bool = False
    """True if its lease is over, and the worker knows it: its handler still has a thread."""


@dataclass(frozen=True)
class Tally:
    done: int = 0
    failed: int = 0
    """Attempts that failed; the task was released, to be tried again."""
    buried: int = 0
    lost: int = 0
    """Attempts that lost their lease before their outcome."""
    snoozed: int = 0
    """Attempts in which the handler put the task off, or handed it off, without a failure."""
    cancelled: int = 0
    """Attempts that ended with their task, because it was cancelled."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*map(add, astuple(self), astuple(other)))

    @property
    def ended(self) -> int:
        return sum(astuple(self))


@dataclass(frozen=True)
class WorkerStatus:
    state: str
    """"working", "stopping" or "ended"."""
    tally: Tally
    running: tuple[Running, ...]
    overrun: int
    """Number of threads that were given up, as a handler ran longer than `timeout_s`."""
    trouble: str = ""
    """The reason why it takes nothing: its `setup` fails."""


@dataclass(frozen=True, slots=True)
class Presence:
    """The state of one worker. Times are seconds since the epoch."""

    host: str
    process_id: int
    queues: tuple[str, ...]
    handler: str
    threads: int
    since: float
    tally: Tally
    running: tuple[Running, ...]
    """The first limits.RUNNING_SHOWN running tasks, or fewer if their texts are long."""
    seen: float
    more_queues: int = 0
    """Number of queues that `queues` has no room for."""
    trouble: str = ""
    """The reason why it takes nothing: its `setup` fails, the fleet is paused, or it is drained."""
    full_s: float = 0.0
    """At `seen`, the time since which no thread has been free; 0 if one was."""
    version: str = ""
    """The release of fdbqueue. This and what follows is empty or 0 for one that does not tell it."""
    state: str = ""
    """"working", "paused" or "draining"."""
    pause: float = 0.0
    """Time of the end of the pause that it keeps; 0 without one."""
    held: int = 0
    """Number of tasks that it has leases of."""
    memory_bytes: int = 0
    """Resident memory of its process."""
    ticks: int = 0
    """`seen` by the clock of the database, in microseconds."""


def presence_of(
    runtime: Runtime,
    queues: Sequence[str],
    handler: str,
    threads: int,
    since: float,
    status: WorkerStatus,
    answer: Order = NONE,
    held: int = 0,
    full_s: float = 0.0,
) -> Presence:
    told = fitting(queues)
    return Presence(
        host=runtime.host_name(),
        process_id=runtime.process_id(),
        queues=told,
        handler=handler,
        threads=threads,
        since=since,
        tally=status.tally,
        running=fitting(status.running[: limits.RUNNING_SHOWN]),
        seen=runtime.now(),
        more_queues=len(queues) - len(told),
        trouble=status.trouble or REASONS[answer.state],
        full_s=full_s,
        version=__version__,
        state=answer.state,
        pause=answer.pause,
        held=held,
        memory_bytes=runtime.memory_bytes(),
    )


_MEMORY_STEP = 1 << 24
"""A smaller change of the memory, in bytes, is no news."""
_to_bytes = msgspec.json.Encoder().encode
_from_bytes = msgspec.json.Decoder(Presence).decode


def workers(
    tr: DatabaseOrTransaction, queue: str | None = None, *, root: Any = DEFAULT_ROOT
) -> list[Presence]:
    """Return the workers that take from `queue`, or from any queue.

    A dead worker is listed until the ttr of its session is over. A worker with many queues is found by the
    names in `Presence.queues` only. Given a database, several transactions read limits.WORKERS_LISTED_MAX
    workers each; a transaction reads at most that number.

    Reads: the presences, by snapshot.
    Conflicts: none.
    """
    if queue is not None:
        checked_name(queue)
    listed = presences(tr, RootKeys(root))
    return [worker for worker in listed.values() if queue is None or queue in worker.queues]


def presences(tr: DatabaseOrTransaction, keys: RootKeys) -> dict[bytes, Presence]:
    """The workers by their sessions, as `workers` reads them."""
    found: list[Any] = []
    start, whole = keys.presences.start, is_transaction(tr)
    while more := run(tr, partial(_rows, start=start, stop=keys.presences.stop)):
        found += more
        if whole or len(more) < limits.WORKERS_LISTED_MAX:
            break
        start = more[-1].key + b"\x00"
    listed = [(keys.session_of(bytes(row.key)), _read(row.value)) for row in found]
    return {session: worker for session, worker in listed if worker is not None}


def _read(value: bytes) -> Presence | None:
    """Return None for a damaged value, or one of a newer release: its worker writes it again."""
    try:
        return _from_bytes(value)
    except DAMAGED:
        return None


def _rows(tr: Any, start: bytes, stop: bytes) -> list[Any]:
    found: list[Any] = writable(tr).snapshot.get_range(start, stop, limit=limits.WORKERS_LISTED_MAX).to_list()
    return found


def fitting(items: Sequence[T]) -> tuple[T, ...]:
    """Return the first items that together are at most limits.PRESENCE_PART_BYTES_MAX bytes when stored."""
    sizes = accumulate(len(_to_bytes(item)) + 1 for item in items)
    count = sum(1 for _ in takewhile(lambda size: size <= limits.PRESENCE_PART_BYTES_MAX, sizes))
    return tuple(items[:count])


class Appearance:
    """The writer of the presence of one worker."""

    def __init__(
        self,
        database: Database,
        root: RootKeys,
        session: Callable[[], Session],
        current: Callable[[], Presence],
        gate: Gate,
    ) -> None:
        self._database = database.at("upkeep")
        self._gate = gate
        self._runtime = database.runtime
        self._root = root
        self._session = session
        self._current = current
        self._shown: tuple[bytes, Any] = (b"", None)
        self._answered = NONE
        """The answer to an order that the presence has."""
        self._due_at = self._orders_due_at = float("-inf")

    def begin(self) -> None:
        """Show the worker, and learn whether the fleet is paused, before the first take."""
        self._show(self._session(), self._current(), self._runtime.monotonic(), None)

    def tick(self) -> float:
        """Write the presence and read orders, as far as that is due; return the time of the next tick.

        An answer is due at once, as is another session. Without news, orders are read every
        limits.ORDERS_EVERY_S.
        """
        now, session = self._runtime.monotonic(), self._session()
        if now >= self._due_at or self._owes_answer or session.id != self._shown[0]:
            self._due_at = now + limits.PRESENCE_EVERY_S
            self._show(session, self._current(), now, limits.CLOSE_TIMEOUT_S)
        return now if self._owes_answer else self._due_at

    @property
    def _owes_answer(self) -> bool:
        return self._gate.answer() != self._answered

    def _show(self, session: Session, current: Presence, now: float, timeout_s: float | None) -> None:
        """Write the presence, and obey. A pause conflicts with the first presence of a session: whoever gives
        it finds the presence, or the worker finds the pause.
        """
        running = tuple((one.id, one.cancelled, one.fraction, one.lost) for one in current.running)
        answered, memory = Order(current.state, current.pause), current.memory_bytes // _MEMORY_STEP
        news = (session.id, (current.tally, running, current.trouble, current.full_s > 0, answered, memory))
        if session.lost or (news == self._shown and now < self._orders_due_at):
            return

        def body(tr: Any) -> Order:
            reader = tr.snapshot if session.id == self._shown[0] else tr
            check, order = session.ask(tr), ask_order(reader, self._root, session.id)
            check()
            if news != self._shown:
                bypass_storage_quota(tr)  # also on a full disk: workers make room there
                tr.set(self._root.presence(session.id), _to_bytes(replace(current, ticks=ticks_of(tr))))
            return order()

        # A worker that was stalled may find its session over: it is shown again with its next session.
        with suppress(UnknownSession):
            order = run(self._database, body, timeout_s=timeout_s)
            self._orders_due_at = now + limits.ORDERS_EVERY_S
            self._shown, self._answered = news, answered
            self._gate.obey(order)


_log = logger("fdbqueue.fleet")


class Run:
    """A session of the supervisor; its end removes the run's row of exact counts (sessions/ending.py)."""

    def __init__(self, database: Database, root: Any) -> None:
        self._database = database
        self._keys = RootKeys(root)
        self._session = Session(database, ttr=limits.RUN_TTR_S, root=root)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._session.end_within(limits.CLOSE_TIMEOUT_S)
        except troubles() as error:
            if heals(error):
                _log.warning(
                    "the counts of this run stay in the database for %.0f s: %s", limits.RUN_TTR_S, error
                )

    @property
    def id(self) -> bytes:
        return self._session.id

    def tally(self, timeout_s: float) -> Tally | None:
        """The exact counts, in 1 round trip; None if the supervisor's session was lost, and so the row."""
        value = run(self._database, self._read, timeout_s=timeout_s)
        return None if self._session.lost else Tally(**unpacked(RUN_ENDS, value))

    def _read(self, tr: Any) -> bytes | None:
        alive, row = tr.snapshot.get(self._keys.session(self.id)), tr.snapshot.get(self._keys.run(self.id))
        self._session.lost |= not alive.present()
        value: bytes | None = row.value
        return value


KILL_AFTER_S = 10.0
"""Time beyond its grace after which a process is killed by its supervisor, or ends itself without one."""


@dataclass(frozen=True)
class Orders:
    url: str
    root: str
    """The root's prefix, in hexadecimal."""
    queues: Mapping[str, int]
    handler: str
    options: WorkerOptions = WorkerOptions()  # noqa: RUF009  # a value
    until_empty: bool = False
    recycle_tasks: int | None = None
    recycle_mb: float | None = None
    hooks: str | None = None
    argument: Any = None
    log_level: str = "info"
    run: str = ""
    """The run that counts its outcomes, in hexadecimal."""
    setup: str | None = None
    teardown: str | None = None
    redact: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """The state of a worker process. The last report is `ended`, or `refused` with a reason."""

    state: str
    """"working", "retiring", "stopping", "ended", "refused"."""
    tally: Tally = Tally()  # a value
    running: tuple[Running, ...] = ()
    rss_bytes: int = 0
    reason: str = ""
    emptied: bool = False
    """True if the process ended because its queues were empty."""
    drained: bool = False
    """True if it was told to end, and is not to be replaced."""
    retired: bool = False
    """True if the process ends to be replaced."""


def checked_argument(argument: Any) -> Any:
    """Raises InvalidArgument for a value that does not come back equal from a line of JSON."""
    try:
        carried = msgspec.json.decode(msgspec.json.encode(argument)) == argument
    except Exception:  # errors of msgspec, RecursionError, and errors of the comparison
        carried = False
    if not carried:
        raise InvalidArgument(name="argument", wanted="a value that JSON can carry", got=argument)
    return argument


def to_line(message: Orders | Report) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def orders_of(line: bytes) -> Orders:
    return msgspec.json.decode(line, type=Orders)


def report_of(line: bytes) -> Report:
    return msgspec.json.decode(line, type=Report)


SLOT_BYTES = 640
_FREE = bytes(SLOT_BYTES)


class AtWork:
    """The tasks that the handlers of a process run, in a file that outlives a killed process. A process
    reports to its supervisor twice a second, and may die between two reports. So each of its threads writes
    its task into a slot of this file before it calls the handler: one system call.
    """

    def __init__(self, descriptor: int, slots: int) -> None:
        self._descriptor = descriptor
        self._slots = slots
        self._lock = RealRuntime.lock()
        self._free = list(range(slots))
        self._used: dict[str, int] = {}

    @classmethod
    def create(cls, slots: int) -> "AtWork":
        """Make a file without a name, for a process that inherits its descriptor."""
        if hasattr(os, "memfd_create"):  # needs no disk, which may be full, or read-only
            return cls(os.memfd_create("fdbqueue-at-work"), slots)
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()), slots)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)

    def tasks(self) -> list[str]:
        """Return the running tasks, each as "task ID of QUEUE"."""
        written = os.pread(self._descriptor, self._slots * SLOT_BYTES, 0)
        slots = [written[at : at + SLOT_BYTES] for at in range(0, len(written), SLOT_BYTES)]
        return [slot.rstrip(b"\x00").decode(errors="replace") for slot in slots if slot.strip(b"\x00")]

    def told_to(self, hooks: Hooks) -> Hooks:
        """Return hooks that write the slots, and then call `hooks`."""
        return Hooks(**{field.name: self._before(getattr(hooks, field.name)) for field in fields(Hooks)})

    def _before(self, hook: Hook | None) -> Hook:
        def both(event: Event) -> object:
            with self._lock:
                if event.name == "started":
                    self._begin(event)
                elif event.task.id in self._used:
                    self._write(slot := self._used.pop(event.task.id), _FREE)
                    self._free.append(slot)
            return None if hook is None else hook(event)

        return both

    def _begin(self, event: Event) -> None:
        if self._free:  # a thread that overran may keep a slot for ever
            slot = self._used[event.task.id] = self._free.pop()
            text = f"task {event.task.id} of {event.task.queue}".encode()
            self._write(slot, text[:SLOT_BYTES].ljust(SLOT_BYTES, b"\x00"))

    def _write(self, slot: int, text: bytes) -> None:
        with suppress(OSError):  # the disk is full: the log will name fewer tasks
            os.pwrite(self._descriptor, text, slot * SLOT_BYTES)


def named(tasks: list[str], shown: int = 3) -> str:
    """Return a text with the first `shown` tasks; empty if there are none."""
    more = len(tasks) - shown
    return ", ".join(tasks[:shown]) + (f" and {more} more" if more > 0 else "")
