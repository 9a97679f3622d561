"""The look at a queue of tasks: of each partition its counters, and the first entries of three indexes.

An overview keeps the look of each queue, so that it can ask before it has read the definition again.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue.core.errors import DefinitionUnreadable, InvalidArgument
from fdbqueue.core.partitions import Plan, plan_of, prefix_of
from fdbqueue.core.registry import PIECES, PLAIN, SIMPLE, UNPACKING, Definition, Registry
from fdbqueue.core.seam import EXACT, KeyValue, ReadTransaction, Transaction
from fdbqueue.core.sessions.workers import LiveWorkers
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.overview.figures import KeyFigures, QueueFigures, TaskFigures
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe.items import QueueKeys, size_of
from fdbqueue.tasks.options import is_kind
from fdbqueue.tasks.shape import Shape, shape_of
from fdbqueue.tasks.stored.discipline import Fifo, no_mending, read_index
from fdbqueue.tasks.stored.key_counts import Busy
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import Record, TaskKeys, count_of, id_in, sound_record, statistics_of

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

    def ask(self, tr: Transaction, now_us: int) -> Callable[[LiveWorkers], QueueFigures]:
        paused = tr.snapshot.get(self._shape.keys.paused)
        unreadable = self._shape.aside.ask_count(tr)
        asked = [part.ask(tr, now_us) for part in self._parts]

        def figures(workers: LiveWorkers) -> QueueFigures:
            parts, shape = [reply() for reply in asked], self._shape
            tasks = self._tasks(parts, bool(paused.present()), workers.of(shape.name))
            items = sum(part.items for part in parts)
            return QueueFigures(shape.name, shape.kind.name, items, unreadable(), tasks)

        return figures

    def _tasks(self, parts: Sequence[PartFigures], paused: bool, workers: int) -> TaskFigures:
        plan = self._shape.plan
        oldest_s, is_exact = _oldest_of_all(parts)
        return TaskFigures(
            **{state: sum(part.tasks[state] for part in parts) for state in _STATES},
            calls=summed(part.calls for part in parts),
            paused=paused,
            capacity=self._shape.settings.capacity,
            next_age_s=max((part.next_s for part in parts if part.next_s is not None), default=None),
            oldest_age_s=oldest_s,
            oldest_is_exact=is_exact,
            sweep_lag_s=max(part.lag_s for part in parts),
            workers=workers,
            busiest=busiest_of_all([part.busiest for part in parts], self._keys),
            partitions=1 if plan is None else plan.count,
            partitions_before=0 if plan is None else plan.before,
            fullest_ready=None if plan is None else max(part.tasks["ready"] for part in parts),
            limits=self._shape.settings.limits,
            task_limits=self._shape.settings.task_limits,
        )


class PartLook:
    def __init__(self, shape: Shape, keys: int) -> None:
        self._shape = shape
        self._keys = keys
        # Slugs that were busiest at the last look: this look asks for their counters in the same round trip.
        self._known: Sequence[bytes] = ()

    def ask(self, tr: Transaction, now_us: int) -> Callable[[], PartFigures]:
        snapshot, shape, keys = tr.snapshot, self._shape, self._shape.keys
        live, calls = snapshot.get(keys.live), snapshot.get(keys.calls)
        busiest = self._ask_busiest(snapshot)
        due, next_, oldest = (_ask_first(snapshot, under) for under in (keys.timers, keys.ready, keys.tasks))

        def figures() -> PartFigures:
            counted = statistics_of(live.value, calls.value)
            next_s = _age_s(_next_of(tr, next_()), now_us)
            oldest_s, is_exact = _oldest(shape, next_s, _first_task(oldest()), now_us)
            return PartFigures(
                count_of(live.value),
                counted["tasks"],
                counted["calls"],
                next_s,
                oldest_s if counted["tasks"]["ready"] else None,
                is_exact,
                _lag_s(keys, due(), now_us),
                busiest(),
            )

        return figures

    def _ask_busiest(self, tr: ReadTransaction) -> Callable[[], Sequence[_KeyRow]]:
        discipline = self._shape.discipline
        if not self._keys or not isinstance(discipline, Keyed):
            return lambda: ()
        asked = discipline.counts.ask_busiest(tr, self._keys, self._known)

        def busiest() -> Sequence[_KeyRow]:
            found, self._known = asked()
            told = [(_key_in(busy), busy) for busy in found]
            return [(busy.key, KeyFigures(key[0], busy.ready, busy.is_exact)) for key, busy in told if key]

        return busiest


def summed(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total = Counter[str]()
    for part in parts:
        total.update(part)
    return dict(total)


def busiest_of_all(parts: Sequence[Sequence[_KeyRow]], limit: int) -> tuple[KeyFigures, ...]:
    """The task keys of all partitions with the most ready tasks. A key that moves may be in two of them."""
    found: dict[bytes, KeyFigures] = {}
    for key, figures in (row for part in parts for row in part):
        known = found.get(key)
        found[key] = figures if known is None else _added(known, figures)
    if len(parts) == 1:
        return tuple(found.values())
    return tuple(sorted(found.values(), key=lambda one: -one.ready)[:limit])


def _added(one: KeyFigures, other: KeyFigures) -> KeyFigures:
    return replace(one, ready=one.ready + other.ready, is_exact=one.is_exact and other.is_exact)


def _oldest_of_all(parts: Sequence[PartFigures]) -> tuple[float | None, bool]:
    """The largest age, which is exact if its partition tells it exactly."""
    told = [(part.oldest_s, part.oldest_is_exact) for part in parts if part.oldest_s is not None]
    return max(told) if told else (None, parts[0].oldest_is_exact)


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


class Look(Protocol):
    def ask(self, tr: Transaction, now_us: int) -> Reply:
        """Ask for the figures of the queue, by snapshot."""


def look_at(registry: Registry, name: str, stored: bytes, keys: int) -> Look:
    """The look for a stored definition; `keys` is the number of task keys that it tells."""
    definition = Definition.listed(name, stored)
    try:
        return _look_at(registry, Definition.from_bytes(name, stored), keys)
    except (DefinitionUnreadable, InvalidArgument) as error:
        return _NoLook(definition, str(error))


def _look_at(registry: Registry, definition: Definition, keys: int) -> Look:
    contents = registry.contents(definition)
    if is_kind(definition.kind):
        return TaskLook(shape_of(registry, definition), keys)
    if definition.kind == PLAIN:
        return _look_at_items(definition, contents)
    if definition.kind in (PIECES, SIMPLE):
        elements = ElementKeys(contents)
        return _ItemLook(definition, [elements.count], Aside(elements.prefix, elements.aside))
    return _NoLook(definition, f"this process does not know the kind {definition.kind!r}")


class _NoLook:
    """A queue that this process cannot read."""

    def __init__(self, definition: Definition, error: str) -> None:
        self._found = QueueFigures(definition.name, definition.kind, items=0, unreadable=0, error=error)

    def ask(self, tr: Transaction, now_us: int) -> Reply:  # noqa: ARG002  # nothing is read
        return lambda _: self._found


def _look_at_items(definition: Definition, contents: Subspace) -> Look:
    plan = plan_of(definition)
    high = 1 if plan is None else plan.high
    parts = [QueueKeys(Subspace((), prefix_of(contents, number))) for number in range(high)]
    aside = Aside(parts[0].prefix, parts[0].line)
    return _ItemLook(definition, [part.size for part in parts], aside, plan)


class _ItemLook:
    """A queue of items or elements: a counter of each partition, and that of values set aside."""

    def __init__(
        self, definition: Definition, count_keys: Sequence[bytes], aside: Aside, plan: Plan | None = None
    ) -> None:
        self._definition = definition
        self._count_keys = count_keys
        self._aside = aside
        self._plan = plan

    def ask(self, tr: Transaction, now_us: int) -> Reply:  # noqa: ARG002  # its figures have no times
        counts, unreadable = [tr.snapshot.get(key) for key in self._count_keys], self._aside.ask_count(tr)
        name, kind, plan = self._definition.name, self._definition.kind, self._plan

        def figures(_: LiveWorkers) -> QueueFigures:
            sizes = [size_of(count.value) for count in counts]
            found = QueueFigures(name, kind, sum(sizes), unreadable())
            if plan is None:
                return found
            return replace(found, partitions=plan.count, fullest_items=max(sizes))

        return figures
