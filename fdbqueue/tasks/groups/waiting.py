"""Waits for groups: a watch of the definition, which the end writes, or of the counts, which every end of a
member changes.
"""

from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import GroupNotFound, GroupTimeout
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.core.waiters import Waiter
from fdbqueue.tasks.groups.looking import ask_progress
from fdbqueue.tasks.groups.progress import GroupProgress


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
