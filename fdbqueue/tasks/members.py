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

from msgspec.structs import replace

from fdbqueue.core.partitions.keys import EPOCH_BYTES, SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.records.groups import NO_MEMBERS, counts_added, members_added
from fdbqueue.tasks.records.keys import Extra, Member, Record


@dataclass(frozen=True)
class Roll:
    """The keys of the groups of one queue in a transaction."""

    tr: Transaction
    root: RootKeys
    shared: SharedKeys
    queue_id: int
    queue: str


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

    def write(self, roll: Roll) -> None:
        tr = roll.tr
        for group, changes in self.groups.items():
            if any(changes.values()):
                tr.add(roll.root.group_counts(group), counts_added(changes))
        for (epoch, group), changes in self.members.items():
            if any(changes.values()):
                key = roll.shared.members_of(epoch, group)
                tr.add(key, members_added(changes))
                if changes["members"] < 0:
                    tr.compare_and_clear(key, NO_MEMBERS)
        for group in self.entered:
            tr.set(roll.root.group_spread(group, roll.queue_id), roll.queue.encode())
        for group in self.doubts:
            tr.set(roll.root.doubt(group), b"")


def groups_of(record: Record) -> tuple[Member, ...]:
    return () if record.extra is None else record.extra.groups


def with_groups(record: Record, groups: tuple[Member, ...]) -> Record:
    return replace(record, extra=replace(record.extra or Extra(), groups=groups))


def enter(roll: Roll, records: Sequence[Record], arrived: bool = False) -> None:
    """Count new tasks as members of their groups. `arrived`: they come from another queue, where they have
    been counted for the groups.
    """
    sums = _Sums()
    for record in records:
        for member in groups_of(record):
            _enter(roll, sums, record.id, member, arrived)
    sums.write(roll)


def _enter(roll: Roll, sums: _Sums, id_: bytes, member: Member, arrived: bool = False) -> None:
    sums.members[member.epoch, member.group]["members"] += 1
    if not arrived:
        sums.groups[member.group]["put"] += 1
    elif member.counted:
        sums.members[member.epoch, member.group]["counted"] += 1
    roll.tr.set(roll.shared.member(member.group, id_), b"")
    sums.entered.add(member.group)


def leave(roll: Roll, records: Sequence[Record]) -> None:
    """Count tasks off that go to another queue, and stay members."""
    sums = _Sums()
    for record in records:
        for member in groups_of(record):
            _leave(roll, sums, record, member)
            if member.counted:
                sums.members[member.epoch, member.group]["counted"] -= 1
    sums.write(roll)


def _leave(roll: Roll, sums: _Sums, old: Record, member: Member) -> None:
    sums.members[member.epoch, member.group]["members"] -= 1
    if old.state == TaskState.BURIED:
        sums.add(member, "buried", -1)
    roll.tr.clear(roll.shared.member(member.group, old.id))


def follow(
    roll: Roll, olds: Sequence[Record], news: Sequence[Record], is_done: bool = False
) -> Sequence[Record]:
    """Count the members among tasks that go from `olds` to `news`; without counterparts, they have ended:
    acked if `is_done`.

    Return `news`, where a burial that counts is marked.
    Writes: the counts of their groups, blindly.
    """
    sums, marked = _Sums(), list(news)
    for at, old in enumerate(olds):
        if not news:
            for member in groups_of(old):
                _end(roll, sums, old, member, is_done)
        elif groups_of(old) or groups_of(news[at]):
            marked[at] = _moved(roll, sums, old, news[at])
    sums.write(roll)
    return marked


def _end(roll: Roll, sums: _Sums, old: Record, member: Member, is_done: bool) -> None:
    _leave(roll, sums, old, member)
    counts = sums.groups[member.group]
    if member.counted:
        sums.add(member, "counted", -1)
        if is_done:
            counts["done"] += 1
            counts["failed"] -= 1
    else:
        counts["done" if is_done else "failed"] += 1
    sums.doubts.add(member.group)


def _moved(roll: Roll, sums: _Sums, old: Record, new: Record) -> Record:
    """`new`, with the marks of its groups. A group that only `new` has begins to count it."""
    before = {member.group for member in groups_of(old)}
    marked: list[Member] = []
    is_buried, was_buried = new.state == TaskState.BURIED, old.state == TaskState.BURIED
    for member in groups_of(new):
        is_new = member.group not in before
        if is_new:
            _enter(roll, sums, new.id, member)
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


def truncated(roll: Roll) -> None:
    """Leave the members of a queue that is emptied to the sweeps of groups: their counts belong to an
    earlier epoch from now on.

    Reads: the first counts, and the epoch if there are any, serialisably.
    Conflicts: a put of a member.
    """
    tr, shared = roll.tr, roll.shared
    if not tr.get_range(shared.members.start, shared.members.stop, limit=1).to_list():
        return
    epoch = (epoch_of(tr.get(shared.epoch).value) + 1).to_bytes(EPOCH_BYTES, "big")
    tr.set(shared.epoch, epoch)
    tr.set(roll.root.lost_members(roll.queue_id), epoch)
    tr.clear_range(shared.all_member.start, shared.all_member.stop)


def groups_in(records: Sequence[Record]) -> Iterator[bytes]:
    """The groups of these tasks, each once."""
    yield from dict.fromkeys(member.group for record in records for member in groups_of(record))
