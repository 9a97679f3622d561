"""Looks: the reads of one queue for its figures, all of them in one round trip.

An overview keeps the look of each queue, so that it can ask before it has read the definition again.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from fdb.subspace_impl import Subspace

from fdbqueue.core.aside import Aside
from fdbqueue.core.errors import DefinitionUnreadable, InvalidArgument
from fdbqueue.core.partitions.current import plan_of
from fdbqueue.core.partitions.keys import prefix_of
from fdbqueue.core.partitions.plan import Plan
from fdbqueue.core.registry.definition import PIECES, PLAIN, SIMPLE, Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.workers import LiveWorkers
from fdbqueue.operate.overview.figures import QueueFigures
from fdbqueue.operate.overview.task_looks import TaskLook
from fdbqueue.queues.elements.keys import ElementKeys
from fdbqueue.queues.recipe.items import size_of
from fdbqueue.queues.recipe.keys import QueueKeys
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.shape import shape_of

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
