"""The tasks of one queue before and after a commit, decoded from the records that it has changed."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import CALL_NAMES, Record, TaskKeys, sound_record, unpacked
from fdbqueue.testing.trace import Commit
from tests.system.audit.commit import Step

_COUNTER_MAX = 2**63


class Move(NamedTuple):
    """The record of a task before and after a commit; None where the task is not there."""

    before: Record | None
    after: Record | None


@dataclass(frozen=True)
class TaskStep:
    """The effect of a commit on the tasks of one queue."""

    commit: Commit
    changes: Step
    moves: Mapping[bytes, Move]
    """The tasks that have changed, by id."""
    after: Mapping[bytes, Record]
    """All tasks after the commit, by id."""
    calls: Counter[str]
    """The calls that the commit has counted."""
    kept: frozenset[bytes] = frozenset()
    """The ids of the tasks that the commit has written as they were: it took them and gave them back."""

    def records(self) -> Iterator[Record]:
        """The changed records, as before and as after the commit."""
        for move in self.moves.values():
            yield from (record for record in move if record is not None)

    def written(self) -> Iterator[Record]:
        """The changed records as after the commit."""
        yield from (move.after for move in self.moves.values() if move.after is not None)

    def created(self) -> list[Record]:
        return [move.after for move in self.moves.values() if move.before is None and move.after is not None]

    def removed(self) -> list[Record]:
        return [move.before for move in self.moves.values() if move.after is None and move.before is not None]

    def changed(self) -> Iterator[tuple[Record, Record]]:
        """The tasks that were there before and are there after the commit."""
        for before, after in self.moves.values():
            if before is not None and after is not None:
                yield before, after

    def before(self) -> Iterator[Record]:
        """All tasks before the commit."""
        yield from (record for id_, record in self.after.items() if id_ not in self.moves)
        yield from (move.before for move in self.moves.values() if move.before is not None)


@dataclass
class Tasks:
    """The tasks of one queue as of the last commit."""

    checks: TaskChecks
    registered: bool
    """False for a FairQueue: its items have no leases, and no calls are counted."""
    stored: dict[bytes, Record] = field(default_factory=dict)

    @property
    def keys(self) -> TaskKeys:
        return self.checks.keys

    def follow(self, step: Step) -> TaskStep:
        moves: dict[bytes, Move] = {}
        for key, values in step.changes.items():
            column, rest = self.keys.parts_of(key)
            if column == records.TASK:
                moves[rest] = Move(self.stored.get(rest), sound_record(values.after, rest))
        for id_, move in moves.items():
            if move.after is None:
                self.stored.pop(id_, None)
            else:
                self.stored[id_] = move.after
        return TaskStep(step.commit, step, moves, self.stored, self._calls(step), kept_in(self.keys, step))

    def _calls(self, step: Step) -> Counter[str]:
        if self.keys.calls not in step.changes:
            return Counter()
        before, after = step.changes[self.keys.calls]
        old, new = unpacked(CALL_NAMES, before), unpacked(CALL_NAMES, after)
        counted = {name: signed(new[name] - old[name]) for name in CALL_NAMES}
        return Counter({name: number for name, number in counted.items() if number})


def kept_in(keys: TaskKeys, step: Step) -> frozenset[bytes]:
    """The ids of the tasks that the commit has written as they were."""
    return frozenset(rest for column, rest in map(keys.parts_of, step.kept) if column == records.TASK)


def signed(number: int) -> int:
    return number - 2 * _COUNTER_MAX if number >= _COUNTER_MAX else number


def is_taken(record: Record | None) -> bool:
    return record is not None and record.state == TaskState.TAKEN


def is_ready(record: Record | None) -> bool:
    return record is not None and record.state == TaskState.READY
