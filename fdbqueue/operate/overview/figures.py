"""Figures: the public frozen values that an overview returns. Ages and lags are in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdbqueue.tasks.groups import GroupProgress


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """One of the busiest task keys of a queue."""

    key: Any
    ready: int
    """Its ready tasks."""
    is_exact: bool = True
    """False if only the magnitude of `ready` is known: the number is at least `ready`, and less than four
    times as large.
    """


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """The figures of a queue of tasks. Counts are exact, of the stored states."""

    ready: int
    taken: int
    buried: int
    delayed: int
    calls: Mapping[str, int]
    """Calls since the queue was created, by the names of `TaskQueue.statistics`."""
    paused: bool
    capacity: int | None
    next_age_s: float | None
    """Time since the put of the next task to be taken, its delays, attempts and burials included; in a bag,
    or with lanes, of one of the ready tasks. None if no task can be taken.
    """
    oldest_age_s: float | None
    """Time since the put of the oldest ready task, or a bound of it; None if no task is ready."""
    oldest_is_exact: bool
    """False if `oldest_age_s` is an upper bound: the age of the oldest task in any state."""
    sweep_lag_s: float
    """Time since the first task that should have been swept was due; 0 if none is due."""
    workers: int
    """Live workers that may take from the queue."""
    busiest: tuple[KeyFigures, ...]
    """Task keys with the most ready tasks, busiest first."""
    partitions: int = 1
    """The number of open partitions; 1 for a queue that has none. Counts are sums over all, ages and lags
    the largest of all.
    """
    partitions_before: int = 0
    """The number of open partitions before the repartition that is under way; 0 if none is."""
    fullest_ready: int | None = None
    """Ready tasks of the partition that has the most; None without partitions."""
    limits: tuple[str, ...] = ()
    """The names of the limits under which its tasks are taken."""
    task_limits: tuple[str, ...] = ()
    """The names of the limits that its tasks may name. With some, the next task of a take need not be the
    oldest.
    """


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """The figures of one queue."""

    name: str
    kind: str
    items: int
    """Number of items, elements or tasks in all states."""
    unreadable: int
    """Number of stored values that were set aside because they could not be read."""
    tasks: TaskFigures | None = None
    """None for a queue without leases."""
    error: str | None = None
    """The reason why this process cannot read the queue; then all numbers are 0."""
    partitions: int = 1
    """The number of open partitions; 1 for a queue that has none. `items` is the sum over all."""
    fullest_items: int | None = None
    """Items of the partition that has the most; None without partitions, and for a queue of tasks."""


@dataclass(frozen=True, slots=True)
class LimitFigures:
    """A limit, and the queues of the look that name it, for all of their tasks or for some."""

    name: str
    free: int | None
    """Number of tasks that may start now: free slots, or tokens; with `per_key`, of a key that no task uses.
    None for a limit that does not exist, or that cannot be read: the queues that name it are without it.
    """
    slots: int | None = None
    used: int = 0
    """Number of slots that tasks hold; with `per_key`, tasks of all keys together."""
    rate: int | None = None
    per_s: float | None = None
    burst: int | None = None
    next: float | None = None
    """The time of the next token, if there is none; in seconds since the epoch."""
    queues: tuple[str, ...] = ()
    per_key: bool = False
    """True if it counts each key apart."""
    waiting: int = 0
    """Ready tasks of these queues, while no task may start; none of a queue whose tasks may name the limit,
    as others of it go on.
    """
    error: str | None = None
    """The reason why the limit cannot be read."""


@dataclass(frozen=True, slots=True)
class ScheduleFigures:
    """A schedule, as the last pass has left it."""

    name: str
    queue: str = ""
    due: float | None = None
    """Its next due time, in seconds since the epoch; None while it is paused."""
    late_s: float = 0.0
    """Time since that due time, if it has come."""
    paused: bool = False
    error: str | None = None
    """The reason why its last try has failed, or why it cannot be read."""
    fired: int = 0
    """Number of tasks that it has put."""


@dataclass(frozen=True, slots=True)
class GroupsFigures:
    """The groups that have not ended, among the first ones."""

    unfinished: int = 0
    held: int = 0
    """Groups among them that buried members hold: they do not end before a kick, or a delete of these."""
    first_held: tuple[GroupProgress, ...] = ()
    """The oldest of the held groups, at most limits.HELD_GROUPS_TOLD."""
    is_whole: bool = True
    """False if there are more rows of groups than limits.FIGURES_GROUP_ROWS: then the numbers are at least
    these.
    """


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of queues, from one snapshot for each limits.FIGURES_QUEUES of them.

    Limits and schedules are those of these queues, if the overview has names.
    """

    now: float
    """Time of the first snapshot, in seconds since the epoch."""
    queues: tuple[QueueFigures, ...]
    """In order of names."""
    workers: int
    """Live workers under the root, among the first limits.WORKERS_LISTED_MAX."""
    is_whole: bool = True
    """False if there may be queues behind the last one, or more limits or schedules."""
    limits: tuple[LimitFigures, ...] = ()
    schedules: tuple[ScheduleFigures, ...] = ()
    groups: GroupsFigures = GroupsFigures()

    @property
    def by_name(self) -> dict[str, QueueFigures]:
        return {queue.name: queue for queue in self.queues}
