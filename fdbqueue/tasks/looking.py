"""Looking at the numbers of task queues; and the batch that a process sweeps where it looks.

Where no worker runs, nothing else would sweep: a task that is due would be told as delayed for ever.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, as_database, is_transaction, run
from fdbqueue.core.errors import DefinitionUnreadable, FdbQueueError
from fdbqueue.core.logger import logger
from fdbqueue.core.partitions import Partition, PartitionState, Plan
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import DatabaseOrTransaction, Range, engine_errors
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.kinds import is_kind
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.records.keys import id_in
from fdbqueue.tasks.records.statistics import CALLS, LIVE, Statistics, statistics_of, summed, unpacked
from fdbqueue.tasks.rows import rows_in_use
from fdbqueue.tasks.shape import Shape, shape_of

_log = logger("fdbqueue")


def partitions_in(changes: Sequence[Change]) -> list[Partition]:
    """Reads: the counters and flags, by snapshot. Round trips: 1."""
    asked = [_ask(change) for change in changes]
    return [reply() for reply in asked]


def _ask(change: Change) -> Callable[[], Partition]:
    keys, snapshot, plan = change.shape.keys, change.tr.snapshot, change.plan
    live, calls = snapshot.get(keys.live), snapshot.get(keys.calls)
    flag = snapshot.get(change.shape.shared.flag(keys.partition))

    def reply() -> Partition:
        tasks, done = unpacked(LIVE, live.value), unpacked(CALLS, calls.value)
        return Partition(
            number=keys.partition,
            state=PartitionState.OPEN if plan is None else _state(plan, keys.partition),
            **tasks,
            puts=done["put"],
            takes=done["take"],
            may_be_ready=plan is None or bool(flag.present()),
            prefix=keys.prefix,
        )

    return reply


def _state(plan: Plan, number: int) -> PartitionState:
    if number < plan.count:
        return PartitionState.OPEN
    return PartitionState.CLOSING if number < plan.before else PartitionState.CLOSED


def statistics_in(changes: Sequence[Change]) -> Statistics:
    """The counters of all partitions, and how many delayed tasks are due, among limits.DUE_COUNTED_MAX timers
    of each; the tasks of groups that were cancelled, and that sweeps have not gone through yet.

    Reads: by snapshot, the counters and the timers that have run out; then the tasks of those timers, and the
    counts of the first limits.GROUPS_SWEPT_MAX groups that were cancelled.
    Conflicts: none.
    Round trips: 1; 2 while a delayed task may be due; 3 while sweeps go through a cancelled group.
    """
    asked = [(_ask_statistics(change), _ask_of_features(change)) for change in changes]
    found = summed([own() for own, _ in asked])
    for _, of_features in asked:
        for reply in of_features:
            _include(found, reply())
    return found


def _ask_of_features(change: Change) -> list[Callable[[], Statistics]]:
    return [rows.ask_statistics(change.tr.snapshot) for rows in rows_in_use(change.shape)]


def _include(found: Statistics, more: Statistics) -> None:
    for part, numbers in more.items():
        into = found.setdefault(part, {})
        for name, number in numbers.items():
            into[name] = into.get(name, 0) + number


def _ask_statistics(change: Change) -> Callable[[], Statistics]:
    tr, keys = change.tr, change.shape.keys
    live, calls = tr.snapshot.get(keys.live), tr.snapshot.get(keys.calls)
    until = keys.timers_until(change.now_us)
    timers = tr.snapshot.get_range(until.start, until.stop, limit=limits.DUE_COUNTED_MAX)
    unreadable = change.shape.aside.ask_count(tr) if not keys.partition else lambda: 0

    def reply() -> Statistics:
        found = statistics_of(live.value, calls.value)
        found["tasks"]["unreadable"] = unreadable()
        found["tasks"]["due"] = _due(change, timers) if found["tasks"]["delayed"] else 0
        return found

    return reply


def parts_of(database: Database, shape: Shape) -> Parts:
    """The parts for one look: a process that looks at many queues does not look after them all."""
    return Parts(shape, database, Callbacks(database))


def sweep_a_batch(database: Database, parts: Parts) -> None:
    """Sweep up to limits.DUE_BATCH tasks, in one attempt.

    The caller already has its answer, so this must not raise: a conflict, a full disk and an unreadable
    payload are left to the next sweep. The keeper of a process with a session reports them.
    """
    with suppress(FdbQueueError, *engine_errors()):
        run(database, parts.tidy, retry_limit=0, timeout_s=limits.CLOSE_TIMEOUT_S)


def _due(change: Change, timers: Range) -> int:
    keys = change.shape.keys
    asked = [change.tr.snapshot.get(keys.delayed_at(id_in(timer.key))) for timer in timers]
    return sum(delayed.present() for delayed in asked)


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
    parts = parts_of(database, shape)
    found = run(target, lambda tr: parts.look_at_all(tr, statistics_in))
    if not is_transaction(target):
        sweep_a_batch(database, parts)
    return found


def _definitions(db: DatabaseOrTransaction, registry: Registry) -> list[Definition]:
    found: list[Definition] = []
    while more := registry.names(db, found[-1].name if found else ""):
        found += more
    return found
