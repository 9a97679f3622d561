"""The ends of leases that a commit counts for the runs of fleets: at most one for each lease that it ends."""

from collections.abc import Iterator

from fdbqueue.core import root_keys as columns
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runs import ENDS
from fdbqueue.tasks.records.statistics import unpacked
from tests.system.audit.commit import Step
from tests.system.audit.model import TaskStep, is_taken, signed


def leases_ended(step: TaskStep) -> int:
    moves = step.moves.values()
    return sum(
        is_taken(old) and (new is None or new.token != old.token) for old, new in moves if old is not None
    )


def ends_counted(keys: RootKeys, step: Step, ended: int) -> Iterator[str]:
    """`ended`: the number of leases that the commit has ended in all queues."""
    counted = 0
    for key, values in step.changes.items():
        if keys.shape_of(key)[0] == columns.RUN:
            old, new = unpacked(ENDS, values.before), unpacked(ENDS, values.after)
            counted += sum(max(0, signed(new[name]) - signed(old[name])) for name in ENDS)
    if counted > ended:
        yield f"{ended} leases have ended, and {counted} ends are counted for runs"
