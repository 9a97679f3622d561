"""The checks of members of groups in one queue: entries and tasks name each other, and are counted."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from fdbqueue import limits
from fdbqueue.aside import DAMAGED
from fdbqueue.partitions.keys import EPOCH, GROUP_BYTES, MEMBER, MEMBERS
from fdbqueue.records.groups import NO_MEMBERS, counts_added, members_added, members_of
from fdbqueue.records.keys import Record, id_text, partition_of, record_of, sound_record
from fdbqueue.seam import Transaction
from fdbqueue.tasks.members import epoch_of, groups_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.verification import Flaw
from fdbqueue.verifying.asking import Ask, Row, Seen, Under
from fdbqueue.verifying.slices import Excuse, Mend, Suspect

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
        """End the membership of a task that is gone, as failed."""
        counter = self._shared.members_of(epoch_of(tr.get(self._shared.epoch).value), group)
        tr.clear(key)
        tr.add(counter, members_added({"members": -1}))
        tr.compare_and_clear(counter, NO_MEMBERS)
        tr.add(self._shape.root.group_counts(group), counts_added({"failed": 1}))
        tr.set(self._shape.root.doubt(group), b"")

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


def _set(key: bytes) -> Mend:
    return lambda tr: tr.set(key, b"")
