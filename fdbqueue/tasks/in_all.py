"""Verbs about many tasks, in the partitions of a queue one after the other; without partitions, in the queue.

All partitions change in one transaction. Reads and conflicts are those of the verb (verbs.py), in each. The
first change checks the queue before any of them writes: a transaction may go on behind a refusal, and commit.
"""

from collections.abc import Callable, Iterator, Sequence

from fdbqueue.core import limits
from fdbqueue.core.arguments import require_verb_batch
from fdbqueue.core.database import is_transaction
from fdbqueue.core.seam import DatabaseOrTransaction, engine_errors
from fdbqueue.tasks import verbs
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import OF_TASKS, feature_of_tasks
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.tasks.shape import Shape

TRANSACTION_TOO_LARGE = 2101

Under = Callable[[TaskKeys], slice]
"""A range of keys of a partition."""


def require_few(changes: Sequence[Change], under: Under) -> None:
    """Raises: TooMuchForOneTransaction if the ranges have more keys than one transaction may change."""
    found = 0
    for change in changes:
        found = _counted(change, under(change.shape.keys), found)


def _counted(change: Change, under: slice, besides: int) -> int:
    """Return the number of keys in the range `under` and `besides`, if one transaction may change them."""
    more = limits.VERB_BATCH + 1 - besides
    found = besides + len(change.tr.snapshot.get_range(under.start, under.stop, limit=more).to_list())
    require_verb_batch(found)
    return found


def kick(changes: Sequence[Change], count: int) -> tuple[int, int]:
    """Kick the first `count` buried tasks. Return how many were kicked, and how many were read."""
    kicked = looked_at = moved_bytes = 0
    for change in occupied(changes, lambda change: change.shape.keys.buried):
        more, looked = verbs.kick(change, count - looked_at, moved_bytes)
        kicked, looked_at = kicked + more, looked_at + looked
        moved_bytes += change.moved_bytes
        if looked_at == count:
            break
    return kicked, looked_at


def release_taken(changes: Sequence[Change], count: int) -> int:
    """Release the first taken tasks. Return the number of keys read."""
    looked_at = 0
    for change in occupied(changes, lambda change: change.shape.keys.taken):
        looked_at += verbs.release_taken(change, change.shape.keys.taken, count - looked_at)
        if looked_at == count:
            break
    return looked_at


def remove_first(changes: Sequence[Change], count: int) -> int:
    """Remove the first tasks of each partition. Return their number."""
    removed = 0
    for change in occupied(changes, lambda change: change.shape.keys.tasks):
        removed += verbs.remove_first(change, count - removed)
        if removed == count:
            break
    return removed


def truncate(changes: Sequence[Change]) -> None:
    for change in changes:
        verbs.truncate(change)
    first = changes[0]
    first.shape.tell_of_room(first.tr)
    first.tr.clear_range(first.shape.shared.all_moved.start, first.shape.shared.all_moved.stop)
    for feature in (*first.shape.features, *map(feature_of_tasks, OF_TASKS)):
        for change in changes if feature.in_each_part else (first,):
            feature.cleared(change.site)


def free_keys(target: DatabaseOrTransaction, shape: Shape) -> None:
    """Given a database, give back the slots of keys that removed tasks have held.

    No sweep may come to do it.
    """
    if shape.limits is not None and not is_transaction(target):
        for _ in shape.limits.walk_out(target):
            pass


def pause(changes: Sequence[Change]) -> None:
    for change in changes:
        verbs.pause(change)


def resume(changes: Sequence[Change]) -> None:
    for change in changes:
        verbs.resume(change)
    changes[0].ring()


def occupied(changes: Sequence[Change], under: Callable[[Change], slice]) -> list[Change]:
    """The partitions with keys in that range, judged by one key of each, in one round trip."""
    if len(changes) == 1:
        return list(changes)
    ranges = [under(change) for change in changes]
    asked = [
        change.tr.snapshot.get_range(keys.start, keys.stop, limit=1)
        for change, keys in zip(changes, ranges, strict=True)
    ]
    changes[0].require_queue()  # asked with the first keys: no round trip of its own
    return [change for change, first in zip(changes, asked, strict=True) if first.to_list()]


def in_batches(step: Callable[[int], int]) -> Iterator[int]:
    """Repeat `step` with a number of tasks until it has found none, and yield the number that it found.

    Tasks with long keys, many groups and limits may have too many bytes for one transaction: then the number
    is halved. An error of a single task is raised.
    """
    count = limits.VERB_BATCH
    while True:
        try:
            found = step(count)
        except engine_errors() as error:
            if error.code != TRANSACTION_TOO_LARGE or count == 1:
                raise
            count //= 2
            continue
        if not found:
            return
        yield found
