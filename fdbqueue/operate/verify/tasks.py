"""The checks of a task queue: its records, the keys of their states, timers, payloads and failures.

A record names the key of its state, its timer and its payload; each of these keys names its task. Both
directions are checked. beside.py has the checks of keyed disciplines, line.py those of the waiting line.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.partitions.keys import PARTITION, RESULT, RESULT_AT
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.asking import Ask, Row, Seen, under
from fdbqueue.operate.verify.beside import BesideChecks
from fdbqueue.operate.verify.cures import FOREIGN, Cures, command
from fdbqueue.operate.verify.ended import COLUMNS as ENDED_COLUMNS
from fdbqueue.operate.verify.ended import EndedChecks
from fdbqueue.operate.verify.lanes import LaneChecks
from fdbqueue.operate.verify.limits import SlotChecks
from fdbqueue.operate.verify.line import LineChecks, unless_in_line
from fdbqueue.operate.verify.members import COLUMNS as MEMBER_COLUMNS
from fdbqueue.operate.verify.members import MemberChecks
from fdbqueue.operate.verify.owners import OwnerChecks
from fdbqueue.operate.verify.partitions import COLUMNS as SHARED_COLUMNS
from fdbqueue.operate.verify.partitions import PartitionChecks, TaskSharedChecks, expect_ready
from fdbqueue.operate.verify.results import COLUMNS as RESULT_COLUMNS
from fdbqueue.operate.verify.results import ResultChecks
from fdbqueue.operate.verify.root import unless_ending
from fdbqueue.operate.verify.slices import Excuse, Mend, Suspect, resized
from fdbqueue.operate.verify.steps import StepChecks
from fdbqueue.operate.verify.unique import UniqueChecks
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.classes import class_in
from fdbqueue.tasks.dead.redrive import is_readable
from fdbqueue.tasks.disciplines.fifo import Fifo
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.disciplines.lanes import Lanes
from fdbqueue.tasks.failures import entry_of
from fdbqueue.tasks.payloads import is_held_by
from fdbqueue.tasks.records import keys as columns
from fdbqueue.tasks.records.keys import (
    ID_BYTES,
    NEVER_US,
    SESSION_BYTES,
    Record,
    id_text,
    record_to_bytes,
    sound_record,
)
from fdbqueue.tasks.records.statistics import LIVE, LIVE_OF, unpacked
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.steps import counted_in

Part = tuple[Callable[[Row, bytes], Iterable[Ask]], Callable[[Row, bytes, Seen], Iterable[Suspect]]]
"""The two functions of a column: each is given the row and the part of its key behind the column."""


class TaskChecks:
    def __init__(self, shape: Shape, cures: Cures) -> None:
        self.shape = shape
        self.keys = shape.keys
        self.queue = shape.name
        self._cures = cures
        self._mending = cures.mending
        self._line = LineChecks(LineKeys(self.keys.line), shape.aside, cures)
        self._unique = UniqueChecks(shape, self._mending)
        self._steps = StepChecks(shape, self._mending)
        self.members = MemberChecks(shape, self._mending)
        self._slots = SlotChecks(shape, self._mending)
        self._owners = OwnerChecks(self.keys.prefix, self._mending)
        self._shared = None if self.keys.partition else TaskSharedChecks(shape, cures)
        self._partition = None if shape.plan is None else PartitionChecks(shape, self._mending)
        discipline = shape.discipline
        self._knows_index = isinstance(discipline, Fifo | Keyed)
        self._beside = (
            BesideChecks(shape, discipline, self._mending) if isinstance(discipline, Keyed) else None
        )
        lanes = LaneChecks(shape, discipline, self._mending) if isinstance(discipline, Lanes) else None
        self._lanes = lanes
        self.found: Counter[tuple[bytes, str]] = Counter()
        """The number of tasks by task key and state, in the slices so far."""
        self.classes: set[str] = set()
        """The classes of failure, in the slices so far."""
        ended = EndedChecks(self.keys, self._mending)
        self._results = results = ResultChecks(shape.shared, self._mending)
        self._parts: dict[int, Part] = {
            **dict.fromkeys(ENDED_COLUMNS, (ended.asks, ended.judge)),
            RESULT: (results.ask_result, results.judge_result),
            RESULT_AT: (results.ask_time, results.judge_time),
            columns.TASK: (self._ask_task, self._judge_task),
            columns.PAYLOAD: (self._ask_of_task, self._judge_payload),
            columns.READY: (self._ask_ready, self._judge_ready),
            columns.TAKEN: (self._ask_taken, self._judge_taken),
            columns.DELAYED: (self._ask_entry, partial(self._judge_entry, TaskState.DELAYED)),
            columns.BURIED: (self._ask_entry, partial(self._judge_entry, TaskState.BURIED)),
            columns.TIMER: (self._ask_entry, self._judge_timer),
            columns.LIVE: (_nothing, self._judge_live),
            columns.FAILURE: (self._ask_of_task, self._judge_failure),
            columns.STEP: (self._ask_of_task, self._steps.judge),
            columns.CLASSED: (self._ask_entry, self._judge_classed),
            columns.CLASS_COUNT: (_nothing, self._judge_class_count),
            columns.REDRIVE: (_nothing, self._judge_redrive),
            columns.PAUSED: (self._ask_paused, self._judge_paused),
        }
        if lanes is not None:
            self._parts[columns.BESIDE] = (lanes.ask_open, lanes.judge_open)

    def weight(self, row: Row) -> int:
        column, rest = self.keys.parts_of(row.key)
        if column == columns.LINE:
            return self._line.weight(row)
        if column == RESULT:
            return self._results.weight(row, rest)
        record = sound_record(row.value, rest) if column == columns.TASK else None
        if record is None:
            return 0
        return counted_in(record).size_bytes + (0 if is_held_by(record) else record.size_bytes)

    def asks(self, row: Row) -> Iterable[Ask]:
        column, rest = self.keys.parts_of(row.key)
        if column == columns.LINE:
            return self._line.asks(row)
        if column == columns.BESIDE and self._beside is not None:
            return self._beside.asks(row)
        if column == columns.OWNERS:
            return self._owners.asks(row)
        if column in MEMBER_COLUMNS:
            return self.members.asks(column, rest)
        if column in SHARED_COLUMNS:
            return () if self._shared is None else self._shared.asks(column, row, rest)
        part = self._parts.get(column)
        return () if part is None else part[0](row, rest)

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, rest = self.keys.parts_of(row.key)
        if not self._has_shape(row, column):
            return self._unknown(row)
        if column == columns.LINE:
            return self._line.judge(row, seen)
        if column == columns.BESIDE and self._beside is not None:
            return self._beside.judge(row, seen)
        if column == columns.OWNERS:
            return self._owners.judge(row, seen)
        if column in MEMBER_COLUMNS:
            return self.members.judge(column, row, rest, seen)
        if column in SHARED_COLUMNS and self._shared is not None:
            return self._shared.judge(column, row, rest, seen)
        part = self._parts.get(column)
        return () if part is None else part[1](row, rest, seen)

    def note(self, row: Row) -> None:
        column, rest = self.keys.parts_of(row.key)
        if column in (columns.CLASSED, columns.CLASS_COUNT) and self.keys.has_shape(row.key):
            self.classes.add(self.keys.class_at(rest))
        if column in MEMBER_COLUMNS and self.keys.has_shape(row.key):
            self.members.note(column, row, rest)
        if self._beside is None or len(self.found) > limits.VERIFIED_TASK_KEYS_MAX:
            return
        if column == columns.TASK:
            record = sound_record(row.value, rest)
            if record is not None:
                self.found[record.key, LIVE_OF[record.state]] += 1
        elif column == columns.BESIDE:
            self._beside.note(row)

    @property
    def beside(self) -> BesideChecks | None:
        return self._beside

    def _has_shape(self, row: Row, column: int) -> bool:
        if column == columns.BESIDE:
            return self._beside is not None or self._lanes is not None
        if column in (*SHARED_COLUMNS, *RESULT_COLUMNS, *MEMBER_COLUMNS, PARTITION) and self.keys.partition:
            return False
        return self.keys.has_shape(row.key)

    def _unknown(self, row: Row) -> Iterator[Suspect]:
        yield Suspect(Flaw.UNKNOWN, row.key, "No key of a queue has this shape.", FOREIGN)

    # A record, and the keys that it names.

    def _ask_task(self, row: Row, rest: bytes) -> Iterator[Ask]:
        record = sound_record(row.value, rest)
        if record is None:
            return
        state_key = self._state_key(record)
        if state_key is not None:
            yield state_key
        if record.timer_us != NEVER_US:
            yield self.keys.timer(record.timer_us, record.id)
        if not is_held_by(record):
            yield under(self.keys.payloads_of(record.id))
        classed = self._classed_key(record)
        if classed is not None:
            yield classed
        yield from self._unique.ask_task(record)
        yield from self._steps.ask_task(record)
        yield from self.members.ask_task(record)
        yield from self._slots.ask_task(record)
        if self._partition is not None:
            yield from self._partition.ask_task(rest)

    def _judge_task(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        record = sound_record(row.value, rest)
        if record is None:
            mend = partial(_mend_record, self.shape, rest, row.value)
            text = f"The record of the task {id_text(rest)} cannot be read."
            yield Suspect(Flaw.RECORD, row.key, text, self._mending, mend)
            return
        state_key = self._state_key(record)
        if state_key is not None:
            yield from self._judge_state(row, record, state_key, seen.value(state_key))
        timer = self.keys.timer(record.timer_us, record.id) if record.timer_us != NEVER_US else None
        if timer is not None and seen.value(timer) is None:
            text = f"The task {id_text(rest)} has no timer: nothing happens when its time has come."
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, _set(timer, b""))
        classed = self._classed_key(record)
        if classed is not None and seen.value(classed) is None:
            text = (
                f"The task {id_text(rest)} is BURIED, and has no entry among those of its class of failure."
            )
            yield Suspect(Flaw.STATE, row.key, text, self._mending, _set(classed, b""))
        yield from self._unique.judge_task(row, record, seen)
        yield from self._steps.judge_task(row, record, seen)
        yield from self.members.judge_task(row, record, seen)
        yield from self._slots.judge_task(row, record, seen)
        if self._partition is not None:
            yield from self._partition.judge_task(row, rest, seen)
        if not is_held_by(record):
            stored = sum(len(piece.value) for piece in seen.rows(under(self.keys.payloads_of(record.id))))
            if stored != record.size_bytes:
                name = id_text(rest)
                text = (
                    f"The task {name} has {stored} bytes of its payload, and should have {record.size_bytes}."
                )
                yield Suspect(Flaw.PAYLOAD, row.key, text, self._cures.deleting(name))

    def _judge_state(
        self, row: Row, record: Record, state_key: bytes, stored: bytes | None
    ) -> Iterator[Suspect]:
        is_ready = record.state == TaskState.READY
        value = record_to_bytes(record) if is_ready else record.key
        if stored == value:
            return
        name, mend = id_text(record.id), self._mend_state(record, state_key, value)
        if stored is None:
            text = f"The task {name} is {TaskState(record.state).name}, and has no key of that state."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, mend)
        elif not is_ready:
            text = f"The task key of the task {name} differs in its record and in the key of its state."
            yield Suspect(Flaw.COPY, row.key, text, self._mending, mend)
        elif sound_record(stored, record.id) != record:
            text = f"The entry of the ready task {name} differs from its record."
            yield Suspect(Flaw.COPY, row.key, text, self._mending, mend)

    def _mend_state(self, record: Record, state_key: bytes, value: bytes) -> Mend:
        def mend(tr: Transaction) -> None:
            tr.set(state_key, value)
            if record.state != TaskState.READY:
                return
            if self._beside is not None:
                self._beside.rebuild(tr, record.key)
            elif self._lanes is not None:
                self._lanes.open_for(tr, record)
            else:
                expect_ready(tr, self.shape)

        return mend

    def _state_key(self, record: Record) -> bytes | None:
        """The key of the state of a task; None in a discipline that the checks do not know."""
        if record.state == TaskState.READY:
            return self.shape.discipline.filed(record) if self._knows_index else None
        if record.state == TaskState.TAKEN:
            return self.keys.taken_by(record.session, record.id)
        if record.state == TaskState.DELAYED:
            return self.keys.delayed_at(record.id)
        return self.keys.buried_at(self.shape.discipline.place(record))

    def _classed_key(self, record: Record) -> bytes | None:
        """The entry of a buried task among those of its class of failure."""
        if record.state != TaskState.BURIED:
            return None
        return self.keys.classed_at(class_in(record), self.shape.discipline.place(record))

    # The keys that name a task.

    def _ask_ready(self, row: Row, rest: bytes) -> Iterator[Ask]:
        if self._beside is not None:
            yield from self._beside.ask_pointer(row)
        elif self._knows_index:
            yield from self._ask_entry(row, rest)
        if self._lanes is not None:
            yield from self._lanes.ask_ready(rest)
        if self._partition is not None:
            yield from self._partition.ask_ready()

    def _judge_ready(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if self._beside is not None:
            yield from self._beside.judge_pointer(row, rest, seen)
        elif self._knows_index:
            yield from self._judge_entry(TaskState.READY, row, rest, seen)
        if self._lanes is not None:
            yield from self._lanes.judge_ready(row, rest, seen)
        if self._partition is not None:
            yield from self._partition.judge_ready(row, seen)

    def _ask_entry(self, _: Row, rest: bytes) -> Iterator[Ask]:
        if len(rest) >= ID_BYTES:
            yield self.keys.task(rest[-ID_BYTES:])

    def _judge_entry(self, state: TaskState, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        yield from self._judge_owned(row, rest[-ID_BYTES:], seen, f"An entry of {state.name} tasks")

    def _judge_owned(self, row: Row, id_: bytes, seen: Seen, told: str) -> Iterator[Suspect]:
        """Check that the record of the task names this key as the key of its state."""
        stored = seen.value(self.keys.task(id_))
        if stored is None:
            text = f"{told} names the task {id_text(id_)}, which is missing."
            mend = partial(_mend_lost, self.shape, row)
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, mend)
            return
        record = sound_record(stored, id_)
        if record is not None and self._state_key(record) != row.key:
            text = f"{told} names the task {id_text(id_)}, which is {TaskState(record.state).name} elsewhere."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key))

    def _ask_taken(self, row: Row, rest: bytes) -> Iterator[Ask]:
        yield from self._ask_entry(row, rest)
        yield self.shape.root.session(rest[:SESSION_BYTES])
        if self._beside is not None:
            yield from self._beside.ask_state_of(row.value)

    def _judge_taken(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_, session = rest[-ID_BYTES:], rest[:SESSION_BYTES]
        yield from self._judge_owned(row, id_, seen, "An entry of TAKEN tasks")
        if seen.value(self.shape.root.session(session)) is None:
            text = f"The task {id_text(id_)} is taken by the session {session.hex()}, which does not exist."
            cure = command("release-all", self.queue)
            # A request of a session that has ended may be served, until it is overdue.
            excuses = (unless_ending(self.shape.root, session), *self._unless_in_line(id_))
            yield Suspect(Flaw.SESSION, row.key, text, cure, excuses=excuses)
        if self._beside is not None:
            yield from self._beside.judge_taken(row, seen)

    def _unless_in_line(self, id_: bytes) -> list[Excuse]:
        lines = [self._line.keys] if self._partition is None else [self._line.keys, self._partition.wide_line]
        return [unless_in_line(keys, id_) for keys in lines]

    def _judge_timer(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[-ID_BYTES:]
        stored = seen.value(self.keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None or (record is not None and record.timer_us != self.keys.time_of(row.key)):
            which = "is missing" if stored is None else "has another time"
            text = f"A timer names the task {id_text(id_)}, which {which}."
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, _clear(row.key))

    # The keys below a task.

    def _ask_of_task(self, _: Row, rest: bytes) -> Iterator[Ask]:
        yield self.keys.task(rest[:ID_BYTES])

    def _judge_payload(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[:ID_BYTES]
        stored = seen.value(self.keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None:
            text = f"A piece of a payload belongs to the task {id_text(id_)}, which is missing."
            excuses = self._unless_in_line(id_)
            yield Suspect(Flaw.PAYLOAD, row.key, text, self._mending, _clear(row.key), excuses)
        elif record is not None and is_held_by(record):
            text = f"The task {id_text(id_)} has its payload in its record, and a piece of another one."
            yield Suspect(Flaw.PAYLOAD, row.key, text, self._mending, _clear(row.key))

    def _judge_failure(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[:ID_BYTES]
        if seen.value(self.keys.task(id_)) is None:
            text = f"A failure belongs to the task {id_text(id_)}, which is missing."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key))
        elif entry_of(row.value) is None:
            text = f"A failure of the task {id_text(id_)} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, _clear(row.key))

    # Classes of failure.

    def _judge_classed(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[-ID_BYTES:]
        stored = seen.value(self.keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None or (record is not None and self._classed_key(record) != row.key):
            text = f"An entry of a class of failure names the task {id_text(id_)}, which is not buried there."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, _clear(row.key))

    def _judge_class_count(self, row: Row, _: bytes, __: Seen) -> Iterator[Suspect]:
        if len(row.value) != _NUMBER_BYTES or not any(row.value):
            text = f"The counter of a class of failure is damaged: {row.value.hex()}."
            yield Suspect(Flaw.COUNTER, row.key, text, self._mending, resized(row, _NUMBER_BYTES))

    def _judge_redrive(self, row: Row, _: bytes, __: Seen) -> Iterator[Suspect]:
        if not is_readable(row.value):
            text = "The progress of a redrive cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, _clear(row.key))

    # Single keys.

    def _judge_live(self, row: Row, _: bytes, __: Seen) -> Iterator[Suspect]:
        negative = [name for name, count in unpacked(LIVE, row.value).items() if count >= 2**63]
        if negative or len(row.value) != len(LIVE) * _NUMBER_BYTES:
            text = f"The counters of the tasks are damaged: {row.value.hex()}."
            mend = resized(row, len(LIVE) * _NUMBER_BYTES)
            yield Suspect(Flaw.COUNTER, row.key, text, self._mending, mend)

    def _ask_paused(self, _: Row, __: bytes) -> Iterable[Ask]:
        return () if self._partition is None else self._partition.ask_paused()

    def _judge_paused(self, row: Row, _: bytes, seen: Seen) -> Iterable[Suspect]:
        return () if self._partition is None else self._partition.judge_paused(row, seen)


_NUMBER_BYTES = 8


def _nothing(_: Row, __: bytes) -> Iterable[Ask]:
    return ()


def _set(key: bytes, value: bytes) -> Mend:
    return lambda tr: tr.set(key, value)


def _clear(key: bytes) -> Mend:
    return lambda tr: tr.clear(key)


def _mend_record(shape: Shape, id_: bytes, raw: bytes, tr: Transaction) -> None:
    shape.mender.record(tr, id_, raw)


def _mend_lost(shape: Shape, row: Row, tr: Transaction) -> None:
    shape.mender.lost(tr, row.key, row.value)
