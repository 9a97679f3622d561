"""The order of takes: a take finds the first task of its kind's order, as of its read version (I4, I5).

It passes over a task only if that belongs to a request which waited when the take looked, and over an earlier
task of the same task key never. A task that the same commit takes and gives back is not passed over: the
session of its request has ended, for instance. The order is a model, apart from fdbqueue/tasks/disciplines.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from fdbqueue.core.task import TaskState
from fdbqueue.tasks.limits.lanes import keyed_limit, limits_named
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.discipline import Bag
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import Record, id_text
from tests.system.audit.line import LineStep, Requests
from tests.system.audit.model import TaskStep

Place = tuple[int, bytes]
_FIRST: Place = (-1, b"")


@dataclass
class Order:
    shape: Shape
    registered: bool
    _there_since: dict[bytes, int] = field(default_factory=dict)
    """The version in which each task came."""
    _ready_since: dict[bytes, int] = field(default_factory=dict)
    """The version in which each ready task became ready."""
    _key_since: dict[bytes, int] = field(default_factory=dict)
    """The version in which a task of each task key has changed last."""

    def judge(self, step: TaskStep, line: LineStep, requests: Requests) -> Iterator[str]:
        taken, seen = self._taken(step), step.commit.read_version
        yield from self.put_behind(step, requests, seen or 0)
        if taken and seen is not None:
            if self._is_keyed:
                yield from self.overtaken_in_key(step, taken, seen)
            passed = self._passed(step, taken, seen)
            if len(passed) > requests.items_asked_at(seen) - min(line.served, len(taken)):
                last = max(map(self.place, taken))[1]
                yield f"the task {id_text(last)} is taken before the task {id_text(min(passed)[1])}"
        self._note(step)

    def put_behind(self, step: TaskStep, requests: Requests, seen: int) -> Iterator[str]:
        """A new task stands behind all tasks that its put has seen, except for those that end with it, and
        behind the items of a FairQueue that lie ready for requests. An item that comes back keeps its place.
        """
        created = [record.id for record in step.created() if record.id not in requests.laid]
        if created:
            known = [id_ for id_, since in self._there_since.items() if since <= seen and id_ in step.after]
            if not self.registered:
                known += [id_ for id_, since in requests.laid.items() if since <= seen]
            last, first = max(known, default=b""), min(created)
            if first < last:
                yield f"the task {id_text(first)} is put before the task {id_text(last)}"

    @property
    def _is_keyed(self) -> bool:
        return isinstance(self.shape.discipline, Keyed)

    def place(self, record: Record) -> Place:
        return (record.pri if self.shape.kind.supports("pri") else 0), record.id

    def _taken(self, step: TaskStep) -> list[Record]:
        """The tasks that were ready, and that the commit has taken. Items of a FairQueue are gone then."""
        moves = ((before, after) for before, after in step.moves.values() if before is not None)
        return [
            before
            for before, after in moves
            if before.state == TaskState.READY
            and (
                after is None if not self.registered else after is not None and after.state == TaskState.TAKEN
            )
        ]

    def _waiting(self, step: TaskStep) -> Iterator[Record]:
        """The tasks that were ready, and still are, and have not expired; none that the commit gave back."""
        for record in step.after.values():
            is_there = record.state == TaskState.READY and record.expires_us > step.commit.now_us
            is_touched = record.id in step.moves or record.id in step.kept
            if is_there and record.id in self._ready_since and not is_touched:
                yield record

    def overtaken_in_key(self, step: TaskStep, taken: Sequence[Record], seen: int) -> Iterator[str]:
        """A task of a put that overlaps the take may stand before the second task that the take has seen."""
        last: dict[bytes, Place] = {}
        for record in taken:
            last[record.key] = max(self.place(record), last.get(record.key, (0, b"")))
        for record in self._waiting(step):
            is_known = self._there_since.get(record.id, seen) <= seen
            if is_known and record.key in last and self.place(record) < last[record.key]:
                overtook = id_text(last[record.key][1])
                yield f"the task {overtook} is taken before {id_text(record.id)} of the same task key"

    def _passed(self, step: TaskStep, taken: Sequence[Record], seen: int) -> list[Place]:
        """The places of the tasks that a take at the version `seen` must not have passed over."""
        if self.shape.kind.supports("cost"):
            return []  # the order of its task keys is that of their rounds
        if isinstance(self.shape.discipline, Bag):
            return []  # any task may be next
        waiting = [record for record in self._waiting(step) if self._ready_since[record.id] <= seen]
        if self._is_keyed:
            waiting = [record for record in waiting if self._is_open_head(step, record, seen)]
        return [
            self.place(record)
            for record in waiting
            if self.place(record) < max(map(self.place, _beside(record, taken)), default=_FIRST)
        ]

    def _is_open_head(self, step: TaskStep, record: Record, seen: int) -> bool:
        """True if the task was the first of a task key that was open, at `seen` and ever since.

        A transaction may end a lease after its take: it has opened the key then.
        """
        changed = {task.key for task in step.records()}
        if record.key in changed or self._key_since[record.key] > seen:
            return False
        others = [other for other in step.after.values() if other.key == record.key]
        taken = sum(other.state == TaskState.TAKEN for other in others)
        ready = (self.place(other) for other in others if other.state == TaskState.READY)
        return taken < self.shape.settings.key_concurrency and min(ready) == self.place(record)

    def _note(self, step: TaskStep) -> None:
        for id_, (before, after) in step.moves.items():
            if after is None:
                self._there_since.pop(id_, None)
            elif before is None:
                self._there_since[id_] = step.commit.version
            if after is None or after.state != TaskState.READY:
                self._ready_since.pop(id_, None)
            elif before is None or before.state != TaskState.READY:
                self._ready_since[id_] = step.commit.version
            for record in (before, after):
                if record is not None:
                    self._key_since[record.key] = step.commit.version


def _beside(record: Record, taken: Sequence[Record]) -> Sequence[Record]:
    """The taken tasks that `record` comes before, if its place is better.

    A task that names limits may be over one of them: then only tasks that name the same ones, with the same
    keys, wait for it.
    """
    named = _named(record)
    return [one for one in taken if _named(one) == named] if named[0] else taken


def _named(record: Record) -> tuple[Sequence[str], object]:
    return limits_named(record), keyed_limit(record)
