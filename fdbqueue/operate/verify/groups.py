"""The checks of groups: rows and ends under a root, members in a queue, and the counts of both.

An entry of a member and its task name each other. The counts of a group are compared with those of its queues
at one version.
"""

from functools import partial
from typing import Any

from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import Check, Finder, Flaw, Row, Suspect
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks import group_settling
from fdbqueue.tasks.group_settling import Counts, counts_added, counts_of, epoch_of, members_of


class GroupChecks(Finder):
    """The keys of groups under a root."""

    def __init__(self, keys: RootKeys, mending: str) -> None:
        super().__init__(mending)
        self._keys = keys

    def row(self, row: Row, rest: list[Any]) -> Check:
        keys, group = self._keys, rest[0]
        group_row, cancelled = keys.group(group), keys.group_cancelled(group)
        sweeps = [keys.doubt(group), keys.cancelling(group)]
        seen = yield [group_row, keys.group_counts(group), cancelled, *sweeps]
        found = group_settling.readable_row(seen.value(group_row))
        if len(rest) > 1:
            if not seen.has(group_row):
                text = f"A row belongs to the group {group.hex()}, which does not exist."
                yield self.found(Flaw.STRAY, row, text)
        elif found is None:
            text = f"The group {group.hex()} cannot be read: it does not end."
            yield Suspect(Flaw.VALUE, row.key, text, "Put its tasks again, into another group.")
        elif not found.is_open or seen.has(cancelled):
            left, is_due = counts_of(seen.value(keys.group_counts(group))).left, any(map(seen.has, sweeps))
            if left <= 0 and not found.ended_us and not is_due:
                text = f"No member of the group {group.hex()} is left, and no sweep lets it end."
                yield self.found(Flaw.TIMER, row, text, {keys.doubt(group): b""})

    def over(self, row: Row, rest: list[Any]) -> Check:
        if len(rest) != 3:
            return
        group = self._keys.group(rest[-1])
        if not (yield [group]).has(group):
            text = f"A time belongs to the group {rest[-1].hex()}, which does not exist."
            yield self.found(Flaw.STRAY, row, text)


def compare_members(keys: RootKeys, group: bytes, mending: str, tr: Transaction) -> Suspect | None:
    """Compare the counts of a group with those of its queues, at one version. None, too, while a sweep has
    to count members off that a truncate has removed.

    Reads: by snapshot.
    """
    counts, members = _both(keys, group, tr)
    told = _stored(counts)
    if members is None or told == members:
        return None
    text = f"The group {group.hex()} counts as stored {_told(told)}, and there are {_told(members)}."
    mend = partial(_correct, keys, group)
    return Suspect(Flaw.COUNTER, keys.group_counts(group), text, mending, mend)


def _stored(counts: Counts) -> dict[str, int]:
    """The members that a group counts as stored, by the names of the counts of its queues."""
    return {"members": counts.stored, "counted": counts.counted, "buried": counts.buried}


def _told(members: dict[str, int]) -> str:
    return f"{members['members']:,} members, {members['counted']:,} counted, {members['buried']:,} buried"


def _both(keys: RootKeys, group: bytes, tr: Transaction) -> tuple[Counts, dict[str, int] | None]:
    """The counts of a group, and the sums of those of its queues; None if these are not known."""
    snapshot, under = tr.snapshot, keys.spreads_of(group)
    stored = snapshot.get(keys.group_counts(group))
    ids = [keys.last_number_in(row.key) for row in snapshot.get_range(under.start, under.stop)]
    shared = [SharedKeys(keys.contents(id_)) for id_ in ids]
    markers = [snapshot.get(keys.lost_members(id_)) for id_ in ids]
    epochs = [snapshot.get(one.epoch) for one in shared]
    counts = counts_of(stored.value)
    if any(marker.present() for marker in markers):
        return counts, None
    asked = [
        snapshot.get(one.members_of(epoch_of(epoch.value), group))
        for one, epoch in zip(shared, epochs, strict=True)
    ]
    found = [members_of(value.value) for value in asked]
    return counts, {name: sum(one[name] for one in found) for name in group_settling.MEMBERS}


def _correct(keys: RootKeys, group: bytes, tr: Transaction) -> None:
    """Make the counts those of the queues. Members that are missing have failed; others were put, too."""
    tr.add_read_conflict_key(keys.group_counts(group))
    counts, members = _both(keys, group, tr)
    if members is not None:
        changes = {name: members[name] - _stored(counts)[name] for name in ("counted", "buried")}
        too_many = counts.left - (members["members"] - members["counted"])
        changes |= {"failed": max(0, too_many), "put": max(0, -too_many)}
        tr.add(keys.group_counts(group), counts_added(changes))
        tr.set(keys.doubt(group), b"")
