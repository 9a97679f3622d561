"""Looking at the numbers of a task queue; and the batch that a process sweeps where it looks.

Where no worker runs, nothing else would sweep: a task that is due would be told as delayed for ever.
"""

from contextlib import suppress

from fdbqueue import limits
from fdbqueue.database import Database, engine_errors, run
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.errors import FdbQueueError
from fdbqueue.records.keys import id_in
from fdbqueue.records.statistics import Statistics, statistics_of
from fdbqueue.seam import Range
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.key_statistics import KeyStatistics, busiest_keys
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import TaskSource


def statistics_in(change: Change) -> Statistics:
    """The counters, and how many delayed tasks are due, among limits.DUE_COUNTED_MAX timers.

    Reads: by snapshot, the counters and the timers that have run out; then the tasks of those timers.
    Conflicts: none.
    Round trips: 1; 2 while a delayed task may be due.
    """
    tr, keys = change.tr, change.shape.keys
    live, calls = tr.snapshot.get(keys.live), tr.snapshot.get(keys.calls)
    until = keys.timers_until(change.now_us)
    timers = tr.snapshot.get_range(until.start, until.stop, limit=limits.DUE_COUNTED_MAX)
    unreadable = change.shape.aside.ask_count(tr)
    found = statistics_of(live.value, calls.value)
    found["tasks"]["unreadable"] = unreadable()
    found["tasks"]["due"] = _due(change, timers) if found["tasks"]["delayed"] else 0
    return found


def key_statistics_in(change: Change, discipline: Keyed, limit: int) -> list[KeyStatistics]:
    """The busiest task keys. Reads: by snapshot. Conflicts: none."""
    return busiest_keys(change.tr, discipline, limit, change.now_us)


def source_of(database: Database, shape: Shape) -> TaskSource:
    """A source for one look: a process that looks at many queues does not look after them all."""
    return TaskSource(shape, database.runtime, Callbacks(database))


def sweep_a_batch(database: Database, source: TaskSource) -> None:
    """Sweep up to limits.DUE_BATCH tasks, in one attempt.

    The caller already has its answer, so this must not raise: a conflict, a full disk and an unreadable
    payload are left to the next sweep. The keeper of a process with a session reports them.
    """
    with suppress(FdbQueueError, *engine_errors()):
        run(database, source.tidy, retry_limit=0, timeout_s=limits.CLOSE_TIMEOUT_S)


def _due(change: Change, timers: Range) -> int:
    """Number of these timers that belong to tasks stored as delayed."""
    keys = change.shape.keys
    asked = [change.tr.snapshot.get(keys.delayed_at(id_in(timer.key))) for timer in timers]
    return sum(delayed.present() for delayed in asked)
