"""The checks of groups: rows and ends under a root, members in a queue, and the counts of both.

An entry of a member and its task name each other. The counts of a group are compared with those of its queues
at one version.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.partitions.keys import EPOCH, GROUP_BYTES, MEMBERS, SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.checks import Check, Finder, OfShape, Row, Suspect, claim_mending, readable
from fdbqueue.operate.verify.partitions import task_in, unless_elsewhere
from fdbqueue.operate.verify.slices import ask
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.members import epoch_of, groups_of
from fdbqueue.tasks.records import groups as counters
from fdbqueue.tasks.records.groups import Counts, counts_added, counts_of, members_added, members_of
from fdbqueue.tasks.records.keys import Record, id_in, id_text, record_of, sound_record
from fdbqueue.tasks.shape import Shape


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
        found = counters.readable_row(seen.value(group_row))
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


class MemberChecks(OfShape):
    """The members of groups in one queue."""

    def __init__(self, shape: Shape, mending: str) -> None:
        super().__init__(shape, mending)
        self.groups: set[bytes] = set()
        """Groups with members in the queue, in the slices so far."""
        self.epoch = 0

    def note(self, column: int, row: Row, rest: bytes) -> None:
        if column == EPOCH:
            self.epoch = epoch_of(row.value)
        elif len(self.groups) < limits.VERIFIED_TASK_KEYS_MAX:
            epoch, group = self._shared.members_parts(row.key) if column == MEMBERS else (None, rest)
            if epoch is None or epoch == self.epoch or not self.epoch:
                self.groups.add(group[:GROUP_BYTES])

    def counts(self, row: Row, _: bytes) -> Check:
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

    def _count_off(self, key: bytes, group: bytes, tr: Transaction) -> None:
        """End the membership of a task that is gone: as failed, if its burial has not counted so."""
        counter = self._shared.members_of(epoch_of(tr.get(self._shared.epoch).value), group)
        marks = self._lost_marks(tr, counter, group)
        if marks is None:
            return
        gone = {name: -number for name, number in marks.items()}
        tr.clear(key)
        tr.add(counter, members_added({"members": -1} | gone))
        tr.compare_and_clear(counter, counters.NO_MEMBERS)
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
    return counts, {name: sum(one[name] for one in found) for name in counters.MEMBERS}


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
