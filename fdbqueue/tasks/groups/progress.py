"""GroupProgress: the public frozen value that tells how far a group is."""

from dataclasses import dataclass

from fdbqueue.tasks.records.groups import Counts, GroupRow
from fdbqueue.tasks.records.keys import id_text


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """The counts of a group at one version. Times are seconds since the epoch."""

    id: str
    total: int
    """Number of tasks that were put into it."""
    done: int
    """Those that were acked."""
    failed: int
    """Those that ended in another way; in a group that does not wait for buried members, these, too."""
    left: int
    """Those for which it waits."""
    buried: int
    """Members that are buried now."""
    open: bool
    """True before its close: it takes more members."""
    cancelled: bool
    """True after its cancel; `left` tells how many members no sweep has ended yet."""
    created: float
    ended: float | None
    """The time at which it ended; None before."""
    waits_for_buried: bool
    then: str | None = None
    """The id of the task that starts when it ends."""
    then_queue: str | None = None
    parent: str | None = None
    """The one member of a group that a put with `after` has made."""


def progress_of(group: bytes, row: GroupRow, counts: Counts, *, cancelled: bool) -> GroupProgress:
    return GroupProgress(
        id=group.hex(),
        total=counts.put,
        done=counts.done,
        failed=counts.failed,
        left=counts.left,
        buried=counts.buried,
        open=row.is_open and not cancelled,
        cancelled=cancelled,
        created=row.created_us / 1_000_000,
        ended=row.ended_us / 1_000_000 if row.ended_us else None,
        waits_for_buried=row.holds,
        then=None if row.then is None else id_text(row.then.task),
        then_queue=None if row.then is None else row.then.queue,
        parent=id_text(row.parent) if row.parent else None,
    )
