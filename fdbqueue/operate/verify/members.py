"""The checks of members of groups in one queue: entries and tasks name each other, and are counted."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.database import runtime_of
from fdbqueue.core.partitions.keys import EPOCH, GROUP_BYTES, MEMBER, MEMBERS
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under, ask
from fdbqueue.operate.verify.counting import claim_mending
from fdbqueue.operate.verify.slices import Excuse, Mend, Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.members import epoch_of, groups_of
from fdbqueue.tasks.records.groups import NO_MEMBERS, counts_added, members_added, members_of
from fdbqueue.tasks.records.keys import Record, id_in, id_text, partition_of, record_of, sound_record
from fdbqueue.tasks.shape import Shape

COLUMNS = (MEMBERS, MEMBER, EPOCH)


class MemberChecks:
    def __init__(self, shape: Shape, mending: str) -> None:
        self._shape = shape
        self._shared = shape.shared
        self._mending = mending
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

    # Entries.

    def asks(self, column: int, rest: bytes) -> Iterator[Ask]:
        if column == MEMBER:
            yield self._task(rest[GROUP_BYTES:])

    def judge(self, column: int, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if column == MEMBERS and _is_left_over(row.value):
            _, group = self._shared.members_parts(row.key)
            counts = members_of(row.value)
            text = (
                f"The queue counts no member of the group {group.hex()}, and yet {counts['counted']:,}"
                f" counted and {counts['buried']:,} buried ones."
            )
            yield Suspect(Flaw.COUNTER, row.key, text, self._mending, partial(_clear_left_over, row.key))
        if column != MEMBER:
            return
        group, id_ = rest[:GROUP_BYTES], rest[GROUP_BYTES:]
        if not _may_be_member(seen.value(self._task(id_)), group):
            text = f"The group {group.hex()} counts the task {id_text(id_)}, which is no member of it."
            mend = partial(self._count_off, row.key, group)
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, mend, self._elsewhere(id_, group))

    def _task(self, id_: bytes, partition: int | None = None) -> bytes:
        number = partition_of(id_) if partition is None else partition
        return self._shape.partition(number).keys.task(id_)

    def _elsewhere(self, id_: bytes, group: bytes) -> list[Excuse]:
        """It is no contradiction if the task has moved to another partition."""
        plan = self._shape.plan
        if plan is None or not plan.may_have_moved:
            return []

        def is_there(rows: Sequence[Row]) -> bool:
            return any(_may_be_member(row.value, group) for row in rows)

        tasks = [self._task(id_, number) for number in range(plan.high)]
        return [Excuse(Under(task, task + b"\x00"), is_there) for task in tasks]

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
        while +left and (ids := self._ids_in(tr, group, after)):
            for record in self._records(tr, ids):
                left.subtract(_marks_of(record, group))
            after = ids[-1]
            if now() >= until:
                return not +left
        return True

    def _ids_in(self, tr: Transaction, group: bytes, after: bytes) -> list[bytes]:
        under = self._shared.members_in(group, after)
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.COUNTED_ROWS)
        return [id_in(row.key) for row in rows]

    def _records(self, tr: Transaction, ids: Sequence[bytes]) -> Iterator[Record]:
        """The readable records of these tasks, in whatever partitions they are."""
        found = self._values(tr, {self._task(id_): id_ for id_ in ids})
        plan = self._shape.plan
        if plan is not None and plan.may_have_moved:
            places = [(id_, number) for id_ in ids if id_ not in found for number in range(plan.high)]
            found |= self._values(tr, {self._task(*place): place[0] for place in places})
        return (record for id_, value in found.items() if (record := sound_record(value, id_)) is not None)

    def _values(self, tr: Transaction, ids: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The values of these keys of tasks that are there, by the ids of the tasks."""
        seen = ask(tr.snapshot, self._shape.keys.prefix, ids)()
        return {id_: value for key, id_ in ids.items() if (value := seen.value(key)) is not None}

    # Tasks.

    def ask_task(self, record: Record) -> Iterable[Ask]:
        return [self._shared.member(member.group, record.id) for member in groups_of(record)]

    def judge_task(self, row: Row, record: Record, seen: Seen) -> Iterator[Suspect]:
        for member in groups_of(record):
            key = self._shared.member(member.group, record.id)
            if seen.value(key) is None:
                text = (
                    f"The task {id_text(record.id)} is a member of the group {member.group.hex()}, which has"
                    " no entry of it: a cancel does not find it."
                )
                yield Suspect(Flaw.STATE, row.key, text, self._mending, _set(key))


def members_in(value: bytes | None) -> int:
    return members_of(value)["members"]


def _is_left_over(value: bytes | None) -> bool:
    """True for counts of no members that tell of counted or buried ones."""
    counts = members_of(value)
    return not counts["members"] and any(counts.values())


def _clear_left_over(key: bytes, tr: Transaction) -> None:
    if _is_left_over(tr.get(key).value):
        tr.clear(key)


def _may_be_member(value: bytes | None, group: bytes) -> bool:
    """True, too, for a damaged record: that is a finding of its own."""
    if value is None:
        return False
    try:
        record = record_of(value)
    except DAMAGED:
        return True
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


def _set(key: bytes) -> Mend:
    return lambda tr: tr.set(key, b"")
