"""Members of groups: each change of a task counts for its groups, in its own transaction.

All writes are blind, so members never conflict with one another: atomic adds to the counts of the group and
of the queue, the entry of the member, and the group's one key of doubt. A sweep that finds a doubt reads the
counts serialisably (groups/settling.py). Thus no end is missed, and the task of `then` starts once.

A member counts once. If its group does not wait for buried tasks, its burial counts it as failed, and its
record tells so. After a kick, an ack counts it as done in place of failed; every other end changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from fdbqueue.core.partitions.keys import EPOCH_BYTES
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.feature import ACKED, End, Feature, Site
from fdbqueue.tasks.records.groups import NO_MEMBERS, checked_group, counts_added, members_added
from fdbqueue.tasks.records.keys import Extra, Member, Record


@dataclass
class _Sums:
    """The changes of counts: of groups, and of the members of the queue by epoch and group."""

    groups: defaultdict[bytes, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    members: defaultdict[tuple[int, bytes], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    doubts: set[bytes] = field(default_factory=set)
    entered: set[bytes] = field(default_factory=set)
    """Groups with new members in the queue."""

    def add(self, member: Member, name: str, change: int) -> None:
        """Change a count that a group and its members have alike."""
        self.groups[member.group][name] += change
        self.members[member.epoch, member.group][name] += change

    def write(self, site: Site) -> None:
        tr = site.tr
        for group, changes in self.groups.items():
            if any(changes.values()):
                tr.add(site.root.group_counts(group), counts_added(changes))
        for (epoch, group), changes in self.members.items():
            if any(changes.values()):
                key = site.shared.members_of(epoch, group)
                tr.add(key, members_added(changes))
                if changes["members"] < 0:
                    tr.compare_and_clear(key, NO_MEMBERS)
        for group in self.entered:
            tr.set(site.root.group_spread(group, site.queue_id), site.queue.encode())
        for group in self.doubts:
            tr.set(site.root.doubt(group), b"")


def groups_of(record: Record) -> tuple[Member, ...]:
    return () if record.extra is None else record.extra.groups


def with_groups(record: Record, groups: tuple[Member, ...]) -> Record:
    return replace(record, extra=replace(record.extra or Extra(), groups=groups))


def asked(group: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001  # as all of feature.ASKED
    return {"groups": (Member(checked_group(group)),)}


class Members(Feature):
    def entered(self, site: Site, records: Sequence[Record], arrived: bool) -> None:
        """Count new tasks. `arrived`: they come from another queue, where they have been counted."""
        sums = _Sums()
        for record in records:
            for member in groups_of(record):
                _enter(site, sums, record.id, member, arrived)
        sums.write(site)

    def withheld(self, site: Site, records: Sequence[Record]) -> Sequence[Record]:
        """Those of cancelled groups. Reads: a key for each group, together."""
        asked = {group: site.tr.get(site.root.group_cancelled(group)) for group in groups_in(records)}
        over = {group for group, cancelled in asked.items() if cancelled.present()}
        return [record for record in records if not over.isdisjoint(groups_in([record]))]

    def moved(self, site: Site, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        """Count the members. Return `news`, where a burial that counts is marked.

        Writes: the counts of their groups, blindly.
        """
        sums, marked = _Sums(), list(news)
        for at, (old, new) in enumerate(zip(olds, news, strict=True)):
            if groups_of(old) or groups_of(new):
                marked[at] = _moved(site, sums, old, new)
        sums.write(site)
        return marked

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:
        """Writes: as `moved`."""
        sums = _Sums()
        for record in records:
            for member in groups_of(record):
                _end(site, sums, record, member, end.outcome == ACKED)
        sums.write(site)

    def cleared(self, site: Site) -> None:
        """Leave the members to the sweeps of groups: their counts belong to an earlier epoch from now on.

        Reads: the first counts, and the epoch if there are any, serialisably.
        Conflicts: a put of a member.
        """
        tr, shared = site.tr, site.shared
        if not tr.get_range(shared.members.start, shared.members.stop, limit=1).to_list():
            return
        epoch = (epoch_of(tr.get(shared.epoch).value) + 1).to_bytes(EPOCH_BYTES, "big")
        tr.set(shared.epoch, epoch)
        tr.set(site.root.lost_members(site.queue_id), epoch)
        tr.clear_range(shared.all_member.start, shared.all_member.stop)


def _enter(site: Site, sums: _Sums, id_: bytes, member: Member, arrived: bool = False) -> None:
    sums.members[member.epoch, member.group]["members"] += 1
    if not arrived:
        sums.groups[member.group]["put"] += 1
    elif member.counted:
        sums.members[member.epoch, member.group]["counted"] += 1
    site.tr.set(site.shared.member(member.group, id_), b"")
    sums.entered.add(member.group)


def leave(site: Site, records: Sequence[Record]) -> None:
    """Count tasks off that go to another queue, and stay members."""
    sums = _Sums()
    for record in records:
        for member in groups_of(record):
            _leave(site, sums, record, member)
            if member.counted:
                sums.members[member.epoch, member.group]["counted"] -= 1
    sums.write(site)


def _leave(site: Site, sums: _Sums, old: Record, member: Member) -> None:
    sums.members[member.epoch, member.group]["members"] -= 1
    if old.state == TaskState.BURIED:
        sums.add(member, "buried", -1)
    site.tr.clear(site.shared.member(member.group, old.id))


def _end(site: Site, sums: _Sums, old: Record, member: Member, is_done: bool) -> None:
    _leave(site, sums, old, member)
    counts = sums.groups[member.group]
    if member.counted:
        sums.add(member, "counted", -1)
        if is_done:
            counts["done"] += 1
            counts["failed"] -= 1
    else:
        counts["done" if is_done else "failed"] += 1
    sums.doubts.add(member.group)


def _moved(site: Site, sums: _Sums, old: Record, new: Record) -> Record:
    """`new`, with the marks of its groups. A group that only `new` has begins to count it."""
    before = {member.group for member in groups_of(old)}
    marked: list[Member] = []
    is_buried, was_buried = new.state == TaskState.BURIED, old.state == TaskState.BURIED
    for member in groups_of(new):
        is_new = member.group not in before
        if is_new:
            _enter(site, sums, new.id, member)
        if buried := is_buried - (was_buried and not is_new):
            sums.add(member, "buried", buried)
        counts_now = is_buried and not member.holds and not member.counted
        if counts_now:
            sums.add(member, "counted", 1)
            sums.groups[member.group]["failed"] += 1
            sums.doubts.add(member.group)
        marked.append(replace(member, counted=True) if counts_now else member)
    return with_groups(new, tuple(marked)) if marked != list(groups_of(new)) else new


def without_groups(record: Record) -> Record:
    return with_groups(record, ()) if groups_of(record) else record


def epoch_of(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")


def groups_in(records: Sequence[Record]) -> Iterator[bytes]:
    yield from dict.fromkeys(member.group for record in records for member in groups_of(record))
