"""Figures: the public frozen values that an overview returns, and the looks that read them.

Ages and lags are in seconds.

The look at a queue of tasks reads of each partition its counters, and the first entries of three indexes; and
the first tasks of the task keys that the look before has told. An overview keeps the look of each queue, so
that it can ask before it has read the definition again.

The look at what lies beside the queues under a root reads limits, schedules and groups. The cells of the
limits that the last look has found are read with the rest. A second round trip reads those of limits that
were set since then.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.errors import DefinitionUnreadable, InvalidArgument, ScheduleUnreadable
from fdbqueue.core.once import ask_stale_number
from fdbqueue.core.partitions import Plan, plan_of, prefix_of
from fdbqueue.core.registry import FAIR_ITEMS, PIECES, PLAIN, SIMPLE, UNPACKING, Definition, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, KeyValue, ReadTransaction, Transaction
from fdbqueue.core.sessions.workers import LiveWorkers
from fdbqueue.core.task import LongRun, TaskState
from fdbqueue.core.unreadable import Aside
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys, size_of
from fdbqueue.tasks.firing import ScheduleState as ScheduleState
from fdbqueue.tasks.firing import record_of, state_of
from fdbqueue.tasks.group_settling import counts_of, readable_row
from fdbqueue.tasks.groups import GroupProgress, progress_of
from fdbqueue.tasks.limits.rule import LimitKeys, free_of_unused, rule_of
from fdbqueue.tasks.limits.shown import used_of
from fdbqueue.tasks.limits.state import State, ask_by_snapshot
from fdbqueue.tasks.options import is_kind
from fdbqueue.tasks.rows import cure_of_buried
from fdbqueue.tasks.schedules import Row, ask_rows
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.stored.discipline import Fifo, no_mending, read_index
from fdbqueue.tasks.stored.key_counts import Busy
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import Record, TaskKeys, count_of, id_in, sound_record, statistics_of
from fdbqueue.tasks.times import Times as Times
from fdbqueue.tasks.times import ask_times


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
    first_age_s: float | None = None
    """Time since the put of its first ready task; None at the first look that tells the key."""
    times: Times | None = None
    """As those of the queue, of its tasks with this key; None likewise."""
    taken: int = 0
    """Its taken tasks; 0 if `ready` is not exact."""


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
    hung: tuple[LongRun, ...] = ()
    """Its tasks that have run far longer than their class usually does, the longest first, at most
    limits.HUNG_SHOWN.
    """
    full_s: float = 0.0
    """The time since which no worker of the queue has had a free thread; 0 if one has."""
    times: Times | None = None
    """How long its tasks waited and ran in the last hour; None without the option `chronicle`."""


def stored_in(tasks: TaskFigures) -> int:
    """The tasks that count for the capacity."""
    return tasks.ready + tasks.taken + tasks.buried + tasks.delayed


def is_full(tasks: TaskFigures) -> bool:
    return tasks.capacity is not None and stored_in(tasks) >= tasks.capacity


def is_mostly_buried(tasks: TaskFigures) -> bool:
    return 2 * tasks.buried > stored_in(tasks)


def way_to_room(name: str, tasks: TaskFigures, *failing: Any) -> str:
    """The cure of a full queue. `failing`: the class of failure that fills it, and its number of tasks."""
    return cure_of_buried(name, *failing).strip() if is_mostly_buried(tasks) else "Start more workers."


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
    tokens: int | None = None
    """Those that a limit of starts has now; None with `per_key`."""


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
    stale_receipts: int = 0
    """Receipts of dead processes that lie for more than a day; above limits.RECEIPTS_SWEPT_MAX, about."""
    clock_difference_s: float = 0.0
    """The largest difference between the clock of a worker and that of this look, at the least. Workers with
    no news for limits.AGE_TOLD_MAX_S tell none.
    """

    @property
    def by_name(self) -> dict[str, QueueFigures]:
        return {queue.name: queue for queue in self.queues}


_SECOND_US = 1_000_000


@dataclass(frozen=True)
class Beside:
    """The values that one snapshot shows, without the queues."""

    limits: Sequence[LimitFigures]
    schedules: Sequence[ScheduleFigures]
    groups: GroupsFigures
    is_whole: bool
    """False if there may be more limits or schedules."""
    stale_receipts: int


class RootLook:
    """It remembers the limits of its last look."""

    def __init__(self, keys: RootKeys) -> None:
        self._keys = keys
        self._known: Mapping[str, LimitKeys] = {}

    def ask(self, tr: ReadTransaction, now_us: int, random: bytes) -> Callable[[], Beside]:
        """Ask by snapshot, for as many limits, schedules, rows of groups and receipts as `limits` allows."""
        keys, most = self._keys, limits.FIGURES_LIMITS
        named = tr.get_range(keys.limits.start, keys.limits.stop, limit=most, streaming_mode=EXACT)
        guessed = {name: self._ask(tr, limit) for name, limit in self._known.items()}
        schedules = ask_rows(tr, keys, limits.FIGURES_SCHEDULES, "")
        groups, receipts = ask_groups(tr, keys), ask_stale_number(tr, keys, now_us, random)

        def reply() -> Beside:
            known = {
                name: self._seen(name, row) for row in named if (name := keys.limit_of(row.key)) is not None
            }
            asked = [guessed.get(name) or self._ask(tr, limit) for name, limit in known.items()]
            self._known = known
            rows, found = schedules(), groups()
            states = [state() for state in asked]
            is_whole = len(known) < most and rows.next is None
            told = [_limit(state, total, now_us) for state, total in states if state.stored is not None]
            return Beside(told, [_schedule(row, now_us) for row in rows], found, is_whole, receipts())

        return reply

    def _seen(self, name: str, row: KeyValue) -> LimitKeys:
        limit = self._known.get(name) or LimitKeys(self._keys.prefix, name)
        limit.note(rule_of(row.value))
        return limit

    def _ask(self, tr: ReadTransaction, keys: LimitKeys) -> Callable[[], tuple[State, bytes | None]]:
        """Ask for a limit, and for the slots in use of all its keys."""
        state, total = ask_by_snapshot(tr, keys), tr.get(keys.total)
        return lambda: (state(), total.value)


def _limit(state: State, total: bytes | None, now_us: int) -> LimitFigures:
    """Without its queues. `state`: of a limit that exists."""
    rule, free, next_us = state.rule, state.free(now_us) or 0, state.next_us(now_us)
    if rule is None:
        return LimitFigures(state.keys.name, None, error=str(state.error))
    if rule.per_key:  # the figures are those of a key that no task uses, and do not name keys
        free, next_us = free_of_unused(rule), None
    return LimitFigures(
        state.keys.name,
        free,
        slots=rule.slots if rule.has_slots else None,
        used=used_of(state, total),
        rate=rule.rate if rule.has_starts else None,
        per_s=rule.per_us / _SECOND_US if rule.has_starts else None,
        burst=rule.burst if rule.has_starts else None,
        per_key=rule.per_key,
        next=None if next_us is None else next_us / _SECOND_US,
        tokens=None if rule.per_key else state.free_tokens(now_us),
    )


def _schedule(row: Row, now_us: int) -> ScheduleFigures:
    state = state_of(row.state) or ScheduleState()
    try:
        record = record_of(row.name, row.record)
    except ScheduleUnreadable as error:
        return ScheduleFigures(row.name, error=str(error))
    due_us = state.due_us
    return ScheduleFigures(
        row.name,
        record.queue,
        None if due_us is None else due_us / _SECOND_US,
        0.0 if due_us is None else max(0, now_us - due_us) / _SECOND_US,
        record.paused,
        state.error,
        state.fired,
    )


def ask_groups(tr: ReadTransaction, keys: RootKeys) -> Callable[[], GroupsFigures]:
    """Ask for the first groups that have not ended. Their ids are random, so these are any of them."""
    most = limits.FIGURES_GROUP_ROWS
    asked = tr.get_range(keys.groups.start, keys.groups.stop, limit=most, streaming_mode=EXACT)

    def reply() -> GroupsFigures:
        rows = asked.to_list()
        open_ = [found for found in _groups(rows, keys) if found.ended is None]
        held = [found for found in open_ if found.waits_for_buried and found.buried]
        held.sort(key=lambda found: found.created)
        return GroupsFigures(len(open_), len(held), tuple(held[: limits.HELD_GROUPS_TOLD]), len(rows) < most)

    return reply


def _groups(rows: Sequence[KeyValue], keys: RootKeys) -> list[GroupProgress]:
    stored = {bytes(row.key): bytes(row.value) for row in rows}
    ids = dict.fromkeys(group for row in rows if (group := keys.group_in(bytes(row.key))) is not None)
    return [found for group in ids if (found := _progress(stored, keys, group)) is not None]


def _progress(stored: Mapping[bytes, bytes], keys: RootKeys, group: bytes) -> GroupProgress | None:
    row = readable_row(stored.get(keys.group(group)))
    if row is None:
        return None
    counts, cancelled = counts_of(stored.get(keys.group_counts(group))), keys.group_cancelled(group) in stored
    return progress_of(group, row, counts, cancelled=cancelled)


def limits_of(found: Sequence[LimitFigures], queues: Sequence[QueueFigures]) -> list[LimitFigures]:
    """Limits with the queues that name them; also those that do not exist, and are named all the same."""
    naming: dict[str, list[QueueFigures]] = {}
    for queue in queues:
        tasks = queue.tasks
        for name in () if tasks is None else (*tasks.limits, *tasks.task_limits):
            naming.setdefault(name, []).append(queue)
    known = {limit.name for limit in found}
    missing = [LimitFigures(name, None) for name in sorted(naming) if name not in known]
    return [_with_queues(limit, naming.get(limit.name, ())) for limit in (*found, *missing)]


def _with_queues(limit: LimitFigures, queues: Sequence[QueueFigures]) -> LimitFigures:
    of_all = [queue.tasks for queue in queues if queue.tasks is not None and limit.name in queue.tasks.limits]
    ready = sum(tasks.ready for tasks in of_all)
    waiting = ready if limit.free == 0 else 0
    return replace(limit, queues=tuple(queue.name for queue in queues), waiting=waiting)


_STATES = ("ready", "taken", "buried", "delayed")
_KeyRow = tuple[bytes, KeyFigures]
"""A packed task key, and its figures."""


@dataclass(frozen=True)
class PartFigures:
    """The figures of one partition, or of a queue without partitions."""

    items: int
    tasks: Mapping[str, int]
    calls: Mapping[str, int]
    next_s: float | None
    oldest_s: float | None
    """The age of the oldest ready task, or an upper bound of it; None without one."""
    oldest_is_exact: bool
    lag_s: float
    busiest: Sequence[_KeyRow]


class TaskLook:
    def __init__(self, shape: Shape, keys: int) -> None:
        self._shape = shape
        self._keys = keys
        plan = shape.plan
        self._parts = [PartLook(shape.partition(n), keys) for n in range(1 if plan is None else plan.high)]
        self._told: Sequence[bytes] = ()
        """The keys that the last look has told, if the queue has a chronicle."""

    def ask(self, tr: Transaction, now_us: int) -> Callable[[LiveWorkers], QueueFigures]:
        paused = tr.snapshot.get(self._shape.keys.paused)
        unreadable = self._shape.aside.ask_count(tr)
        asked = [part.ask(tr, now_us) for part in self._parts]
        times = self._ask_times(tr, now_us) if self._shape.settings.chronicle else None

        def figures(workers: LiveWorkers) -> QueueFigures:
            parts, shape = [reply() for reply in asked], self._shape
            tasks = self._tasks(parts, bool(paused.present()), workers)
            tasks = tasks if times is None else times(tasks)
            items = sum(part.items for part in parts)
            return QueueFigures(shape.name, shape.kind.name, items, unreadable(), tasks)

        return figures

    def _ask_times(self, tr: Transaction, now_us: int) -> Callable[[TaskFigures], TaskFigures]:
        times = ask_times(tr.snapshot, self._shape.shared, [b"", *self._told], now_us)

        def with_times(tasks: TaskFigures) -> TaskFigures:
            found, keys = times(), [key_bytes(one.key) for one in tasks.busiest]
            self._told = keys
            rows = zip(tasks.busiest, keys, strict=True)
            busiest = tuple(replace(one, times=found.get(key)) for one, key in rows)
            return replace(tasks, busiest=busiest, times=found[b""])

        return with_times

    def _tasks(self, parts: Sequence[PartFigures], paused: bool, workers: LiveWorkers) -> TaskFigures:
        plan, name = self._shape.plan, self._shape.name
        # The largest age, which is exact if its partition tells it exactly.
        ages = [(part.oldest_s, part.oldest_is_exact) for part in parts if part.oldest_s is not None]
        oldest_s, is_exact = max(ages, default=(None, parts[0].oldest_is_exact))
        return TaskFigures(
            **{state: sum(part.tasks[state] for part in parts) for state in _STATES},
            calls={call: sum(part.calls[call] for part in parts) for call in parts[0].calls},
            paused=paused,
            capacity=self._shape.settings.capacity,
            next_age_s=max((part.next_s for part in parts if part.next_s is not None), default=None),
            oldest_age_s=oldest_s,
            oldest_is_exact=is_exact,
            sweep_lag_s=max(part.lag_s for part in parts),
            workers=workers.of(name),
            busiest=busiest_of_all([part.busiest for part in parts], self._keys),
            partitions=1 if plan is None else plan.count,
            partitions_before=0 if plan is None else plan.before,
            fullest_ready=None if plan is None else max(part.tasks["ready"] for part in parts),
            limits=self._shape.settings.limits,
            task_limits=self._shape.settings.task_limits,
            hung=workers.hung.get(name, ())[: limits.HUNG_SHOWN],
            full_s=workers.full_s.get(name, 0.0),
            times=None,
        )


class PartLook:
    def __init__(self, shape: Shape, keys: int) -> None:
        self._shape = shape
        self._keys = keys
        # Slugs that were busiest at the last look: this look asks for their counters in the same round trip.
        self._known: Sequence[bytes] = ()
        self._told: Sequence[bytes] = ()
        """The keys that the last look has told: this look asks for their first tasks, likewise."""

    def ask(self, tr: Transaction, now_us: int) -> Callable[[], PartFigures]:
        snapshot, shape, keys = tr.snapshot, self._shape, self._shape.keys
        counters = snapshot.get(keys.counters)
        busiest = self._ask_busiest(snapshot, now_us)
        due, next_, oldest = (_ask_first(snapshot, under) for under in (keys.timers, keys.ready, keys.tasks))

        def figures() -> PartFigures:
            counted = statistics_of(counters.value)
            next_s = _age_s(_next_of(tr, next_()), now_us)
            oldest_s, is_exact = _oldest(shape, next_s, _first_task(oldest()), now_us)
            return PartFigures(
                count_of(counters.value),
                counted["tasks"],
                counted["calls"],
                next_s,
                oldest_s if counted["tasks"]["ready"] else None,
                is_exact,
                _lag_s(keys, due(), now_us),
                busiest(),
            )

        return figures

    def _ask_busiest(self, tr: ReadTransaction, now_us: int) -> Callable[[], Sequence[_KeyRow]]:
        discipline = self._shape.discipline
        if not self._keys or not isinstance(discipline, Keyed):
            return lambda: ()
        asked = discipline.counts.ask_busiest(tr, self._keys, self._known)
        firsts = {key: _ask_first(tr, discipline.fifo(key)) for key in self._told}

        def busiest() -> Sequence[_KeyRow]:
            found, self._known = asked()
            ages = {key: _age_s(_first_task(first()), now_us) for key, first in firsts.items()}
            told = [(key, busy) for busy in found if (key := _key_in(busy))]
            self._told = [busy.key for _, busy in told]
            return [
                (
                    busy.key,
                    KeyFigures(key[0], busy.ready, busy.is_exact, ages.get(busy.key), taken=busy.taken),
                )
                for key, busy in told
            ]

        return busiest


def busiest_of_all(parts: Sequence[Sequence[_KeyRow]], limit: int) -> tuple[KeyFigures, ...]:
    """The task keys of all partitions with the most ready tasks. A key that moves may be in two of them."""
    found: dict[bytes, KeyFigures] = {}
    for key, figures in (row for part in parts for row in part):
        known = found.get(key, KeyFigures(figures.key, 0))
        ages = [one.first_age_s for one in (known, figures) if one.first_age_s is not None]
        found[key] = KeyFigures(
            figures.key,
            known.ready + figures.ready,
            known.is_exact and figures.is_exact,
            max(ages, default=None),
            taken=known.taken + figures.taken,
        )
    if len(parts) == 1:
        return tuple(found.values())
    return tuple(sorted(found.values(), key=lambda one: -one.ready)[:limit])


def _oldest(
    shape: Shape, next_s: float | None, first: Record | None, now_us: int
) -> tuple[float | None, bool]:
    """The age of the oldest ready task, or an upper bound of it; and whether it is exact."""
    if type(shape.discipline) is Fifo:
        return next_s, True
    return _age_s(first, now_us), first is not None and first.state == TaskState.READY


def _ask_first(tr: ReadTransaction, under: slice) -> Callable[[], KeyValue | None]:
    found = tr.get_range(under.start, under.stop, limit=1, streaming_mode=EXACT)
    return lambda: next(iter(found.to_list()), None)


def _next_of(tr: Transaction, entry: KeyValue | None) -> Record | None:
    """The task that a take would find first; None without one, and for damage."""
    return None if entry is None else next(read_index(tr, [entry], no_mending), None)


def _first_task(entry: KeyValue | None) -> Record | None:
    """The task that was put first of those in any state; None for damage."""
    return None if entry is None else sound_record(bytes(entry.value), id_in(bytes(entry.key)))


def _age_s(record: Record | None, now_us: int) -> float | None:
    return None if record is None else max(0, now_us - record.created_us) / 1_000_000


def _lag_s(keys: TaskKeys, timer: KeyValue | None, now_us: int) -> float:
    return 0.0 if timer is None else max(0, now_us - keys.time_of(bytes(timer.key))) / 1_000_000


def _key_in(busy: Busy) -> tuple[object, ...]:
    """The task key as a tuple of one part; an empty one for a damaged key, which no task has."""
    try:
        parts: tuple[object, ...] = layer.unpack(busy.key)
    except UNPACKING:
        return ()
    return parts if len(parts) == 1 else ()


Reply = Callable[[LiveWorkers], QueueFigures]
Look = Callable[[Transaction, int], Reply]
"""Asks for the figures of a queue, by snapshot, at a time in microseconds."""


def look_at(registry: Registry, name: str, stored: bytes, keys: int) -> Look:
    """The look for a stored definition; `keys` is the number of task keys that it tells."""
    try:
        return _look_at(registry, Definition.from_bytes(name, stored), keys)
    except (DefinitionUnreadable, InvalidArgument) as error:
        return _no_look(Definition.listed(name, stored), str(error))


def _look_at(registry: Registry, definition: Definition, keys: int) -> Look:
    contents = registry.contents(definition)
    if is_kind(definition.kind):
        return TaskLook(shape_of(registry, definition), keys).ask
    if definition.kind == PLAIN:
        return _look_at_items(definition, contents)
    if definition.kind == FAIR_ITEMS:
        fair = TaskKeys(contents)
        return _item_look(definition, [fair.counters], Aside(fair.prefix, fair.line))
    if definition.kind in (PIECES, SIMPLE):
        elements = ElementKeys(contents)
        return _item_look(definition, [elements.count], Aside(elements.prefix, elements.aside))
    return _no_look(definition, f"this process does not know the kind {definition.kind!r}")


def _no_look(definition: Definition, error: str) -> Look:
    """A queue that this process cannot read."""
    found = QueueFigures(definition.name, definition.kind, items=0, unreadable=0, error=error)
    return lambda *_: lambda _: found


def _look_at_items(definition: Definition, contents: Subspace) -> Look:
    plan = plan_of(definition)
    high = 1 if plan is None else plan.high
    parts = [QueueKeys(Subspace((), prefix_of(contents, number))) for number in range(high)]
    aside = Aside(parts[0].prefix, parts[0].line)
    return _item_look(definition, [part.size for part in parts], aside, plan)


def _item_look(
    definition: Definition, count_keys: Sequence[bytes], aside: Aside, plan: Plan | None = None
) -> Look:
    """A queue of items or elements: a counter of each partition, and that of values set aside."""

    def look(tr: Transaction, _: int) -> Reply:
        counts, unreadable = [tr.snapshot.get(key) for key in count_keys], aside.ask_count(tr)

        def figures(_: LiveWorkers) -> QueueFigures:
            sizes = [size_of(count.value) for count in counts]
            found = QueueFigures(definition.name, definition.kind, sum(sizes), unreadable())
            if plan is None:
                return found
            return replace(found, partitions=plan.count, fullest_items=max(sizes))

        return figures

    return look
