"""Members of groups: each change of a task counts for its groups, in its own transaction.

All writes are blind, so members never conflict with one another: atomic adds to the counts of the group and
of the queue, the entry of the member, and the group's one key of doubt. A sweep that finds a doubt reads the
counts serialisably (group_settling.py). Thus no end is missed, and the task of `then` starts once.

A member counts once. If its group does not wait for buried tasks, its burial counts it as failed, and its
record tells so. After a kick, an ack counts it as done in place of failed; every other end changes nothing.

The rows of members of groups in a queue (rows.py) are their entries, and the counts of each group.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in, runtime_of
from fdbqueue.core.errors import ExportRefused, GroupClosed, GroupNotFound, InvalidArgument
from fdbqueue.core.partitions import EPOCH, EPOCH_BYTES, GROUP_BYTES, MEMBER, MEMBERS
from fdbqueue.core.rows import Check, Count, Flaw, OfColumn, Row, Tally, ask, claim_mending, readable
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.task import Reason, Task, TaskState, WaitedFor, Why
from fdbqueue.tasks.calls import Put
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.feature import ACKED, Answers, End, Feature, Filter, Go, NoRoom, Site, Stage
from fdbqueue.tasks.group_settling import (
    NO_MEMBERS,
    GroupRow,
    Then,
    checked_group,
    counts_added,
    counts_of,
    epoch_of,
    groups_in,
    groups_of,
    members_added,
    members_of,
    readable_row,
    row_to_bytes,
    with_groups,
    without_groups,
)
from fdbqueue.tasks.options import Draft
from fdbqueue.tasks.rows import FeatureRows, Told, command, task_in, unless_elsewhere
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import (
    NEVER_US,
    Extra,
    Member,
    Record,
    Statistics,
    id_bytes,
    id_in,
    id_text,
    record_of,
    sound_record,
)

GROUP_LEFT_OUT = "GroupLeftOut"
"""The class of failure of a task that waited for a group, in a queue that comes from an export."""


def _waiting(queue: str, record: Record, waited: WaitedFor | None) -> Reason:
    assert record.extra is not None  # it waits
    group = record.extra.waits.hex()
    if waited is None:
        text = f"It waits for the group {group}, which does not exist."
        return Reason(Why.WAITING, text, command(queue, "delete", id_text(record.id)))
    buried = f", {waited.buried:,} of them buried" if waited.buried else ""
    if waited.task is not None:
        text = f"It waits for the end of the task {waited.task}{', which is buried' if buried else ''}."
        return Reason(Why.WAITING, text, command(queue, "explain", waited.task))
    of = f"{waited.left:,} member{'s' * (waited.left != 1)} of it {'are' if waited.left != 1 else 'is'} left"
    text = f"It waits for the group {group}: {of}{buried}."
    if waited.open:
        return Reason(Why.WAITING, f"{text} The group is open.", f"fdbqueue group close {group}")
    return Reason(Why.WAITING, text, "Its members end.")


class MemberRows(FeatureRows):
    """An entry of a member and its task name each other; the queue counts its members of each group."""

    def __init__(self, shape: Shape, mending: str) -> None:
        super().__init__(shape, mending)
        self.groups: set[bytes] = set()
        """Groups with members in the queue, in the slices so far."""
        self.epoch = 0

    def shared(self) -> dict[int, OfColumn]:
        return {MEMBERS: self.counts_of, MEMBER: self.entry, EPOCH: self.nothing}

    def ask_statistics(self, tr: ReadTransaction) -> Callable[[], Statistics]:
        """The tasks of groups that were cancelled, and that sweeps have not gone through yet.

        Reads: the counts of the first limits.GROUPS_SWEPT_MAX such groups.
        """
        root, shared = self._shape.root, self._shared
        if self._keys.partition:
            return dict
        asked = tr.get_range(root.cancellings.start, root.cancellings.stop, limit=limits.GROUPS_SWEPT_MAX)

        def reply() -> Statistics:
            groups = [group for row in asked if (group := root.group_in(row.key)) is not None]
            epoch = epoch_of(tr.get(shared.epoch).value) if groups else 0
            counts = [tr.get(shared.members_of(epoch, group)) for group in groups]
            return {"tasks": {"cancelled": sum(members_of(count.value)["members"] for count in counts)}}

        return reply

    def ask_told(self, tr: ReadTransaction, record: Record, now_us: int) -> Callable[[], Told]:  # noqa: ARG002
        group = b"" if record.extra is None else record.extra.waits
        if not group:
            return Told
        stored, counts = tr.get(self._shape.root.group(group)), tr.get(self._shape.root.group_counts(group))

        def reply() -> Told:
            row, found = readable_row(stored.value), counts_of(counts.value)
            parent = id_text(row.parent) if row is not None and row.parent else None
            waited = (
                None if row is None else WaitedFor(group.hex(), parent, found.left, found.buried, row.is_open)
            )
            return Told({"waits_for": waited}, [_waiting(self._shape.name, record, waited)])

        return reply

    def leaving(self, record: Record, leave_out: bool) -> Record:
        """A task without its groups. One that waits is buried, where an operator finds it."""
        waits = record.extra is not None and record.extra.waits
        if (waits or groups_of(record)) and not leave_out:
            task = f"its task {id_text(record.id)}"
            reason = f"{task} belongs to a group, or waits for one; --leave-out leaves groups out"
            raise ExportRefused(name=self._shape.name, reason=reason)
        free = without_groups(record)
        if not waits or free.extra is None:
            return free
        extra = replace(free.extra, waits=b"")
        return replace(free, state=TaskState.BURIED, until_us=NEVER_US, error=GROUP_LEFT_OUT, extra=extra)

    def note(self, column: int, row: Row, rest: bytes) -> None:
        if column == EPOCH:
            self.epoch = epoch_of(row.value)
        elif len(self.groups) < limits.VERIFIED_TASK_KEYS_MAX:
            epoch, group = self._shared.members_parts(row.key) if column == MEMBERS else (None, rest)
            if epoch is None or epoch == self.epoch or not self.epoch:
                self.groups.add(group[:GROUP_BYTES])

    def counts_of(self, row: Row, _: bytes) -> Check:
        group, counts = self._shared.members_parts(row.key)[1], members_of(row.value)
        if not counts["members"] and any(counts.values()):
            text = (
                f"The queue counts no member of the group {group.hex()}, and yet {counts['counted']:,}"
                f" counted and {counts['buried']:,} buried ones."
            )
            yield self.found(Flaw.COUNTER, row, text)

    def entry(self, row: Row, rest: bytes) -> Check:
        group, id_ = rest[:GROUP_BYTES], rest[GROUP_BYTES:]
        task = task_in(self._shape, id_)
        if not _may_be_member((yield [task]).value(task), group):
            text = f"The group {group.hex()} counts the task {id_text(id_)}, which is no member of it."
            mend = partial(self._count_off, row.key, group)
            excuses = unless_elsewhere(self._shape, id_, lambda value: _may_be_member(value, group))
            yield self.found(Flaw.STRAY, row, text, mend, excuses)

    def task(self, row: Row, record: Record) -> Check:
        groups = [member.group for member in groups_of(record)]
        keys = [self._shared.member(group, record.id) for group in groups]
        seen = yield keys
        for group, key in zip(groups, keys, strict=True):
            if not seen.has(key):
                text = (
                    f"The task {id_text(record.id)} is a member of the group {group.hex()}, which has"
                    " no entry of it: a cancel does not find it."
                )
                yield self.found(Flaw.STATE, row, text, {key: b""})

    def shared_counts(self) -> Iterator[Count]:
        for group in sorted(self.groups):
            counter = self._shared.members_of(self.epoch, group)
            tally = Tally({"members": self._shared.members_in(group)}, counter, self._keys.has_shape)
            yield Count(
                f"members of the group {group.hex()}",
                tally,
                lambda value: members_of(value)["members"],
                lambda difference: members_added({"members": difference}),
                goes_at_zero=True,
            )

    def _count_off(self, key: bytes, group: bytes, tr: Transaction) -> None:
        """End the membership of a task that is gone: as failed, if its burial has not counted so."""
        counter = self._shared.members_of(epoch_of(tr.get(self._shared.epoch).value), group)
        marks = self._lost_marks(tr, counter, group)
        if marks is None:
            return
        gone = {name: -number for name, number in marks.items()}
        tr.clear(key)
        tr.add(counter, members_added({"members": -1} | gone))
        tr.compare_and_clear(counter, NO_MEMBERS)
        tr.add(self._shape.root.group_counts(group), counts_added({"failed": 1 - marks["counted"]} | gone))
        tr.set(self._shape.root.doubt(group), b"")

    def _lost_marks(self, tr: Transaction, counter: bytes, group: bytes) -> Counter[str] | None:
        """The marks of a member that is gone: 1 for each count that is larger than stored members explain.
        None if limits.COUNTED_S is too short to tell whether it counts as failed.
        """
        claim_mending(tr, counter)
        told = members_of(tr.snapshot.get(counter).value)
        left = Counter({name: told[name] for name in ("counted", "buried")})
        if self._explain(tr, group, left):
            return Counter(list(+left))
        return None if left["counted"] > 0 else Counter()

    def _explain(self, tr: Transaction, group: bytes, left: Counter[str]) -> bool:
        """Subtract the marks of stored members, as long as there are any left. False if the time is over."""
        now, after = runtime_of(tr).monotonic, b""
        until = now() + limits.COUNTED_S
        while +left:
            under = self._shared.members_in(group, after)
            rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.COUNTED_ROWS)
            ids = [id_in(row.key) for row in rows]
            if not ids:
                break
            for record in self._records(tr, ids):
                left.subtract(_marks_of(record, group))
            after = ids[-1]
            if now() >= until:
                return not +left
        return True

    def _records(self, tr: Transaction, ids: Sequence[bytes]) -> Iterator[Record]:
        """The readable records of these tasks, in whatever partitions they are."""
        found = self._values(tr, {task_in(self._shape, id_): id_ for id_ in ids})
        plan = self._shape.plan
        if plan is not None and plan.may_have_moved:
            places = [(id_, number) for id_ in ids if id_ not in found for number in range(plan.high)]
            found |= self._values(tr, {task_in(self._shape, *place): place[0] for place in places})
        return (record for id_, value in found.items() if (record := sound_record(value, id_)) is not None)

    def _values(self, tr: Transaction, ids: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The values of these keys of tasks that are there, by the ids of the tasks."""
        seen = ask(tr.snapshot, self._shape.keys.prefix, ids)()
        return {id_: value for key, id_ in ids.items() if (value := seen.value(key)) is not None}


def _may_be_member(value: bytes | None, group: bytes) -> bool:
    """True, too, for a damaged record: that is a finding of its own."""
    record = readable(record_of, value)
    if record is None:
        return value is not None
    return sound_record(value, record.id) is not None and any(
        member.group == group for member in groups_of(record)
    )


def _marks_of(record: Record, group: bytes) -> Counter[str]:
    """The counts of the members of a group, beside their number, in which the task is."""
    is_buried = record.state == TaskState.BURIED
    return Counter(
        name
        for member in groups_of(record)
        if member.group == group
        for name, counts in (("counted", member.counted), ("buried", is_buried))
        if counts
    )


class ByGroup(Filter):
    """The members of a group in the queue."""

    def __init__(self, value: Any) -> None:
        self._group = checked_group(value)

    def ids(self, change: Change, after: bytes, most: int) -> list[bytes]:
        under = change.shape.shared.members_in(self._group, after)
        return [id_in(row.key) for row in change.tr.snapshot.get_range(under.start, under.stop, limit=most)]

    def matches(self, record: Record, state: str, now_us: int) -> bool:  # noqa: ARG002  # a member in each state
        return any(member.group == self._group for member in groups_of(record))


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
