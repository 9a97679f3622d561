"""Looks at groups: one of them, and lists of them."""

from collections.abc import Callable

from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import ReadTransaction
from fdbqueue.tasks.groups.progress import GroupProgress, progress_of
from fdbqueue.tasks.records.groups import counts_of, readable_row


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
