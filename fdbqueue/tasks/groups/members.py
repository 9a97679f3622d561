"""Members of groups: each change of a task counts for its groups, in its own transaction.

All writes are blind, so members never conflict with one another: atomic adds to the counts of the group and
of the queue, the entry of the member, and the group's one key of doubt. A sweep that finds a doubt reads the
counts serialisably (groups/settling.py). Thus no end is missed, and the task of `then` starts once.

A member counts once. If its group does not wait for buried tasks, its burial counts it as failed, and its
record tells so. After a kick, an ack counts it as done in place of failed; every other end changes nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import GroupClosed, GroupNotFound, InvalidArgument
from fdbqueue.core.partitions import EPOCH_BYTES
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import ACKED, Answers, End, Feature, Go, Site, Stage
from fdbqueue.tasks.groups.rows import MemberRows
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.puts import Put
from fdbqueue.tasks.records.groups import (
    NO_MEMBERS,
    GroupRow,
    Then,
    checked_group,
    counts_added,
    epoch_of,
    groups_in,
    groups_of,
    members_added,
    readable_row,
    row_to_bytes,
    with_groups,
    without_groups,
)
from fdbqueue.tasks.records.keys import Extra, Member, Record, id_bytes, id_text
from fdbqueue.tasks.sweep import as_of


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


def asked(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED. Raises: InvalidArgument."""
    _require_not_unique(options)
    return {"groups": (Member(checked_group(options["group"])),)}


def asked_to_wait(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """For a task that waits for the end of a group, or of the task `after`. The wish is the id of that task.

    Raises: InvalidArgument.
    """
    _require_not_unique(options)
    if options.get("delay", 0) != 0:
        wanted = "0 for a task that waits for others"
        raise InvalidArgument(name="delay", wanted=wanted, got=options["delay"])
    after = options.get("after")
    wish = None if after is None else id_bytes(after.id if isinstance(after, Task) else after)
    return {"waits": options["waits"], "wish": wish}


def _require_not_unique(options: Mapping[str, Any]) -> None:
    if options.get("unique") is not None:
        wanted = "None beside `group` and `after`: the task that has the key may have other groups"
        raise InvalidArgument(name="unique", wanted=wanted, got=options["unique"])


class Members(Feature):
    rows = MemberRows

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

    def left(self, site: Site, records: Sequence[Record]) -> Sequence[Record]:
        """Count tasks off that stay members."""
        sums = _Sums()
        for record in records:
            for member in groups_of(record):
                _leave(site, sums, record, member)
                if member.counted:
                    sums.members[member.epoch, member.group]["counted"] -= 1
        sums.write(site)
        return [without_groups(record) for record in records]

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


class Joining(Stage):
    """Puts of members of groups, and of tasks that wait for the end of another task.

    A task that is put `after` another waits for a closed group of one member, which is that other task.
    """

    goes_alone = True

    def put(self, put: Put, go: Go, drafts: Sequence[Draft]) -> Answers:
        """Reads: the groups, the epoch of the queue, and the task of `after`, serialisably.
        Writes: as a put; of `after`, that task and a group.
        Conflicts: the close and the cancel of a group, a truncate; of `after`, a change of that task.
        Raises: GroupNotFound, GroupClosed, InvalidArgument.
        Round trips: 1 more than a put; with `after`, 2 more.
        """
        tr, parts = put.tr, put.parts
        stored = tr.get(parts.shape.shared.epoch)
        rows = _open_groups(parts, tr, drafts)
        epoch = epoch_of(stored.value)
        ready = [_enrolled(draft, rows, epoch) for draft in drafts]
        first, id_ = ready[0], ready[0].wish
        if id_ is None:
            return go(ready)()
        assert first.extra is not None  # it waits
        group = first.extra.waits
        enrol = partial(_enrol, id_=id_, member=Member(group, epoch))
        elsewhere = partial(parts.within, tr, enrol, id_)
        verb = partial(_join, id_=id_, put=partial(go, ready), enrol=enrol, enrol_elsewhere=elsewhere)
        tasks = parts.within(tr, verb, id_)
        if tasks is None:  # it has ended
            return go([replace(first, extra=replace(first.extra, waits=b""))])()
        if not isinstance(tasks, NoRoom):
            _store(parts, tr, group, tasks[0], id_)
        return tasks


def _open_groups(parts: Parts, tr: Transaction, drafts: Sequence[Draft]) -> dict[bytes, GroupRow]:
    """The groups that new members of `drafts` join. Raises: GroupNotFound, GroupClosed.

    Members that arrive from another queue stay in cancelled groups. Their sweep begins again: it may have
    passed this queue.
    """
    root = parts.shape.root
    arrived = {member.group: None for draft in drafts if draft.arrives for member in groups_of(draft)}
    for group, marker in [(group, tr.get(root.group_cancelled(group))) for group in arrived]:
        if marker.present():
            tr.set(root.cancelling(group), b"")
    wanted = {member.group: None for draft in drafts if not draft.arrives for member in groups_of(draft)}
    asked = {group: (tr.get(root.group(group)), tr.get(root.group_cancelled(group))) for group in wanted}
    found: dict[bytes, GroupRow] = {}
    for group, (stored, cancelled) in asked.items():
        row = readable_row(stored.value)
        if row is None:
            raise GroupNotFound(id=group.hex())
        if not row.is_open or cancelled.present():
            raise GroupClosed(id=group.hex(), how="cancelled" if cancelled.present() else "closed")
        found[group] = row
    return found


def _enrolled(draft: Draft, rows: dict[bytes, GroupRow], epoch: int) -> Draft:
    """The draft, with the facts that its record tells of its groups."""
    if not groups_of(draft):
        return draft
    members = tuple(
        replace(member, epoch=epoch)
        if draft.arrives
        else Member(member.group, epoch, rows[member.group].holds)
        for member in groups_of(draft)
    )
    return replace(draft, extra=replace(draft.extra or Extra(), groups=members))


def _join(
    change: Change,
    id_: bytes,
    put: Callable[[], Callable[[], Answers]],
    enrol: Callable[[Change], bool],
    enrol_elsewhere: Callable[[], bool],
) -> Answers | None:
    """Put the tasks that wait for a stored task, and make that one a member of one more group. None if it has
    ended.

    The put comes first: without room for it, nothing is written. To make room, it may sweep the stored task,
    which then joins the present partition of its task key.
    """
    [record] = change.read([id_])
    change.require_sound(id_)
    if record is None or as_of(record, change.now_us) is None:
        return None
    if len(groups_of(record)) >= limits.GROUPS_OF_TASK_MAX:
        wanted = f"a task with fewer than {limits.GROUPS_OF_TASK_MAX} groups and tasks that wait for it"
        raise InvalidArgument(name="after", wanted=wanted, got=id_text(id_))
    tasks = put()()
    if not isinstance(tasks, NoRoom) and not enrol(change) and not enrol_elsewhere():
        raise conflict_in(change.tr)
    return tasks


def _enrol(change: Change, id_: bytes, member: Member) -> bool:
    [record] = change.read([id_])
    if record is not None:
        change.move([record], [with_groups(record, (*groups_of(record), member))])
    return record is not None


def _store(parts: Parts, tr: Transaction, group: bytes, task: Task, parent: bytes) -> None:
    shape = parts.shape
    then = Then(shape.definition.id, shape.name, id_bytes(task.id))
    row = GroupRow(parts.now_us(), is_open=False, then=then, parent=parent)
    tr.set(shape.root.group(group), row_to_bytes(row))
