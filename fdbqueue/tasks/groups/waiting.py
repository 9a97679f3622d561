"""Waits for groups: a watch of the definition, which the end writes, or of the counts, which every end of a
member changes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import GroupNotFound, GroupTimeout
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Future, ReadTransaction, Transaction
from fdbqueue.tasks.records.groups import Counts, GroupRow, counts_of, readable_row
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


def ask_progress(tr: ReadTransaction, keys: RootKeys, group: bytes) -> Callable[[], GroupProgress | None]:
    """Ask for the progress of a group. The reply is None if there is no such group."""
    row, counts = tr.get(keys.group(group)), tr.get(keys.group_counts(group))
    cancelled = tr.get(keys.group_cancelled(group))

    def reply() -> GroupProgress | None:
        found = readable_row(row.value)
        if found is None:
            return None
        return progress_of(group, found, counts_of(counts.value), cancelled=cancelled.present())

    return reply


def groups_after(
    tr: ReadTransaction, keys: RootKeys, after: bytes, limit: int
) -> tuple[list[GroupProgress], bytes | None]:
    """The next groups in order of their ids, without unreadable ones, and the last id; None at the end.

    Reads: by snapshot, one key of each of `limit` groups, and then its rows.
    """
    found: list[bytes] = []
    start = keys.rows_of_group(after).stop if after else keys.groups.start
    while len(found) < limit and (first := tr.get_range(start, keys.groups.stop, limit=1).to_list()):
        group = keys.group_in(first[0].key)
        if group is None:  # a key that no group has
            start = first[0].key + b"\x00"
            continue
        found.append(group)
        start = keys.rows_of_group(group).stop
    asked = [ask_progress(tr, keys, group) for group in found]
    readable = [progress for reply in asked if (progress := reply()) is not None]
    return readable, found[-1] if len(found) == limit else None


def present(tr: Transaction, keys: RootKeys, group: bytes) -> GroupProgress:
    """The progress of a group, by snapshot. Raises: GroupNotFound."""
    found = ask_progress(tr.snapshot, keys, group)()
    if found is None:
        raise GroupNotFound(id=group.hex())
    return found


def wait_for_end(
    database: Database, keys: RootKeys, group: bytes, until: float, waiter: Waiter
) -> GroupProgress:
    """Raises: GroupTimeout, GroupNotFound; WaitStopped, DatabaseClosed, if the wait is ended."""
    found = _wait(database, keys, group, until, waiter, None)
    if found.ended is None:
        raise GroupTimeout(id=found.id, left=found.left, open="open" if found.open else "closed")
    return found


def wait_for_change(
    database: Database, keys: RootKeys, group: bytes, seen: GroupProgress, until: float, waiter: Waiter
) -> GroupProgress | None:
    """None if the group is as it was. Raises: as `wait_for_end`, but GroupTimeout."""
    found = _wait(database, keys, group, until, waiter, seen)
    return None if found == seen else found


def _wait(
    database: Database,
    keys: RootKeys,
    group: bytes,
    until: float,
    waiter: Waiter,
    seen: GroupProgress | None,
) -> GroupProgress:
    """Wait until the group is not as `seen`; without it, until its end. Return its last progress."""
    look = partial(_look, keys=keys, group=group, seen=seen)
    while True:
        found, watches = run(database, look)
        patience_s = until - database.runtime.monotonic()
        if not watches or patience_s <= 0:
            for watch in watches:
                watch.cancel()
            return found
        waiter.sleep(watches, min(limits.LOOK_EVERY_S, patience_s))


def _look(
    tr: Transaction, keys: RootKeys, group: bytes, seen: GroupProgress | None
) -> tuple[GroupProgress, list[Future]]:
    found = present(tr, keys, group)
    if seen is not None:
        rows = [keys.group(group), keys.group_counts(group), keys.group_cancelled(group)]
        return found, [tr.watch(key) for key in rows] if found == seen else []
    return found, [tr.watch(keys.group(group))] if found.ended is None else []
