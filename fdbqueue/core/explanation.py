"""Explanation: the public frozen values that tell why a task is not running."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fdbqueue.core.task import Failure, Holder, Task


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
    """None for a limit of starts."""
    used: int
    """Number of slots that tasks hold."""
    next: float | None
    """The time of the next token of a limit of starts."""
    holders: tuple[LimitHolder, ...]
    """Tasks that hold slots, at most limits.LIMIT_HOLDERS_SHOWN, in any queue; only those of the key, if the
    limit counts each key apart.
    """
    per_key: bool = False
    """True if the limit counts each key apart, and the task names it with `key`."""
    key: Any = None
    error: str | None = None
    """The reason why the limit cannot be read. It limits nothing, but tasks of the key have waited for it."""


class Why(StrEnum):
    """A reason why a task is not running; the weightiest first."""

    PAUSED = "paused"
    BURIED = "buried"
    CANCELLED = "cancelled"
    HOLDER_ENDED = "holder ended"
    TAKEN = "taken"
    WAITING = "waiting"
    """It waits for the end of a group, or of the task that it was put after."""
    DELAYED = "delayed"
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
    """Of a taken task."""
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
