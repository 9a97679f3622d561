"""Looks: the reads of one queue for its figures, all of them in one round trip.

An overview keeps the look of each queue, so that it can ask before it has read the definition again.
"""

from collections.abc import Callable
from typing import Protocol

from fdbqueue.aside import Aside
from fdbqueue.elements.keys import ElementKeys
from fdbqueue.elements.queue import KIND as PIECES
from fdbqueue.elements.simple import KIND as SIMPLE
from fdbqueue.errors import DefinitionUnreadable, InvalidArgument
from fdbqueue.overview.figures import QueueFigures
from fdbqueue.overview.task_looks import TaskLook
from fdbqueue.recipe.items import size_of
from fdbqueue.recipe.keys import QueueKeys
from fdbqueue.recipe.queue import KIND as PLAIN
from fdbqueue.registry.registry import Definition, Registry
from fdbqueue.seam import Transaction
from fdbqueue.sessions.workers import LiveWorkers
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
