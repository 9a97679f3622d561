"""A task in a worker's hands: what its handler sees of it, and what the worker knows of its lease."""

from dataclasses import dataclass, field, fields

from fdbqueue.database import Database
from fdbqueue.errors import InvalidArgument, LeaseLost
from fdbqueue.sessions.session import Session
from fdbqueue.task import Task
from fdbqueue.tasks.queue import TaskQueue

BEATS_PER_LEASE = 3


class Hold:
    """A lease of this worker. Whoever `claims` it says what becomes of the task, and nobody else does."""

    def __init__(
        self, queue: TaskQueue, task: Task, database: Database, session: Session, asked_at: float
    ) -> None:
        """`asked_at`: when the call began that took it, wall clock."""
        self.queue = queue
        self.session = session
        self.began_at: float | None = None
        """When its handler was called, as runtime.monotonic()."""
        self.thread_id = 0
        self.judged = False
        """Whether it has been decided who was to blame for the end of its lease."""
        self.database = database
        self._runtime = database.runtime
        self._held_until(task.until, asked_at)
        self._lock = database.runtime.lock()
        self._claimant: object = None
        self._taken_away = False
        self.ended_by: str | None = None
        """The verb by which the handler has ended the lease itself."""
        self.lease = task
        """The task as taken, for the verbs of the worker, which are not the handler's."""
        self.task = HeldTask.of(task, queue.name, self)

    def claim(self, claimant: object) -> bool:
        """Whether it is this claimant's to say what becomes of the task."""
        with self._lock:
            if self._claimant is None:
                self._claimant = claimant
            return self._claimant is claimant

    @property
    def claimant(self) -> object:
        """Whose it is to say, None as long as nobody has claimed it."""
        return self._claimant

    @property
    def open(self) -> bool:
        """Whether nobody has said yet what becomes of the task."""
        return self._claimant is None

    @property
    def lost(self) -> bool:
        return self._taken_away or (self._ends is not None and self._ends <= self._runtime.now())

    def take_away(self) -> None:
        self._taken_away = True

    def renewed(self, until: float | None, asked_at: float) -> None:
        """The lease was renewed, by a call begun at `asked_at`, wall clock."""
        self._held_until(until, asked_at)

    def _held_until(self, until: float | None, asked_at: float) -> None:
        self.renewed_at = asked_at
        """When the call began that took or last renewed it, wall clock."""
        self._ends = until  # by the wall clock, as the queue judges it
        # One that does not end on its own is looked after as often as its session.
        ttr_s = self.session.ttr
        lasts_s = ttr_s if until is None else max(0.0, until - self._runtime.now())
        self.lease_s = min(lasts_s, ttr_s)
        """How long it lasts without a word from us; nothing, if it was over when we were told of it."""
        self.beat_at = self._runtime.monotonic() + lasts_s / BEATS_PER_LEASE
        """When it is to be renewed, as runtime.monotonic()."""


@dataclass(frozen=True, slots=True)
class HeldTask(Task):
    """A task as a worker hands it to its handler; usable wherever a Task is."""

    queue: str = ""
    """The name of its queue."""
    hold: Hold | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, task: Task, queue: str, hold: Hold) -> "HeldTask":
        known = {name: getattr(task, name) for name in _TASK_FIELDS}
        return cls(**known, queue=queue, hold=hold)

    @property
    def database(self) -> Database:
        """The open database of the worker, for reads and writes of the handler. Do not close it.

        Raises InvalidArgument for a task that no worker has handed out.
        """
        if self.hold is None:
            raise InvalidArgument(name="task", wanted="a task that a worker has handed out", got=self)
        return self.hold.database

    @property
    def lost(self) -> bool:
        """Whether the lease is over: another worker has the task, or will. What this one says of it counts
        no longer.
        """
        return self.hold is not None and self.hold.lost

    def _note_end(self, verb: str | None) -> None:
        if self.hold is not None:
            self.hold.ended_by = verb

    def check(self) -> None:
        """Raises LeaseLost if the lease is over: for handlers that take long to call now and then."""
        if self.lost:
            raise LeaseLost(id=self.id)


_TASK_FIELDS = tuple(field.name for field in fields(Task))
