"""Looks: the reads of one queue for its figures, all of them in one round trip.

An overview keeps the look of each queue, so that it can ask before it has read the definition again.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fdb import tuple as layer

from fdbqueue.aside import Aside
from fdbqueue.disciplines.discipline import no_mending, read_index
from fdbqueue.disciplines.fifo import Fifo
from fdbqueue.disciplines.key_counts import Busy
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.elements.keys import ElementKeys
from fdbqueue.elements.queue import KIND as PIECES
from fdbqueue.elements.simple import KIND as SIMPLE
from fdbqueue.errors import DefinitionUnreadable, InvalidArgument
from fdbqueue.overview.figures import KeyFigures, QueueFigures, TaskFigures
from fdbqueue.recipe.items import size_of
from fdbqueue.recipe.keys import QueueKeys
from fdbqueue.recipe.queue import KIND as PLAIN
from fdbqueue.records.keys import Record, TaskKeys, id_in, sound_record
from fdbqueue.records.statistics import count_of, statistics_of
from fdbqueue.registry.registry import UNPACKING, Definition, Registry
from fdbqueue.seam import EXACT, KeyValue, ReadTransaction, Transaction
from fdbqueue.sessions.workers import LiveWorkers
from fdbqueue.task import TaskState
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.shape import Shape, shape_of

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
        return _TaskLook(shape_of(registry, definition), keys)
    if definition.kind == PLAIN:
        plain = QueueKeys(contents)
        return _ItemLook(definition, plain.size, Aside(plain.prefix, plain.line))
    if definition.kind in (PIECES, SIMPLE):
        elements = ElementKeys(contents)
        return _ItemLook(definition, elements.count, Aside(elements.prefix, elements.aside))
    return _NoLook(definition, f"this process does not know the kind {definition.kind!r}")


class _NoLook:
    """A queue that this process cannot read."""

    def __init__(self, definition: Definition, error: str) -> None:
        self._found = QueueFigures(definition.name, definition.kind, items=0, unreadable=0, error=error)

    def ask(self, tr: Transaction, now_us: int) -> Reply:  # noqa: ARG002  # nothing is read
        return lambda _: self._found


class _ItemLook:
    """A queue of items or elements: two counters."""

    def __init__(self, definition: Definition, count_key: bytes, aside: Aside) -> None:
        self._definition = definition
        self._count_key = count_key
        self._aside = aside

    def ask(self, tr: Transaction, now_us: int) -> Reply:  # noqa: ARG002  # its figures have no times
        count, unreadable = tr.snapshot.get(self._count_key), self._aside.ask_count(tr)
        name, kind = self._definition.name, self._definition.kind
        return lambda _: QueueFigures(name, kind, items=size_of(count.value), unreadable=unreadable())


class _TaskLook:
    """A queue of tasks: its counters, and the first entries of three indexes."""

    def __init__(self, shape: Shape, keys: int) -> None:
        self._shape = shape
        self._keys = keys
        # Slugs that were busiest at the last look: this look asks for their counters in the same round trip.
        self._known: Sequence[bytes] = ()

    def ask(self, tr: Transaction, now_us: int) -> Reply:
        snapshot, shape, keys = tr.snapshot, self._shape, self._shape.keys
        live, calls, paused = snapshot.get(keys.live), snapshot.get(keys.calls), snapshot.get(keys.paused)
        unreadable, busiest = shape.aside.ask_count(tr), self._ask_busiest(snapshot)
        due, next_, oldest = (_ask_first(snapshot, under) for under in (keys.timers, keys.ready, keys.tasks))

        def figures(workers: LiveWorkers) -> QueueFigures:
            counted = statistics_of(live.value, calls.value)
            ready, states = counted["tasks"]["ready"], ("ready", "taken", "buried", "delayed")
            next_s = _age_s(_next_of(tr, next_()), now_us)
            oldest_s, is_exact = _oldest(shape, next_s, _first_task(oldest()), now_us)
            tasks = TaskFigures(
                **{state: counted["tasks"][state] for state in states},
                calls=counted["calls"],
                paused=bool(paused.present()),
                capacity=shape.settings.capacity,
                next_age_s=next_s,
                oldest_age_s=oldest_s if ready else None,
                oldest_is_exact=is_exact,
                sweep_lag_s=_lag_s(keys, due(), now_us),
                workers=workers.of(shape.name),
                busiest=busiest(),
            )
            return QueueFigures(shape.name, shape.kind.name, count_of(live.value), unreadable(), tasks)

        return figures

    def _ask_busiest(self, tr: ReadTransaction) -> Callable[[], tuple[KeyFigures, ...]]:
        discipline = self._shape.discipline
        if not self._keys or not isinstance(discipline, Keyed):
            return lambda: ()
        asked = discipline.counts.ask_busiest(tr, self._keys, self._known)

        def busiest() -> tuple[KeyFigures, ...]:
            found, self._known = asked()
            told = [(_key_in(busy), busy) for busy in found]
            return tuple(KeyFigures(key[0], busy.ready, busy.is_exact) for key, busy in told if key)

        return busiest


def _ask_first(tr: ReadTransaction, under: slice) -> Callable[[], KeyValue | None]:
    found = tr.get_range(under.start, under.stop, limit=1, streaming_mode=EXACT)
    return lambda: next(iter(found.to_list()), None)


def _next_of(tr: Transaction, entry: KeyValue | None) -> Record | None:
    """The task that a take would find first; None without one, and for damage."""
    return None if entry is None else next(read_index(tr, [entry], no_mending), None)


def _first_task(entry: KeyValue | None) -> Record | None:
    """The task that was put first of those in any state; None for damage."""
    return None if entry is None else sound_record(bytes(entry.value), id_in(bytes(entry.key)))


def _oldest(
    shape: Shape, next_s: float | None, first: Record | None, now_us: int
) -> tuple[float | None, bool]:
    """The age of the oldest ready task, or an upper bound of it; and whether it is exact."""
    if type(shape.discipline) is Fifo:
        return next_s, True
    return _age_s(first, now_us), first is not None and first.state == TaskState.READY


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
