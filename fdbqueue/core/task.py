"""The public frozen values of a task queue: tasks, their states, failures and holders, and explanations.

An explanation tells why a task is not running.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fdbqueue.core import limits


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
    attempts_max: float | None = None
    """The attempts that its put has named, inf for no bound; None for those of its queue or worker."""
    existed: bool = field(default=False, compare=False)
    """True if this is the answer of a put that found the task, and made none."""
    handed_to: str | None = None
    """The text of its hand-off, or an empty one, while it is handed off; None for any other task."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitHolder:
    """A task that holds a slot of a limit."""

    task: str
    """Its id."""
    queue: str
    session: str
    """The session that holds the task, in hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachedLimit:
    """A limit that lets no task start now."""

    name: str
    slots: int | None
    """None if its slots hold no task back."""
    used: int
    """Number of slots that tasks hold."""
    next: float | None
    """The time of its next token; None if its rate holds no task back."""
    holders: tuple[LimitHolder, ...]
    """Tasks that hold slots, at most limits.LIMIT_HOLDERS_SHOWN, in any queue; only those of the key, if the
    limit counts each key apart.
    """
    per_key: bool = False
    """True if the limit counts each key apart, and the task names it with `key`."""
    key: Any = None
    error: str | None = None
    """The reason why the limit cannot be read. It limits nothing, but tasks of the key have waited for it."""
    has_both: bool = False
    """True for a limit of slots and a rate."""


class Why(StrEnum):
    """A reason why a task is not running; the weightiest first."""

    PAUSED = "paused"
    FLEET_PAUSED = "fleet paused"
    """No worker of the root takes a task."""
    BURIED = "buried"
    CANCELLED = "cancelled"
    HANDED_OFF = "handed off"
    """It waits to be completed from outside (docs/workers.md)."""
    HOLDER_ENDED = "holder ended"
    TAKEN = "taken"
    WAITING = "waiting"
    """It waits for the end of a group, or of the task that it was put after."""
    DELAYED = "delayed"
    NOT_IN_LINE = "not in line"
    """Its key in the line is lost: no take finds it."""
    UNSWEPT = "not swept"
    LIMIT_REACHED = "limit reached"
    """As many tasks run, or have started, as a limit allows (docs/limits.md). Or its key has waited for a
    limit that cannot be read.
    """
    KEY_HELD = "key held"
    """Its task key has moved to another partition, and waits for its tasks in the old one."""
    KEY_BUSY = "key busy"
    KEY_BEHIND = "behind its key"
    BEHIND = "behind"
    NO_WORKER = "no worker"
    WORKERS_BUSY = "workers busy"
    NEXT = "next"


@dataclass(frozen=True, slots=True)
class Reason:
    why: Why
    text: str
    """A sentence that tells it."""
    cure: str
    """The command, or the event, that ends it."""
    at: float | None = None
    """The time of that event, in seconds since the epoch; None if it has no time."""


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The place of a ready or buried task. A number of limits.EXPLAINED_MAX is that number, or more."""

    ahead: int = 0
    """The tasks before it; in a queue with task keys, the keys with an earlier turn; in a bag, all other
    ready tasks."""
    ahead_in_key: int = 0
    """The tasks of its key before it."""
    by_key: bool = False
    """True in a queue with task keys."""
    key_is_open: bool = True
    """False if its key has as many tasks taken as it may have."""
    round: int | None = None
    """Of a fair queue, the round in which the task has its turn."""
    current_round: int | None = None
    in_any_order: bool = False
    """True in a bag: any of the tasks counted in `ahead` may come before it."""


@dataclass(frozen=True, slots=True)
class HeldKey:
    """A task key that waits in its new partition, since a repartition from `before` to `partitions`."""

    partition: int
    """Its old partition."""
    tasks: int
    """Its ready and taken tasks there."""
    before: int
    partitions: int


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """A taken task that keeps the task key of another one busy."""

    task: str
    """Its id."""
    taken: float | None
    """The time of its take."""
    until: float | None
    """The end of its lease."""
    holder: Holder


@dataclass(frozen=True, slots=True)
class LongRun:
    """A task that a worker runs, as the worker has last told."""

    id: str
    queue: str
    for_s: float
    """The seconds since its handler was called."""
    usual_s: float | None
    """The mean run time of its class (its queue, and its function if it is a call of one) in this worker;
    None before the first one has ended.
    """
    host: str
    process_id: int
    lost: bool = False
    """True if its lease is over, such as by a `bury`: only its handler runs on, and keeps a thread."""

    @property
    def is_hung(self) -> bool:
        """True if it has run far longer than its class usually does: 10 times as long, and a minute."""
        if self.usual_s is None:
            return False
        return self.for_s > max(limits.HUNG_MIN_S, limits.HUNG_TIMES * self.usual_s)


@dataclass(frozen=True, slots=True)
class WaitedFor:
    """The group for which a delayed task waits, or the task that it was put after."""

    group: str
    task: str | None
    """The id of that task; None for a group that a program has made."""
    left: int
    """Members that have not ended."""
    buried: int
    """Members that are buried."""
    open: bool
    """True before its close."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task is not running, from one snapshot. Times are seconds since the epoch."""

    queue: str
    task: Task
    now: float
    swept: bool
    """False if its delay or lease is over, and no process has moved it since."""
    paused: bool
    holder: Holder | None
    """Of a taken task, even if its lease is over and no process has swept it."""
    place: TaskPlace | None
    """Of a ready task that is swept, or of a buried one; None in a queue of a registered kind that is neither
    in one order nor in an order for each key.
    """
    key_holders: tuple[KeyHolder, ...]
    """Of a ready task: the taken tasks of its key, the first limits.EXPLAINED_HOLDERS."""
    waiting: int
    """Live calls that wait in the lines of the queue, up to limits.EXPLAINED_MAX."""
    workers: int
    """Live workers that may take from the queue, among the first limits.EXPLAINED_WORKERS of the root."""
    tasks: int
    """Tasks of the queue, in all states."""
    capacity: int | None
    last_failure: Failure | None
    reasons: tuple[Reason, ...] = ()
    """In order of weight."""
    held: HeldKey | None = None
    """Of a ready task: the reason why its task key waits in its partition."""
    waits_for: WaitedFor | None = None
    """Of a delayed task without a due time; None, too, if its group is gone."""
    reached: tuple[ReachedLimit, ...] = ()
    """Of a ready task: the limits that let it not start."""
    attempts_max: float | None = None
    """The failures before its burial, inf for no bound; None for those of the worker that takes it."""
    attempts_from: str = "worker"
    """The source of that number: "task", "queue" or "worker"."""
    run: LongRun | None = None
    """Of a task that a worker runs, its run."""
    runs: tuple[LongRun, ...] = ()
    """Of a ready task while no worker has a free thread: the longest runs, which hold them."""
    full_s: float = 0.0
    """The time since which none of these workers has had a free thread; 0 if one has."""
    fleet_paused: bool = False
    overtaken_by: str | None = None
    """Of a ready task in a fair queue: the task key that has so many of the taken tasks that others wait."""
