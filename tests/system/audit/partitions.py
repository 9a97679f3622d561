"""The rules of a queue with partitions: those of each partition, and those of all together.

A task that moves to another partition keeps its life: rules of lives and bounds see all partitions as one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import home_of
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.verify import Subject
from fdbqueue.tasks.parted import any_ordered
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.key_counts import key_of, readable_state, slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import CALL_NAMES, Record, TaskKeys, id_text, sound_record, unpacked
from tests.system.audit import bounds, calls, counters, leases
from tests.system.audit.agreement import Agreement
from tests.system.audit.commit import Step
from tests.system.audit.ends import Ended, leases_ended
from tests.system.audit.history import History
from tests.system.audit.line import LineStep, in_partition, joined
from tests.system.audit.losses import lost_leases
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import Move, TaskStep, is_taken, kept_in, signed
from tests.system.audit.pauses import taken_in_a_pause
from tests.system.audit.unseen import changed_unseen, changed_unseen_in_line

PartOf = Callable[[Shape], Subject]
_ORDERED = (TaskState.READY, TaskState.TAKEN)


class Partitioned:
    def __init__(self, subject: Subject, part_of: PartOf, history: History) -> None:
        """`subject`: the queue as of its present plan."""
        assert isinstance(subject.checks, TaskChecks)
        self.prefix = subject.keys.start
        self.history = history
        self._name = subject.name
        shape = subject.checks.shape
        assert shape.plan is not None
        self._zero = shape
        parts = [subject, *(part_of(shape.partition(n)) for n in range(1, shape.plan.high))]
        self._parts = [replace(part, counts=list(part.counts)) for part in parts]
        self._high = shape.plan.high
        history.high = max(history.high, self._high)
        self.ended = Ended()
        """The leases that the last commit has ended."""
        self._is_begun = False

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        for number, part in enumerate(self._parts):
            for text in self.of_part(part, step, mirror):
                yield f"{self._name}, partition {number}: {text}"
        tasks = self._tasks(step, mirror)
        for text in (*self.of_lines(tasks, mirror), *self.of_all(tasks, mirror)):
            yield f"{self._name}: {text}"

    def of_lines(self, step: TaskStep, mirror: Mirror) -> Iterator[str]:
        """The line of each partition and that of all; what they tell of takes and leases."""
        errors: list[str] = []
        line, shared = LineStep(), self._zero.shared
        for shape in self._shapes():
            line = joined(line, self.history.requests(shape.keys.line).follow(step.changes, mirror, errors))
        wide = self.history.requests(shared.line).follow(step.changes, mirror, errors)
        for number in range(self.history.high):
            few = in_partition(wide, number)
            line = joined(line, replace(few, served=0))
        yield from errors
        yield from changed_unseen_in_line(LineKeys(shared.line), step.changes)
        yield from calls.bell_rung(self._zero.keys, shared, step.changes)
        self.ended = leases_ended(step, self._zero.root, mirror)
        yield from calls.counted(step, line)
        yield from leases.delivered(self._zero, step, line, mirror)
        yield from lost_leases(self._zero, step, line, mirror, self._keys_of)
        yield from self.beyond_the_plan(step.changes)

    def beyond_the_plan(self, step: Step) -> Iterator[str]:
        """A partition beyond those of the plan has no key."""
        for key, values in step.changes.items():
            number = self._partition_of(key)
            if values.after is not None and number >= self._high:
                yield f"a key lies in the partition {number} of {self._high} (key {key.hex()})"

    def _partition_of(self, key: bytes) -> int:
        apart = self._zero.shared.partitions
        return key[len(apart.start)] if apart.start < key < apart.stop else 0

    def _keys_of(self, key: bytes) -> TaskKeys:
        return self._zero.partition(self._partition_of(key)).keys

    def of_part(self, part: Subject, step: Step, mirror: Mirror) -> Iterator[str]:
        checks = part.checks
        assert isinstance(checks, TaskChecks)
        few = self._own(checks.shape, step)
        yield from Agreement(checks, part.keys.start).judge(few, mirror)
        yield from counters.counted(part.counts, mirror)
        yield from counters.ClassCounters(checks.keys).judge(few, mirror)
        yield from changed_unseen(checks, few)
        yield from unflagged(checks.shape, mirror)
        if isinstance(checks.shape.discipline, Keyed):
            here = TaskStep(step.commit, few, {}, dict(self._stored(checks.shape, mirror)), Counter())
            changed = [record for _, record in self._changed(checks.shape, few)]
            known = {record.id: Move(record, record) for record in changed}
            yield from counters.key_counters(checks.shape.discipline, replace(here, moves=known), mirror)
            yield from self.held_in_vain(checks.shape.discipline, mirror)

    def held_in_vain(self, keyed: Keyed, mirror: Mirror) -> Iterator[str]:
        """A task key is held while it has ready or taken tasks in its old partition, and no longer."""
        plan = self._zero.plan
        assert plan is not None
        for row in mirror.under(keyed.states.start, keyed.states.stop) if plan.before else ():
            key, state = key_of(row.key[len(keyed.states.start) :]), readable_state(row.value)
            old = self._zero.partition(home_of(key, plan.before)).discipline
            assert isinstance(old, Keyed)
            is_held = state is not None and state.held
            if is_held and not any_ordered(mirror.value(old.counts.counts_key(slug_of(key)))):
                yield f"the task key {key!r} is held, and its old partition has no task of it"

    def _own(self, shape: Shape, step: Step) -> Step:
        """The part of the step that belongs to one partition."""
        keys, apart = shape.keys, shape.shared.partitions

        def is_own(key: bytes) -> bool:
            return key.startswith(keys.prefix) and (keys.partition > 0 or not apart.start <= key < apart.stop)

        changes = {key: values for key, values in step.changes.items() if is_own(key)}
        unseen, kept = ([key for key in keys if is_own(key)] for keys in (step.unseen, step.kept))
        return replace(step, changes=changes, unseen=unseen, kept=kept)

    def _shapes(self) -> Iterator[Shape]:
        """The shapes of all partitions, also of those that have gone."""
        return map(self._zero.partition, range(self.history.high))

    def _changed(self, shape: Shape, step: Step) -> Iterator[tuple[bool, Record]]:
        """The records that the step has removed or replaced, and those that it has stored (True)."""
        for key, values in step.changes.items():
            column, rest = shape.keys.parts_of(key)
            if column == records.TASK:
                for is_new, value in enumerate(values):
                    record = sound_record(value, rest)
                    if record is not None:
                        yield bool(is_new), record

    def _stored(self, shape: Shape, mirror: Mirror) -> Iterator[tuple[bytes, Record]]:
        under = shape.keys.tasks
        for row in mirror.under(under.start, under.stop):
            record = sound_record(row.value, row.key[len(under.start) :])
            if record is not None:
                yield record.id, record

    def _tasks(self, step: Step, mirror: Mirror) -> TaskStep:
        """The step of the tasks of all partitions."""
        olds: dict[bytes, Record] = {}
        news: dict[bytes, Record] = {}
        after: dict[bytes, Record] = {}
        counted: Counter[str] = Counter()
        kept: set[bytes] = set()
        for shape in self._shapes():
            own = self._own(shape, step)
            kept |= kept_in(shape.keys, own)
            for is_new, record in self._changed(shape, own):
                (news if is_new else olds)[record.id] = record
            after.update(self._stored(shape, mirror))
            if (values := own.changes.get(shape.keys.calls)) is not None:
                old, new = (unpacked(CALL_NAMES, value) for value in values)
                counted.update({name: signed(new[name] - old[name]) for name in CALL_NAMES})
        counted = Counter({name: number for name, number in counted.items() if number})
        moves = {id_: Move(olds.get(id_), news.get(id_)) for id_ in {**olds, **news}}
        return TaskStep(step.commit, step, moves, after, counted, frozenset(kept))

    def of_all(self, step: TaskStep, mirror: Mirror) -> Iterator[str]:
        yield from self.history.lives.judge(step)
        yield from bounds.within_capacity(self._zero, step)
        yield from bounds.within_concurrency(self._zero, step)
        yield from taken_in_a_pause(self._zero.keys, step, mirror)
        places = {shape.keys.partition: dict(self._stored(shape, mirror)) for shape in self._shapes()}
        if isinstance(self._zero.discipline, Keyed):
            for before, after in step.moves.values():
                if before is not None and after is not None and is_taken(after) and not is_taken(before):
                    yield from self.overtaken(step, after, places)
        yield from self.at_home(step, places)
        known = self.history.came_in
        self.history.came_in = {id_: known.get(id_, step.commit.version) for id_ in step.after}

    def at_home(self, step: TaskStep, places: Mapping[int, Mapping[bytes, Record]]) -> Iterator[str]:
        """A task that comes, or becomes ready after a delay or a burial, is where the plan has its task key,
        or in an open partition. The commit that stores the plan may have come first to its tasks.
        """
        assert self._zero.plan is not None
        count, is_begun, self._is_begun = self._zero.plan.count, self._is_begun, True
        for number, tasks in places.items() if is_begun else ():
            for id_ in step.moves.keys() & tasks.keys():
                before, after = step.moves[id_].before, tasks[id_]
                home = (
                    home_of(after.key, count) if isinstance(self._zero.discipline, Keyed) else number % count
                )
                if _arrives(before, after, step) and number != home:
                    yield f"{id_text(id_)} has come into the partition {number}, and belongs into {home}"

    def overtaken(
        self, step: TaskStep, taken: Record, places: Mapping[int, Mapping[bytes, Record]]
    ) -> Iterator[str]:
        """A task is taken after all of its key in the partition that the key leaves, and after the earlier
        ones in its own partition that its take could see: puts that overlap it may come in any order.
        """
        seen = step.commit.read_version or 0
        assert self._zero.plan is not None
        [here] = [number for number, tasks in places.items() if taken.id in tasks]
        has_moved = here == home_of(taken.key, self._zero.plan.count)
        place, told = self._zero.partition(here).discipline.place, id_text(taken.id)
        for number, tasks in places.items():
            for other in tasks.values():
                if other.key != taken.key or other.id == taken.id or other.state not in _ORDERED:
                    continue
                if number != here and (has_moved or is_taken(other)):
                    yield f"{told} is taken before {id_text(other.id)} in the partition {number}"
                is_touched = other.id in step.moves or other.id in step.kept
                is_touched = is_touched or self.history.came_in.get(other.id, seen) > seen
                is_there = number == here and not is_touched and other.state == TaskState.READY
                if is_there and place(other) < place(taken) and other.expires_us > step.commit.now_us:
                    yield f"{told} is taken before {id_text(other.id)} of the same task key"


def _arrives(before: Record | None, after: Record, step: TaskStep) -> bool:
    """True for a task that joins the present partitions; an expired one stays for its end."""
    if before is not None and (before.state in _ORDERED or after.state != TaskState.READY):
        return False
    return after.expires_us > step.commit.now_us


def unflagged(shape: Shape, mirror: Mirror) -> Iterator[str]:
    flag, ready = shape.shared.flag(shape.keys.partition), shape.keys.ready
    if mirror.value(flag) is None and next(mirror.keys_in(ready.start, ready.stop), None) is not None:
        yield "tasks can be taken, and there is no flag"
