"""A commit: the values of each key before and after it, all rows, and the tasks of one queue as records."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from sortedcontainers import SortedDict

from fdbqueue.core import limits
from fdbqueue.core.rows import Row, Seen, Under
from fdbqueue.core.task import TaskState
from fdbqueue.embedded import layout
from fdbqueue.embedded.writes import CommitRequest, place, stamp
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import CALL_NAMES, Record, TaskKeys, calls_in, sound_record
from fdbqueue.testing.trace import Commit


class Values(NamedTuple):
    """The values of a key before and after a commit; None for a key that is not there."""

    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Step:
    """The keys of one queue, or of the root, that a commit has changed."""

    commit: Commit
    changes: Mapping[bytes, Values]
    cleared: Sequence[tuple[bytes, bytes]] = ()
    """The ranges that it has cleared."""
    unseen: Sequence[bytes] = ()
    """The changed keys with values that other commits have written since its read version."""
    kept: Sequence[bytes] = ()
    """The keys that it has written with the values that they had."""

    def is_cleared(self, key: bytes) -> bool:
        """True if the commit has cleared a range with the key."""
        return any(begin <= key < end for begin, end in self.cleared)


class Mirror(Seen):
    """What the checks of a verification see: every key, at the version of the last commit."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self._stored: SortedDict = SortedDict()
        self.unseen: list[bytes] = []
        """The keys that the last commit has changed, with values written since its read version."""
        self.kept: list[bytes] = []
        """The keys that the last commit has written, with the values that they had."""
        self._since: dict[bytes, int] = {}
        """The version of the last change of each key."""

    def value(self, key: bytes) -> bytes | None:
        found: bytes | None = self._stored.get(key)
        return found

    def rows(self, keys: Under) -> Sequence[Row]:
        return list(islice(self.under(keys.start, keys.stop), keys.limit or limits.VERIFIED_ROWS_MAX))

    def under(self, start: bytes, stop: bytes) -> Iterator[Row]:
        for key in self.keys_in(start, stop):
            yield Row(key, self._stored[key])

    @classmethod
    def holding(cls, rows: Mapping[bytes, bytes]) -> "Mirror":
        """Of a database that has these rows."""
        made = cls()
        made._stored.update(rows)
        return made

    def copied(self) -> dict[bytes, bytes]:
        """The rows as they are now."""
        return dict(self._stored)

    def keys_in(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        keys: Iterator[bytes] = self._stored.irange(start, stop, (True, False))
        return keys

    def _changed_since(self, keys: Iterable[bytes], version: int) -> list[bytes]:
        """The keys with values that were written after a version."""
        return [key for key in keys if self._since.get(key, 0) > version]

    def follow(self, txn: Any, request: CommitRequest) -> dict[bytes, Values]:
        """Take over the writes of the last commit, which `txn` sees. Return the keys that have changed."""
        changed: dict[bytes, Values] = {}
        self.kept = []
        for key in self._written(request):
            before, after = self._stored.get(key), layout.get(txn, key)
            if before != after:
                changed[key] = Values(before, after)
            elif after is not None:
                self.kept.append(key)
        self.unseen = self._changed_since(changed, request.read_version or 0)
        assert request.version is not None
        for key, values in changed.items():
            self._since[key] = request.version
            if values.after is None:
                del self._stored[key]
            else:
                self._stored[key] = values.after
        return changed

    def _written(self, request: CommitRequest) -> set[bytes]:
        buffer = request.buffer
        keys = set(buffer.entries)
        for begin, end in buffer.cleared:
            keys.update(self.keys_in(begin, end))
        if buffer.stamped_keys:
            assert request.version is not None
            of_this = stamp(request.version, request.order)
            keys.update(place(body, offset, of_this) for body, offset, _ in buffer.stamped_keys)
        return keys


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
        if self.keys.counters not in step.changes:
            return Counter()
        before, after = step.changes[self.keys.counters]
        old, new = calls_in(before), calls_in(after)
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
