"""The rows of members of groups in a queue (rows.py): their entries, and the counts of each group."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.errors import ExportRefused
from fdbqueue.core.partitions import EPOCH, GROUP_BYTES, MEMBER, MEMBERS
from fdbqueue.core.rows import Check, Count, Flaw, OfColumn, Row, Tally, ask, claim_mending, readable
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.task import Reason, TaskState, WaitedFor, Why
from fdbqueue.tasks.reasons import command
from fdbqueue.tasks.records.groups import (
    NO_MEMBERS,
    counts_added,
    counts_of,
    epoch_of,
    groups_of,
    members_added,
    members_of,
    readable_row,
    without_groups,
)
from fdbqueue.tasks.records.keys import NEVER_US, Record, id_in, id_text, record_of, sound_record
from fdbqueue.tasks.records.statistics import Statistics
from fdbqueue.tasks.rows import FeatureRows, Told, task_in, unless_elsewhere
from fdbqueue.tasks.shape import Shape

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
