"""All queues under a root: their names, and the statistics of those that hold tasks."""

from typing import Any

from fdbqueue.core.database import as_database, is_transaction, run
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.logger import logger
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.tasks import looking
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.records.statistics import Statistics
from fdbqueue.tasks.shape import Shape, shape_of

_log = logger("fdbqueue")


def list_queues(db: DatabaseOrTransaction, *, root: Any = DEFAULT_ROOT) -> list[str]:
    """The names of all queues under the root, in order. Reads: by snapshot. Conflicts: none."""
    return [definition.name for definition in _definitions(db, Registry(root))]


def statistics(db: DatabaseOrTransaction, *, root: Any = DEFAULT_ROOT) -> dict[str, Statistics]:
    """The statistics of every task queue under the root that has a readable definition, by name.

    Given a database, the call also sweeps a batch of each queue.
    Reads: by snapshot.
    Conflicts: none.
    """
    registry = Registry(root)
    known = [found for found in _definitions(db, registry) if is_kind(found.kind)]
    shapes = [shape for found in known if (shape := _shape_of(db, registry, found)) is not None]
    return {shape.name: _statistics_of(db, shape) for shape in shapes}


def _shape_of(target: DatabaseOrTransaction, registry: Registry, definition: Definition) -> Shape | None:
    """None, and a line in the log, for a definition that this release cannot read."""
    try:
        return shape_of(registry, definition)
    except DefinitionUnreadable as error:
        database = as_database(target.db if is_transaction(target) else target)
        database.troubles.met(_log, f"the queue {definition.name!r} is left out of the statistics", error)
        return None


def _statistics_of(target: DatabaseOrTransaction, shape: Shape) -> Statistics:
    database = as_database(target.db if is_transaction(target) else target)
    parts = looking.parts_of(database, shape)
    found = run(target, lambda tr: parts.look_at_all(tr, looking.statistics_in))
    if not is_transaction(target):
        looking.sweep_a_batch(database, parts)
    return found


def _definitions(db: DatabaseOrTransaction, registry: Registry) -> list[Definition]:
    found: list[Definition] = []
    while more := registry.names(db, found[-1].name if found else ""):
        found += more
    return found
