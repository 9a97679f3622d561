"""Contents: a queue as an aftermath sees it: its ranges of keys, and how a consumer empties it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core.database import Database
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import SharedKeys, plan_of, prefix_of
from fdbqueue.core.registry import PIECES, PLAIN, SIMPLE, Definition, Registry
from fdbqueue.core.seam import Subspace
from fdbqueue.operate.verify.verify import AnyQueue
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.queue import ElementQueue, SimpleElementQueue
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.options import is_kind, stored_settings
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys

_LOCK_AGE_S = 0.5
"""The age of a lock that a dead holder has left, by the clock that was ahead of all."""

Take = Callable[[Database, float], bool]
"""Wait up to some seconds for one entry, and finish it. False if there was none."""


@dataclass(frozen=True)
class Contents:
    name: str
    make_take: Callable[[Database], Take]
    """Open the queue, and return how to take from it."""
    available: Sequence[slice]
    """The entries that a take may give."""
    lines: Sequence[LineKeys]
    """The lines in which a take that waits meets the requests of the dead."""
    tasks: Sequence[TaskKeys] = ()
    """The partitions of a queue of tasks."""
    shared: SharedKeys | None = None
    definition: Definition | None = None
    retain_us: int = 0
    limits: Sequence[LimitKeys] = ()
    """The limits that may keep an available task waiting."""
    partition_lines: Sequence[LineKeys] = ()
    """Lines in which entries lie ready for requests of the dead, until these are overdue."""


def contents_of(database: Database, registry: Registry, spaces: Sequence[AnyQueue]) -> list[Contents]:
    """All queues of a root, and those over subspaces. A kind that is unknown here is left out."""
    named = (_named(registry, definition) for definition in registry.names(database))
    return [found for found in (*named, *map(_in_space, spaces)) if found is not None]


def _named(registry: Registry, definition: Definition) -> Contents | None:
    subspace, name = registry.contents(definition), definition.name
    if definition.kind == PLAIN:
        make = partial(Queue.named, name=name, create=False)
        return _of_items(name, subspace, _count_of(definition), lambda db: _dequeue(make(db)), definition)
    if definition.kind in (PIECES, SIMPLE):
        kind = ElementQueue if definition.kind == PIECES else SimpleElementQueue
        return _of_elements(name, ElementKeys(subspace), lambda db: kind.named(db, name, create=False))
    return _of_tasks(registry, subspace, definition) if is_kind(definition.kind) else None


def _in_space(queue: AnyQueue) -> Contents | None:
    if isinstance(queue, FairQueue):
        keys = queue._items.shape.keys
        return Contents("a fair queue", lambda _: _get(queue), [keys.ready], [LineKeys(keys.line)], [keys])
    if isinstance(queue, Queue):
        subspace = Subspace((), queue._recipe.zero.keys.prefix)
        return _of_items("a queue", subspace, 1, lambda _: _dequeue(queue), None)
    if isinstance(queue, ElementBase):
        return _of_elements("an element queue", queue.store.keys, lambda _: queue)
    return None


def _count_of(definition: Definition) -> int:
    plan = plan_of(definition)
    return 1 if plan is None else plan.high


def _of_items(
    name: str,
    subspace: Subspace,
    partitions: int,
    make_take: Callable[[Database], Take],
    definition: Definition | None,
) -> Contents:
    keys = [QueueKeys(Subspace((), prefix_of(subspace, number))) for number in range(partitions)]
    line = _line(subspace, definition, keys[0])
    items, own = [each.items for each in keys], [LineKeys(each.line) for each in keys]
    return Contents(name, make_take, items, [line], definition=definition, partition_lines=own)


def _line(subspace: Subspace, definition: Definition | None, first: QueueKeys | TaskKeys) -> LineKeys:
    """The line of all partitions. Those of single partitions are met only by takes that begin there."""
    is_wide = definition is not None and plan_of(definition) is not None
    return LineKeys(SharedKeys(subspace).line if is_wide else first.line)


def _of_elements(name: str, keys: ElementKeys, make: Callable[[Database], ElementBase]) -> Contents:
    return Contents(name, lambda db: _remove(make(db)), [keys.elements], [])


def _of_tasks(registry: Registry, subspace: Subspace, definition: Definition) -> Contents:
    keys = [TaskKeys(subspace, number) for number in range(_count_of(definition))]
    shared, settings = SharedKeys(subspace), stored_settings(definition)
    return Contents(
        definition.name,
        lambda db: _ack(TaskQueue.open(db, definition.name)),
        [each.ready for each in keys],
        [_line(subspace, definition, keys[0])],
        keys,
        shared,
        definition,
        round((settings.retain_s or 0) * 1_000_000),
        [LimitKeys(registry.keys.prefix, limit) for limit in (*settings.limits, *settings.task_limits)],
        [LineKeys(each.line) for each in keys],
    )


def _ack(q: TaskQueue) -> Take:
    def take(db: Database, timeout_s: float) -> bool:
        task = q.take(db, timeout_s)
        if task is not None:
            q.ack(db, task)
        return task is not None

    return take


def _dequeue(q: Queue) -> Take:
    nothing = object()
    return lambda db, timeout_s: q.dequeue(db, nothing, timeout_s) is not nothing


def _get(q: FairQueue) -> Take:
    return lambda db, timeout_s: q.take_item(db, timeout_s)[0]


def _remove(q: ElementBase) -> Take:
    """Nothing waits for an element: each look breaks the locks of dead holders, and takes the first one."""

    def take(db: Database, timeout_s: float) -> bool:
        until = db.runtime.monotonic() + timeout_s
        while True:
            q.purge(db, maxlock=_LOCK_AGE_S)
            locked = next((name for name in q.names(db) if q.lock(db, name)), None)
            if locked is not None:
                q.remove(db, locked)
                return True
            if db.runtime.monotonic() >= until:
                return False
            db.runtime.sleep(_LOCK_AGE_S)

    return take
