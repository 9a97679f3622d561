"""Shifts: a change of several tasks as changes of their task keys. Pure functions over values."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fdbqueue.core.task import TaskState
from fdbqueue.tasks.records.keys import Record
from fdbqueue.tasks.records.statistics import LIVE_OF


@dataclass
class Shift:
    enter: list[Record] = field(default_factory=list)
    leave: list[Record] = field(default_factory=list)
    took: list[Record] = field(default_factory=list)
    freed: int = 0
    numbers: Counter[str] = field(default_factory=Counter)

    @property
    def changes_state(self) -> bool:
        return bool(self.leave or self.took or self.freed)


def shifts_by_key(olds: Sequence[Record], news: Sequence[Record], counts_taken: bool) -> dict[bytes, Shift]:
    """The change from `olds` to `news`. `counts_taken`: the end of a lease changes the state of its key."""
    shifts: dict[bytes, Shift] = {}
    was = {record.id: record.state for record in olds}
    becomes = {record.id: record.state for record in news}

    def of(record: Record) -> Shift:
        shift = shifts.get(record.key)
        if shift is None:
            shift = shifts[record.key] = Shift()
        return shift

    for record in olds:
        of(record).numbers[LIVE_OF[record.state]] -= 1
        if record.state == TaskState.READY:
            of(record).leave.append(record)
        elif counts_taken and _no_longer(TaskState.TAKEN, record, becomes):
            of(record).freed += 1
    for record in news:
        of(record).numbers[LIVE_OF[record.state]] += 1
        if record.state == TaskState.READY:
            of(record).enter.append(record)
        elif _no_longer(TaskState.TAKEN, record, was):
            of(record).took.append(record)
    return shifts


def _no_longer(state: str, record: Record, other: Mapping[bytes, str]) -> bool:
    return record.state == state and other.get(record.id) != state
