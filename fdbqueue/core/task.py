"""Task, EndedTask, TaskState, Failure, Renewed and Holder: the public frozen values of a task queue."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class TaskState(StrEnum):
    READY = "r"
    TAKEN = "t"
    BURIED = "!"
    DELAYED = "~"
    DONE = "-"  # never stored: in results of verbs and arguments of callbacks only


READY, TAKEN, BURIED, DELAYED, DONE = TaskState  # Python 3.11 looks a member up by a function


@dataclass(frozen=True, slots=True)
class Task:
    """A task in its state at the commit of the call that returned it.

    Times are seconds since the epoch, None for never. `token` is the lease that a take gave: verbs that are
    handed this value act under that lease and no other.
    """

    id: str
    state: TaskState
    data: Any
    pri: int = 0
    key: Any = None
    attempts: int = 0
    """Number of times that it was taken."""
    failures: int = 0
    """Attempts that failed since the put or the last kick, without those that an outage of the database
    ended.
    """
    orphaned: int = 0
    """Number of its latest attempts in a row that ended because the lease was over or its holder dead."""
    created: float = 0.0
    expires: float | None = None
    """The end of its ttl."""
    until: float | None = None
    """The end of its lease (taken) or of its delay (delayed)."""
    token: bytes | None = None
    taken: float | None = None
    """The time of its take, while it is taken."""
    session: str | None = None
    """The session that holds it, in hexadecimal; `TaskQueue.holder` tells of it."""
    trace: Mapping[str, str] | None = field(default=None, compare=False, repr=False)
    """The trace context of its put, such as a `traceparent`; None if no tracer saw the put."""
    cancel_asked: float | None = None
    """The time of its cancel, if it was taken then and still is: it ends with its lease."""
    fraction: float | None = None
    """The progress that its holder has told, from 0 to 1; None before, and once the lease has ended."""
    fraction_told: float | None = None
    """The time at which that was told."""
    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The headers of its put: texts beside the data, readable without its codec."""
    limits: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The limits that it names, beside those of its queue, each with the key that it names, or None."""
    result_ttl: float | None = None
    """Time for which the result of its ack is kept, in seconds; None if none was asked for."""
    steps: int = 0
    """Number of its steps that are done; `TaskQueue.steps` returns their names."""
    unique: Any = None
    """The unique key of its put; None without one."""
    groups: tuple[str, ...] = ()
    """The groups that count it."""
    waits_for: str | None = None
    """The group for which it waits, delayed without a due time; None for none."""
    existed: bool = field(default=False, compare=False)
    """True if this is the answer of a put that found the task, and made none."""

    def _note_end(self, verb: str | None, within: bool) -> None:
        """A verb that ends the lease begins (None), or has succeeded, perhaps in a transaction of the caller.
        A worker's task remembers it.
        """


class OpenTask:
    """A task until its fields are set: then it becomes a `Task`, whose constructor sets each by a call."""

    __slots__ = Task.__slots__


@dataclass(frozen=True, slots=True)
class EndedTask:
    """A task that has ended, as a queue with `retain_s` keeps it. Times are seconds since the epoch."""

    id: str
    outcome: str
    """"acked", "deleted", "expired" or "cancelled"."""
    created: float
    taken: float | None
    """The time of its last take, if it was taken when it ended."""
    ended: float
    attempts: int
    """Number of times that it was taken."""
    failures: int
    """Number of failed attempts since its put, and in an earlier queue."""
    key: Any = None
    pri: int = 0
    session: str | None = None
    """The session that held it when it ended, in hexadecimal."""


class Renewed(dict[str, float | None]):
    """The new deadlines of the leases that are still held, by task. `cancelled`: the ids of the tasks among
    them that have been cancelled.
    """

    __slots__ = ("cancelled",)

    def __init__(self, deadlines: Mapping[str, float | None], cancelled: Collection[str] = ()) -> None:
        super().__init__(deadlines)
        self.cancelled = frozenset(cancelled)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt at a task. The caller gives error, message and detail; the queue adds the rest.

    Texts longer than limits.FAILURE_MESSAGE_BYTES_MAX and limits.FAILURE_DETAIL_BYTES_MAX are cut: a
    message keeps its beginning, a detail its end, because a traceback has the error there.
    """

    error: str
    """The class of the error, or another short name of the reason."""
    message: str = ""
    detail: str = ""
    """A traceback, or the output of the program."""
    worker: str = ""
    """Host and process of the worker."""
    outcome: str = ""
    """"retried", "buried", or "lease_lost"; "exhausted" if that buried it, "excused" if it does not count, as
    the database was away.
    """
    attempt: int = 0
    """Number of the attempt, from 1."""
    when: float = 0.0
    """Seconds since the epoch."""
    began: float | None = None
    """The time of its take, in seconds since the epoch; None if the task was not taken."""


@dataclass(frozen=True, slots=True)
class HolderProcess:
    """A process that holds tasks in the name of a session."""

    host: str
    process_id: int


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a task: a session, and its processes. Times are seconds since the epoch."""

    session: str
    """Its id, in hexadecimal."""
    name: str | None
    processes: tuple[HolderProcess, ...]
    """Empty if the session has ended, or if its record cannot be read."""
    seen: float | None
    """The time of its last heartbeat; None if it has ended."""
    dies: float | None
    """The time at which it counts as dead without another heartbeat; None if it has ended."""
