"""The ends of leases that a commit counts for the runs of fleets: at most one for each lease that it ends.

Leases of runs count whose tasks have ended, failed or are buried.
"""

from collections.abc import Iterator
from typing import NamedTuple

from fdbqueue.core import root_keys as columns
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.ending import RUN_ENDS, run_of
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.stored.records import Record, unpacked
from tests.system.audit.commit import Step
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import TaskStep, is_taken, signed


class Ended(NamedTuple):
    """The numbers of leases that a commit has ended, and of those that it has to count for runs."""

    leases: int = 0
    of_runs: int = 0


def leases_ended(step: TaskStep, keys: RootKeys, mirror: Mirror) -> Ended:
    moves = [
        (old, new)
        for old, new in step.moves.values()
        if old is not None and is_taken(old) and (new is None or new.token != old.token)
    ]
    counts = [_counts(old, new, step) and _has_row(old, keys, mirror) for old, new in moves]
    return Ended(len(moves), sum(counts))


def _counts(old: Record, new: Record | None, step: TaskStep) -> bool:
    """True if this end of a lease counts. A release without a failure may, and a truncate never does."""
    if new is None:
        return not step.calls["other"]
    return new.state == TaskState.BURIED or new.failures > old.failures


def _has_row(lease: Record, keys: RootKeys, mirror: Mirror) -> bool:
    """True if the lease belongs to a run that is there: its session is a member, or the supervisor lives."""
    run = run_of(lease.token)
    rows = (keys.membership(lease.session), keys.session(run))
    return bool(run) and any(mirror.value(row) is not None for row in rows)


def ends_counted(keys: RootKeys, step: Step, ended: Ended) -> Iterator[str]:
    """`ended`: the leases that the commit has ended in all queues."""
    counted = 0
    for key, values in step.changes.items():
        if keys.shape_of(key)[0] == columns.RUN:
            old, new = unpacked(RUN_ENDS, values.before), unpacked(RUN_ENDS, values.after)
            counted += sum(max(0, signed(new[name]) - signed(old[name])) for name in RUN_ENDS)
    if not ended.of_runs <= counted <= ended.leases:
        yield f"{counted} ends are counted, of {ended.leases} leases, of which {ended.of_runs} are of runs"
