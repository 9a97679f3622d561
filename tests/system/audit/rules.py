"""The rules of one queue, by its kind, and of a queue with partitions; the answers of takes.

A task that moves to another partition keeps its life: rules of lives and bounds see all partitions as one.
A task that is ready from before a call until after it was there at each version that the call may have read.
A kind with task keys may hold a ready task back, so the rule of answers is for the other kinds.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from fdbqueue.core.limits import RETRY_DELAY_FIRST_S
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import home_of
from fdbqueue.core.registry import Definition
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.partitions import ElementChecks, RecipeChecks
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.verify import Subject
from fdbqueue.tasks.parted import any_ordered
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.key_counts import key_of, readable_state, slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import CALL_NAMES, Record, TaskKeys, calls_in, id_text, sound_record
from fdbqueue.testing.engine import STALE
from fdbqueue.testing.scheduler import EPOCH_S
from fdbqueue.testing.trace import Operation, Trace, longest_pause_s
from tests.system.audit.agreement import (
    Agreement,
    ClassCounters,
    Counters,
    Ended,
    changed_unseen,
    changed_unseen_in_line,
    key_counters,
    leases_ended,
    lost_items,
    lost_leases,
    numbers_counted,
)
from tests.system.audit.items import Elements, HandedLocks, Items
from tests.system.audit.line import LineStep, Liveness, in_partition, joined
from tests.system.audit.model import Mirror, Move, Step, Tasks, TaskStep, is_taken, kept_in, signed
from tests.system.audit.tasks import (
    History,
    Order,
    bell_rung,
    calls_counted,
    delivered,
    rung,
    taken_in_a_pause,
    within_capacity,
    within_concurrency,
)

TAKE = "take"
"""The name of an operation that takes tasks; its result is empty if there was none."""
LATE_MAX_S = 1.0
"""A call returns at most this late: its last look has a few round trips. Pauses of retries come on top."""
AGAIN_MAX_S = 2 * RETRY_DELAY_FIRST_S
"""The pause before a retry after an old or a future version, and the reads up to the next such error."""
_CONFLICTS = ("refused: 1020", "refused: not_committed")
"""Outcomes of transactions that met another one, or a fault that tells so."""
_ERRORS_OF_VERSIONS = {("too_old",), ("future_version",)}
SKEW_S = 10.0
"""Clocks may be so far ahead that a task with a ttl has expired for one process, and not for another."""


def late_in(trace: Trace) -> Iterator[str]:
    """Check that calls return at their timeouts. For runs in which no process is slow."""
    for op in trace.operations:
        if op.timeout_s is not None and op.ended_s is not None:
            late_s = op.ended_s - op.began_s - op.timeout_s
            if late_s > LATE_MAX_S and late_s > LATE_MAX_S + _pauses_s(trace, op):
                yield f"{op.client} waited {late_s:.1f} s longer than its timeout of {op.timeout_s:g} s"


def _pauses_s(trace: Trace, op: Operation) -> float:
    """The longest pauses before the retries of a call: each conflict doubles the next one."""
    conflicts = sum(
        tr.who == op.client and tr.outcome in _CONFLICTS and op.began_s <= tr.at_s <= (op.ended_s or tr.at_s)
        for tr in trace.transactions
    )
    conflicts += sum(
        who == op.client and kind == STALE for _, who, kind, _ in trace.events[op.began : op.ended]
    )
    return sum(map(longest_pause_s, range(conflicts))) + AGAIN_MAX_S * _errors_of_versions(trace, op)


def _errors_of_versions(trace: Trace, op: Operation) -> int:
    return sum(
        who == op.client and kind == "fault" and details in _ERRORS_OF_VERSIONS
        for _, who, kind, details in trace.events[op.began : op.ended]
    )


@dataclass
class Span:
    """The events between which a task was ready."""

    record: Record
    began: int
    ended: int | None = None

    def covers(self, op: Operation) -> bool:
        assert op.ended is not None
        assert op.ended_s is not None
        expires_s = self.record.expires_us / 1_000_000 - EPOCH_S
        goes_on = self.ended is None or self.ended > op.ended
        return self.began <= op.began and goes_on and expires_s > op.ended_s + SKEW_S


@dataclass
class Ready:
    """The times at which the tasks of one queue were ready, while it was not paused."""

    paused: bytes
    """The key of the pause."""
    _spans: list[Span] = field(default_factory=list)
    _open: dict[bytes, Span] = field(default_factory=dict)
    _is_paused: bool = False

    def follow(self, step: TaskStep) -> None:
        event, pause = step.commit.event, step.changes.changes.get(self.paused)
        if pause is not None:
            self._is_paused = pause.after is not None
            self._close(list(self._open), event)
        self._close([id_ for id_ in step.moves if id_ in self._open], event)
        if self._is_paused:
            return
        come = step.written() if pause is None else step.after.values()
        for record in come:
            if record.state == TaskState.READY:
                self._open[record.id] = Span(record, event)
                self._spans.append(self._open[record.id])

    def _close(self, ids: list[bytes], event: int) -> None:
        for id_ in ids:
            self._open.pop(id_).ended = event

    def untrue_in(self, trace: Trace, name: str) -> Iterator[str]:
        """Check the takes of the queue that gave nothing."""
        for op in trace.of(name, TAKE):
            there = [] if op.result or not op.done else [span for span in self._spans if span.covers(op)]
            if there:
                yield f"{op.client} was told of nothing, and {id_text(there[0].record.id)} was ready"


class QueueRules:
    def __init__(
        self,
        subject: Subject,
        liveness: Liveness,
        *,
        registered: bool,
        history: History | None = None,
        handed: HandedLocks | None = None,
    ) -> None:
        self.prefix = subject.keys.start
        self._name = subject.name
        self._registered = registered
        self._checks = subject.checks
        self._counters = Counters(subject.counts)
        self._agreement = Agreement(subject.checks, self.prefix)
        self._tasks = Tasks(subject.checks, registered) if isinstance(subject.checks, TaskChecks) else None
        self.history = history or History(liveness)
        self._items: Items | None = None
        if isinstance(subject.checks, RecipeChecks):
            self._items = Items(subject.checks.recipe, liveness)
        self._elements: Elements | None = None
        if isinstance(subject.checks, ElementChecks):
            self._elements = Elements(subject.checks.keys, handed or HandedLocks())
        if self._tasks is not None:
            self._order = Order(self._tasks.checks.shape, registered, liveness.overtake)
            self._requests = self.history.requests(self._tasks.keys.line)
        self._ready: Ready | None = None
        if (
            self._tasks is not None
            and registered
            and not isinstance(self._tasks.checks.shape.discipline, Keyed)
        ):
            self._ready = Ready(self._tasks.keys.paused)
        self.ended = Ended()
        """The leases that the last commit has ended."""

    def follows(self, definition: Definition) -> bool:
        """Go by other options of the queue. False if it has no tasks."""
        if self._tasks is None:
            return False
        self._tasks.checks.shape._follow(definition)
        return True

    def untrue_in(self, trace: Trace) -> Iterator[str]:
        """Check the answers of nothing in a whole run."""
        yield from () if self._ready is None else self._ready.untrue_in(trace, self._name)

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        for text in self._judge(step, mirror):
            yield f"{self._name}: {text}"

    def _judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        yield from self._agreement.judge(step, mirror)
        yield from self._counters.judge(step, mirror)
        yield from changed_unseen(self._checks, step)
        if self._items is not None:
            yield from self._items.judge(step, mirror)
        if self._elements is not None:
            yield from self._elements.judge(step)
        if self._tasks is not None:
            yield from self._of_tasks(self._tasks, self._tasks.follow(step), mirror)
        if self._tasks is None or not self._registered:
            yield from lost_items(step)

    def _of_tasks(self, tasks: Tasks, step: TaskStep, mirror: Mirror) -> Iterator[str]:
        shape, keys = tasks.checks.shape, tasks.keys
        yield from ClassCounters(keys).judge(step.changes, mirror)
        if isinstance(shape.discipline, Keyed):
            yield from key_counters(shape.discipline, step, mirror)
        yield from rung(keys, keys.counters, step)
        errors: list[str] = []
        line = self._requests.follow(step.changes, mirror, errors)
        yield from errors
        yield from self._order.judge(step, line, self._requests)
        self.ended = leases_ended(step, shape.root, mirror)
        if self._ready is not None:
            self._ready.follow(step)
        if tasks.registered:
            yield from delivered(shape, step, line, mirror)
            yield from lost_leases(shape, step, line, mirror)
            yield from self.history.lives.judge(step)
            yield from calls_counted(step, line)
            yield from within_capacity(shape, step)
            yield from within_concurrency(shape, step)
            yield from taken_in_a_pause(keys, step, mirror)


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
        yield from bell_rung(self._zero.keys, shared, step.changes)
        self.ended = leases_ended(step, self._zero.root, mirror)
        yield from calls_counted(step, line)
        yield from delivered(self._zero, step, line, mirror)
        yield from lost_leases(self._zero, step, line, mirror, self._keys_of)
        yield from self.beyond_the_plan(step.changes)

    def beyond_the_plan(self, step: Step) -> Iterator[str]:
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
        yield from numbers_counted(part.counts, mirror)
        yield from ClassCounters(checks.keys).judge(few, mirror)
        yield from changed_unseen(checks, few)
        yield from unflagged(checks.shape, mirror)
        if isinstance(checks.shape.discipline, Keyed):
            here = TaskStep(step.commit, few, {}, dict(self._stored(checks.shape, mirror)), Counter())
            changed = [record for _, record in self._changed(checks.shape, few)]
            known = {record.id: Move(record, record) for record in changed}
            yield from key_counters(checks.shape.discipline, replace(here, moves=known), mirror)
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
            if (values := own.changes.get(shape.keys.counters)) is not None:
                old, new = map(calls_in, values)
                counted.update({name: signed(new[name] - old[name]) for name in CALL_NAMES})
        counted = Counter({name: number for name, number in counted.items() if number})
        moves = {id_: Move(olds.get(id_), news.get(id_)) for id_ in {**olds, **news}}
        return TaskStep(step.commit, step, moves, after, counted, frozenset(kept))

    def of_all(self, step: TaskStep, mirror: Mirror) -> Iterator[str]:
        yield from self.history.lives.judge(step)
        yield from within_capacity(self._zero, step)
        yield from within_concurrency(self._zero, step)
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
