"""The checks of a task queue: its records, the keys of their states, timers, payloads and failures.

A record names the key of its state, its timer and its payload; each of these keys names its task. Both
directions are checked. Partitions and features have checks of their own; so have disciplines with keys of
their own, task keys of a keyed one, and lanes of limits:

A task key with ready tasks has a line, a state, a pointer and counters. Each lane with ready tasks is open,
and each open lane is one of the queue. The state of the lane of a key names its first task, or says that it
is parked. An open lane has one pointer, and its limit has one row for each lane, on the side of its state.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from fdbqueue.core import limits, partitions
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.registry import Definition
from fdbqueue.core.rows import (
    FOREIGN,
    Check,
    Checks,
    Excuse,
    Flaw,
    OfColumn,
    Row,
    Seen,
    Suspect,
    resized,
    told_key,
    under,
)
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.partitions import (
    HeldChecks,
    LineChecks,
    PartitionChecks,
    SharedChecks,
    expect_ready,
    partitioned,
    unless_in_line,
)
from fdbqueue.operate.verify.root import unless_ending
from fdbqueue.operate.verify.values import Cures, command
from fdbqueue.queues.unacked import claim_of
from fdbqueue.tasks.change import is_held_by
from fdbqueue.tasks.failures import class_in, entry_of
from fdbqueue.tasks.limits.lanes import UNNAMED, Lanes, keyed_limit
from fdbqueue.tasks.limits.parking import KeyedLane, stands_of
from fdbqueue.tasks.limits.rule import OPEN, PARKED, shown_key
from fdbqueue.tasks.redrive import is_readable
from fdbqueue.tasks.rows import FeatureRows, OfShape, rows_of_features
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import keyed as stored_keyed
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.charged import DEBT_BYTES, debt_of
from fdbqueue.tasks.stored.discipline import Fifo
from fdbqueue.tasks.stored.key_counts import KeyState, Numbers, key_of, level_in, readable_state
from fdbqueue.tasks.stored.keyed import Fair, Keyed, is_slug, parts_of, rebuild, task_key_in
from fdbqueue.tasks.stored.records import (
    COUNTERS_BYTES,
    ID_BYTES,
    LIVE_NAMES,
    LIVE_OF,
    Record,
    id_in,
    id_text,
    sound_record,
    unpacked,
)

NUMBER_BYTES = 8
_OPEN_LANE, _POINTER, _STATE = b"\x01", b"\x02", b"\x03"


def _is_altered(shape: Shape, stored: bytes | None) -> bool:
    """True if a queue goes by another number of tasks at a time than `shape`, or some keys still do."""
    if stored is None:
        return False
    options = Definition.from_bytes(shape.name, stored).options
    concurrency = options.get("key_concurrency")
    return options.get("settling") is not None or concurrency != shape.settings.key_concurrency


class BesideChecks(OfShape):
    def __init__(self, shape: Shape, keyed: Keyed, mending: str) -> None:
        super().__init__(shape, mending)
        self._keyed = keyed
        self._held = HeldChecks(shape, keyed, mending)
        self.counters: dict[bytes, Numbers] = {}
        """The stored counters of the task keys, in the slices so far."""
        self._checks = {
            stored_keyed.WAITING: self._waiting,
            stored_keyed.STATE: self._state,
            stored_keyed.ROUND: self._number,
            stored_keyed.COUNTS: self._counts,
            stored_keyed.BUSY: self._busy,
            stored_keyed.LEVEL: self._level,
            stored_keyed.FLOOR: self._number,
            stored_keyed.DEBT: self._debt,
        }

    def check(self, row: Row, _: bytes) -> Check:
        column, rest = parts_of(self._keys.beside, row.key)
        if column not in self._checks or not self._has_shape(column, rest):
            return self.unknown(row, "No key of a discipline has this shape.")
        return self._checks[column](row, rest)

    def note(self, row: Row) -> None:
        column, rest = parts_of(self._keys.beside, row.key)
        if column == stored_keyed.COUNTS and is_slug(rest):
            self.counters[key_of(rest)] = unpacked(LIVE_NAMES, row.value)

    def rebuild(self, key: bytes, tr: Transaction) -> None:
        rebuild(self._keyed, tr, key)
        expect_ready(tr, self._shape)

    def _has_shape(self, column: int, rest: bytes) -> bool:
        if column == stored_keyed.WAITING:
            return task_key_in(rest) is not None
        if column == stored_keyed.ROUND:
            return not rest and isinstance(self._keyed, Fair)
        if column == stored_keyed.FLOOR:
            return not rest and not self._shape.definition.id  # a FairQueue
        if column == stored_keyed.DEBT and not self._keyed.keeps_rounds:
            return False
        return is_slug(rest[1:] if column == stored_keyed.BUSY else rest)

    # The line of a task key: its ready tasks.

    def _waiting(self, row: Row, rest: bytes) -> Check:
        key, id_ = task_key_in(rest) or b"", id_in(row.key)
        task, state, fifo = self._keys.task(id_), self._keyed.state_key(key), under(self._keyed.fifo(key), 1)
        seen = yield [task, state, fifo]
        record = sound_record(seen.value(task), id_)
        if not seen.has(task):
            text = f"The line of a task key has the task {id_text(id_)}, which is missing."
            yield self.found(Flaw.STRAY, row, text, lambda tr: self._shape.mender.lost(tr, *row))
        elif record is not None and not self._is_filed(record, row.key):
            where = f"{TaskState(record.state).name} elsewhere"
            text = f"The line of a task key has the task {id_text(id_)}, which is {where}."
            yield self.found(Flaw.STRAY, row, text, partial(self._clear, row, key))
        if seen.rows(fifo)[0].key == row.key and not seen.has(state):
            text = f"The task key {told_key(key)} has ready tasks and no state: no take finds them."
            yield self.found(Flaw.KEY_STATE, row, text, partial(self.rebuild, key))

    def _is_filed(self, record: Record, key: bytes) -> bool:
        return record.state == TaskState.READY and self._keyed.filed(record) == key

    # The state of a task key, and its pointer.

    def taken(self, row: Row) -> Check:
        """Check that the key of a taken task counts it."""
        state = self._keyed.state_key(row.value)
        if not (yield [state]).has(state) and self._keyed.counts_taken:
            text = f"The task key {told_key(row.value)} has taken tasks and no state that counts them."
            yield self.found(Flaw.KEY_STATE, row, text, partial(self.rebuild, row.value))

    def pointer(self, row: Row, place: bytes) -> Check:
        record = sound_record(row.value, id_in(row.key))
        if record is None:
            text = f"The pointer to the task {id_text(id_in(row.key))} cannot be read."
            yield self.found(Flaw.COPY, row, text, lambda tr: self._shape.mender.entry(tr, *row))
            return
        key = self._keyed.state_key(record.key)
        state = readable_state((yield [key]).value(key))
        if state is not None and state.pointer != place:
            text = f"A pointer to the task {id_text(record.id)} is not the one of its task key."
            yield self.found(Flaw.STRAY, row, text, partial(self._clear, row, record.key))

    def _state(self, row: Row, rest: bytes) -> Check:
        key, state = key_of(rest), readable_state(row.value)
        if state is None:
            yield self._wrong_state(row, key, "cannot be read")
            return
        definition = [self._held.definition] if state.held or self._keyed.counts_taken else []
        named = [self._keys.ready_at(state.pointer), under(self._keyed.fifo(key), 1), *definition]
        seen = yield [*named, self._keyed.counts.counts_key(rest)]
        wrong = self._wrong_pointer(key, state, seen)
        if wrong and definition and _is_altered(self._shape, seen.value(self._held.definition)):
            return  # the steps that follow a change of options fit it
        wrong = wrong or self._wrong_count(rest, state, seen)
        if wrong:
            yield self._wrong_state(row, key, wrong)
        elif state.held:
            yield self._held.waits(row, key, seen)

    def _wrong_state(self, row: Row, key: bytes, wrong: str) -> Suspect:
        text = f"The state of the task key {told_key(key)} {wrong}."
        return self.found(Flaw.KEY_STATE, row, text, partial(self.rebuild, key))

    def _wrong_pointer(self, key: bytes, state: KeyState, seen: Seen) -> str | None:
        first = next(iter(seen.rows(under(self._keyed.fifo(key), 1))), None)
        if not state.pointer:
            waits = first is not None and self._keyed.is_open(state)
            return "has no pointer, and its tasks wait for ever" if waits else None
        if first is None:
            return "has a pointer, and the key has no ready task"
        if not self._keyed.is_open(state):
            return "has a pointer, and no task of the key may be taken"
        if not seen.has(self._keys.ready_at(state.pointer)):
            return "has a pointer that takes do not find"
        place = first.key[len(self._keyed.fifo(key).start) :]
        if len(place) >= ID_BYTES and place != state.head:
            return "has a pointer to another task than the first"
        return None

    def _wrong_count(self, slug: bytes, state: KeyState, seen: Seen) -> str | None:
        if not self._keyed.counts_taken:
            return None
        taken = unpacked(LIVE_NAMES, seen.value(self._keyed.counts.counts_key(slug)))["taken"]
        return None if state.taken == taken else f"counts {state.taken} taken tasks, its counter {taken}"

    # Counters and levels.

    def _counts(self, row: Row, rest: bytes) -> Check:
        if len(row.value) != len(LIVE_NAMES) * NUMBER_BYTES or not any(row.value):
            text = f"The counters of the task key {told_key(key_of(rest))} are damaged: {row.value.hex()}."
            yield self.found(Flaw.KEY_COUNTER, row, text, resized(row, len(LIVE_NAMES) * NUMBER_BYTES))

    def _busy(self, row: Row, rest: bytes) -> Check:
        level = self._keyed.counts.level_key(rest[1:])
        if (yield [level]).value(level) != bytes([level_in(rest)]):
            told = told_key(key_of(rest[1:]))
            text = f"The index of busy keys has the task key {told} at a level that it has left."
            yield self.found(Flaw.KEY_COUNTER, row, text)

    def _level(self, row: Row, rest: bytes) -> Check:
        busy = [self._keyed.counts.busy_key(row.value[0], rest)] if len(row.value) == 1 else []
        if not any(map((yield busy).has, busy)):
            told = told_key(key_of(rest))
            text = f"The task key {told} has a level, and no entry in the index of busy keys."
            yield self.found(Flaw.KEY_COUNTER, row, text)

    def _number(self, row: Row, _: bytes) -> Check:
        if len(row.value) != NUMBER_BYTES:
            yield self.found(Flaw.VALUE, row, f"A number of the discipline is damaged: {row.value.hex()}.")

    def _debt(self, row: Row, rest: bytes) -> Check:
        counts = self._keyed.counts.counts_key(rest)
        taken = unpacked(LIVE_NAMES, (yield [counts]).value(counts))["taken"]
        if len(row.value) != DEBT_BYTES or not 0 <= debt_of(row.value)[0] <= taken:
            text = f"The key {told_key(key_of(rest))} owes for more tasks than are taken: {row.value.hex()}."
            yield self.found(Flaw.KEY_COUNTER, row, text)

    def _clear(self, row: Row, key: bytes, tr: Transaction) -> None:
        tr.clear(row.key)
        self.rebuild(key, tr)


class LaneChecks(OfShape):
    def __init__(self, shape: Shape, lanes: Lanes, mending: str) -> None:
        super().__init__(shape, mending)
        self._lanes = lanes
        self._of_lanes = lanes.lane_keys

    # A ready task, and the open key of its lane, or the state of the lane of its key.

    def ready(self, row: Row, rest: bytes) -> Check:
        lane, parts = rest[:1], self._of_lanes.parted(rest)
        if parts is not None:
            yield from self._keyed_ready(row, *parts)
        elif self._lanes.is_lane(lane):
            key = self._lanes.open_key(lane)
            if not (yield [key]).has(key):
                names = ", ".join(map(repr, self._lanes.names_of(lane)))
                text = f"A ready task waits in the lane of {names}, which is not open: no take finds it."
                yield self.found(Flaw.STATE, row, text, partial(self._open, lane))

    def _keyed_ready(self, row: Row, lane: bytes, key: bytes, place: bytes) -> Check:
        state = self._of_lanes.state(lane, key)
        stands = stands_of((yield [state]).value(state))
        if not self._is_keyed(lane):
            return  # the record of the task tells where it should be
        if stands is None:
            text = f"A ready task waits for {self._told(lane, key)}, and the lane has no state."
            yield self.found(Flaw.STATE, row, text, partial(self._rebuild, lane, key))
        elif stands.head > place:
            text = f"A ready task waits for {self._told(lane, key)} before the pointer of the lane."
            yield self.found(Flaw.STATE, row, text, partial(self._rebuild, lane, key))

    def open_for(self, tr: Transaction, record: Record) -> None:
        """Open the lane of a task that is ready by a mending."""
        lane, keyed = self._lanes.lane(record), keyed_limit(record)
        if keyed is not None and self._is_keyed(lane):
            self._lanes.of_keys.rebuild(tr, lane, keyed[1])
        self._open(lane, tr)

    def _open(self, lane: bytes, tr: Transaction) -> None:
        if lane != UNNAMED:
            tr.set(self._lanes.open_key(lane), b"")
        expect_ready(tr, self._shape)

    # An open key, a pointer, or a state.

    def check(self, row: Row, rest: bytes) -> Check:
        column, lane, behind = rest[:1], rest[1:3], rest[3:]
        if column == _POINTER and self._is_keyed(lane):
            yield from self._pointer(row, lane, behind)
        elif column == _STATE and self._is_keyed(lane):
            yield from self._state(row, lane, behind)
        elif column != _OPEN_LANE or not self._lanes.is_lane(rest[1:]):
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a lane has this shape.", FOREIGN)

    def _pointer(self, row: Row, lane: bytes, place: bytes) -> Check:
        state = self._of_lanes.state(lane, row.value)
        stands = stands_of((yield [state]).value(state))
        if stands is None or stands.head != place:
            text = f"A pointer for {self._told(lane, row.value)} is not the one that the lane names."
            yield self.found(Flaw.STRAY, row, text)

    def _state(self, row: Row, lane: bytes, key: bytes) -> Check:
        of_key, stands = self._lanes.of_keys.lane_of(lane, key), stands_of(row.value)
        rebuild = partial(self._rebuild, lane, key)
        if stands is None:
            text = f"The state of the lane of {self._told(lane, key)} cannot be read."
            yield self.found(Flaw.VALUE, row, text, rebuild)
            return
        named = list(self._named_by(of_key, stands.head, lane))
        if not all(map((yield named).has, named)):
            side = "open" if stands.head else "parked"
            text = f"The lane of {self._told(lane, key)} is {side}, and lacks a key of that side."
            yield self.found(Flaw.STATE, row, text, rebuild)

    def _named_by(self, of_key: KeyedLane, head: bytes, lane: bytes) -> Iterator[bytes]:
        """The keys that a lane has, which is open if it has a head."""
        if not head:
            yield of_key.row(PARKED)
            return
        yield of_key.row(OPEN)
        yield self._of_lanes.pointer(lane, head)
        yield self._lanes.open_key(lane)
        yield of_key.fifo.start + head

    def _is_keyed(self, lane: bytes) -> bool:
        return len(lane) == 2 and self._lanes.is_lane(lane)

    def _told(self, lane: bytes, key: bytes) -> str:
        return f"the key {shown_key(key)!r} of the limit {self._lanes.keyed_name(lane)!r}"

    def _rebuild(self, lane: bytes, key: bytes, tr: Transaction) -> None:
        self._lanes.of_keys.rebuild(tr, lane, key)
        expect_ready(tr, self._shape)


OfRecord = Callable[[Row, Record], Check]


class TaskChecks(Checks):
    def __init__(self, shape: Shape, cures: Cures) -> None:
        super().__init__(cures.mending)
        self.shape = shape
        self.keys = shape.keys
        self.features = rows_of_features(shape, cures.mending)
        self.beside: BesideChecks | None = None
        self._lanes: LaneChecks | None = None
        self.found_by_key: Counter[tuple[bytes, str]] = Counter()
        """The number of tasks by task key and state, in the slices so far."""
        self.classes: set[str] = set()
        """The classes of failure, in the slices so far."""
        self._cures = cures
        self._line = LineChecks(LineKeys(self.keys.line), shape.aside, cures)
        self._lines = [self._line.keys]
        self._partition = PartitionChecks(shape, cures.mending)
        self._of_ready = list[OfColumn]()
        of_extra = [feature.task for feature in self.features]
        of_all: list[OfRecord] = [] if shape.plan is None else [self._partition.task]
        self._checks, self._of_all = self._of_tasks(), self._shared()
        self._feature_at: dict[int, FeatureRows] = {}
        for feature in self.features:
            of_each, of_all_parts = feature.columns(), feature.shared()
            self._checks |= of_each
            self._of_all |= of_all_parts
            self._feature_at |= dict.fromkeys((*of_each, *of_all_parts), feature)
        self._set_discipline()
        if shape.plan is not None:
            self._lines.append(LineKeys(shape.shared.line))
            self._of_ready.append(self._partition.ready)
        self._of_plain = [self._state, self._timer_of, self._class_of, *of_all, self._payload_of]
        self._of_record = [*self._of_plain[:3], *of_extra, *self._of_plain[3:]]
        if not self.keys.partition:
            self._checks |= self._of_all

    def _of_tasks(self) -> dict[int, OfColumn]:
        """The checks of the columns that each partition has."""
        return {
            records.TASK: self._task,
            records.PAYLOAD: self._payload,
            records.READY: self._ready,
            records.TAKEN: self._taken,
            records.DELAYED: partial(self._entry, TaskState.DELAYED),
            records.BURIED: partial(self._entry, TaskState.BURIED),
            records.TIMER: self._timer,
            records.COUNTERS: self._counters,
            records.LINE: _whole_row(self._line),
            records.OWNERS: self._owner,
            records.PAUSED: self._partition.paused,
            records.FAILURE: self._failure,
            records.CLASSED: self._classed,
            records.CLASS_COUNT: self._class_count,
            records.REDRIVE: self._redrive,
        }

    def _shared(self) -> dict[int, OfColumn]:
        """The checks of the columns that all partitions share; PARTITION has checks of its own."""
        every_kind = SharedChecks(partitioned(self.shape), self.keys.prefix, self._cures)
        return {
            **dict.fromkeys((partitions.FLAG, partitions.BELL, partitions.WIDE_LINE), _whole_row(every_kind)),
            partitions.MOVED: self._partition.moved,
            partitions.PARTITION: self.nothing,
        }

    def _set_discipline(self) -> None:
        discipline = self.shape.discipline
        self._knows_index = isinstance(discipline, Fifo | Keyed)
        if isinstance(discipline, Keyed):
            self.beside = BesideChecks(self.shape, discipline, self.mending)
            self._checks[records.BESIDE] = self.beside.check
            self._of_ready.append(self.beside.pointer)
        elif self._knows_index:
            self._of_ready.append(partial(self._entry, TaskState.READY))
        if isinstance(discipline, Lanes):
            self._lanes = LaneChecks(self.shape, discipline, self.mending)
            self._checks[records.BESIDE] = self._lanes.check
            self._of_ready.append(self._lanes.ready)

    def weight(self, row: Row) -> int:
        column, rest = self.keys.parts_of(row.key)
        if column == records.LINE:
            return self._line.weight(row)
        if column in self._feature_at:
            return self._feature_at[column].weight(column, row, rest)
        record = sound_record(row.value, rest) if column == records.TASK else None
        if record is None:
            return 0
        beside = 0 if record.extra is None else sum(one.weight_of_task(record) for one in self.features)
        return beside + (0 if is_held_by(record) else record.size_bytes)

    def check(self, row: Row) -> Check:
        column, rest = self.keys.parts_of(row.key)
        if not self._has_shape(row.key, column):
            return self.unknown(row, "No key of a queue has this shape.")
        return self._checks[column](row, rest) if column in self._checks else self.nothing()

    def _has_shape(self, key: bytes, column: int) -> bool:
        if column == records.BESIDE:
            return column in self._checks
        return self.keys.has_shape(key) and not (self.keys.partition and column in self._of_all)

    def note(self, row: Row) -> None:
        column, rest = self.keys.parts_of(row.key)
        if column in (records.CLASSED, records.CLASS_COUNT) and self.keys.has_shape(row.key):
            self.classes.add(self.keys.class_at(rest))
        if column in self._feature_at and self.keys.has_shape(row.key):
            self._feature_at[column].note(column, row, rest)
        if self.beside is None or len(self.found_by_key) > limits.VERIFIED_TASK_KEYS_MAX:
            return
        if column == records.TASK:
            record = sound_record(row.value, rest)
            if record is not None:
                self.found_by_key[record.key, LIVE_OF[record.state]] += 1
        elif column == records.BESIDE:
            self.beside.note(row)

    # A record, and the keys that it names.

    def _task(self, row: Row, id_: bytes) -> Check:
        record = sound_record(row.value, id_)
        if record is not None:
            checks = self._of_plain if record.extra is None else self._of_record
            yield from self.together(check(row, record) for check in checks)
            return
        text = f"The record of the task {id_text(id_)} cannot be read."
        yield self.found(Flaw.RECORD, row, text, lambda tr: self.shape.mender.record(tr, id_, row.value))

    def _state(self, row: Row, record: Record) -> Check:
        key = self._state_key(record)
        if key is None:
            return
        stored, is_ready = (yield [key]).value(key), record.state == TaskState.READY
        value = records.record_to_bytes(record) if is_ready else record.key
        if stored == value:
            return
        name, mend = id_text(record.id), partial(self._mend_state, record, key, value)
        if stored is None:
            text = f"The task {name} is {TaskState(record.state).name}, and has no key of that state."
            yield self.found(Flaw.STATE, row, text, mend)
        elif not is_ready:
            text = f"The task key of the task {name} differs in its record and in the key of its state."
            yield self.found(Flaw.COPY, row, text, mend)
        elif sound_record(stored, record.id) != record:
            text = f"The entry of the ready task {name} differs from its record."
            yield self.found(Flaw.COPY, row, text, mend)

    def _mend_state(self, record: Record, state_key: bytes, value: bytes, tr: Transaction) -> None:
        tr.set(state_key, value)
        if record.state != TaskState.READY:
            return
        if self.beside is not None:
            self.beside.rebuild(record.key, tr)
        elif self._lanes is not None:
            self._lanes.open_for(tr, record)
        else:
            expect_ready(tr, self.shape)

    def _state_key(self, record: Record) -> bytes | None:
        """The key of the state of a task; None in a discipline that the checks do not know."""
        if record.state == TaskState.READY:
            return self.shape.discipline.filed(record) if self._knows_index else None
        if record.state == TaskState.TAKEN:
            return self.keys.taken_by(record.session, record.id)
        if record.state == TaskState.DELAYED:
            return self.keys.delayed_at(record.id)
        return self.keys.buried_at(self.shape.discipline.place(record))

    def _timer_of(self, row: Row, record: Record) -> Check:
        if record.timer_us == records.NEVER_US:
            return
        timer = self.keys.timer(record.timer_us, record.id)
        if not (yield [timer]).has(timer):
            text = f"The task {id_text(record.id)} has no timer: nothing happens when its time has come."
            yield self.found(Flaw.TIMER, row, text, {timer: b""})

    def _class_of(self, row: Row, record: Record) -> Check:
        classed = self._classed_key(record)
        if classed is not None and not (yield [classed]).has(classed):
            name = id_text(record.id)
            text = f"The task {name} is BURIED, and has no entry among those of its class of failure."
            yield self.found(Flaw.STATE, row, text, {classed: b""})

    def _classed_key(self, record: Record) -> bytes | None:
        """The entry of a buried task among those of its class of failure."""
        if record.state != TaskState.BURIED:
            return None
        return self.keys.classed_at(class_in(record), self.shape.discipline.place(record))

    def _payload_of(self, row: Row, record: Record) -> Check:
        if is_held_by(record):
            return
        pieces, name = under(self.keys.payloads_of(record.id)), id_text(record.id)
        stored = (yield [pieces]).size_bytes(pieces)
        if stored != record.size_bytes:
            text = f"The task {name} has {stored} bytes of its payload, and should have {record.size_bytes}."
            yield Suspect(Flaw.PAYLOAD, row.key, text, self._cures.deleting(name))

    # The keys that name a task.

    def _ready(self, row: Row, rest: bytes) -> Check:
        if len(self._of_ready) == 1:
            return self._of_ready[0](row, rest)
        return self.together(check(row, rest) for check in self._of_ready)

    def _entry(self, state: TaskState, row: Row, rest: bytes) -> Check:
        """Check that the record of the task names this key as the key of its state."""
        id_ = rest[-ID_BYTES:]
        stored = (yield [self.keys.task(id_)]).value(self.keys.task(id_))
        record, told = sound_record(stored, id_), f"An entry of {state.name} tasks names the task"
        if stored is None:
            text = f"{told} {id_text(id_)}, which is missing."
            yield self.found(Flaw.STRAY, row, text, lambda tr: self.shape.mender.lost(tr, *row))
        elif record is not None and self._state_key(record) != row.key:
            text = f"{told} {id_text(id_)}, which is {TaskState(record.state).name} elsewhere."
            yield self.found(Flaw.STRAY, row, text)

    def _taken(self, row: Row, rest: bytes) -> Check:
        counted = self.nothing() if self.beside is None else self.beside.taken(row)
        return self.together([self._entry(TaskState.TAKEN, row, rest), self._holder(row, rest), counted])

    def _holder(self, row: Row, rest: bytes) -> Check:
        id_, holder = rest[-ID_BYTES:], rest[: records.SESSION_BYTES]
        session = self.shape.root.session(holder)
        if holder != records.HANDED_OFF and not (yield [session]).has(session):
            text = f"The task {id_text(id_)} is taken by the session {holder.hex()}, which does not exist."
            cure = command("release-all", self.shape.name)
            # A request of a session that has ended may be served, until it is overdue.
            excuses = (unless_ending(self.shape.root, holder), *self._unless_in_line(id_))
            yield Suspect(Flaw.SESSION, row.key, text, cure, excuses=excuses)

    def _unless_in_line(self, id_: bytes) -> list[Excuse]:
        return [unless_in_line(keys, id_) for keys in self._lines]

    def _timer(self, row: Row, _: bytes) -> Check:
        id_ = id_in(row.key)
        stored = (yield [self.keys.task(id_)]).value(self.keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None or (record is not None and record.timer_us != self.keys.time_of(row.key)):
            which = "is missing" if stored is None else "has another time"
            yield self.found(Flaw.TIMER, row, f"A timer names the task {id_text(id_)}, which {which}.")

    def _payload(self, row: Row, rest: bytes) -> Check:
        id_ = rest[:ID_BYTES]
        stored = (yield [self.keys.task(id_)]).value(self.keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None:
            text = f"A piece of a payload belongs to the task {id_text(id_)}, which is missing."
            yield self.found(Flaw.PAYLOAD, row, text, excuses=self._unless_in_line(id_))
        elif record is not None and is_held_by(record):
            text = f"The task {id_text(id_)} has its payload in its record, and a piece of another one."
            yield self.found(Flaw.PAYLOAD, row, text)

    def _failure(self, row: Row, rest: bytes) -> Check:
        task, name = self.keys.task(rest[:ID_BYTES]), id_text(rest[:ID_BYTES])
        if not (yield [task]).has(task):
            text = f"A failure belongs to the task {name}, which is missing."
            yield self.found(Flaw.STRAY, row, text)
        elif entry_of(row.value) is None:
            yield self.found(Flaw.VALUE, row, f"A failure of the task {name} cannot be read.")

    def _classed(self, row: Row, _: bytes) -> Check:
        id_ = id_in(row.key)
        stored = (yield [self.keys.task(id_)]).value(self.keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None or (record is not None and self._classed_key(record) != row.key):
            text = f"An entry of a class of failure names the task {id_text(id_)}, which is not buried there."
            yield self.found(Flaw.STRAY, row, text)

    # Single keys.

    def _class_count(self, row: Row, _: bytes) -> Check:
        if len(row.value) != NUMBER_BYTES or not any(row.value):
            text = f"The counter of a class of failure is damaged: {row.value.hex()}."
            yield self.found(Flaw.COUNTER, row, text, resized(row, NUMBER_BYTES))

    def _redrive(self, row: Row, _: bytes) -> Check:
        if not is_readable(row.value):
            yield self.found(Flaw.VALUE, row, "The progress of a redrive cannot be read.")

    def _owner(self, row: Row, _: bytes) -> Check:
        claim = claim_of(self.keys.prefix, row.key)
        if claim is None:
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a queue has this shape.", FOREIGN)
        elif not (yield [claim]).has(claim):
            yield self.found(Flaw.STRAY, row, "A session is enrolled for an owner that has claimed nothing.")

    def _counters(self, row: Row, _: bytes) -> Check:
        negative = [name for name, count in unpacked(LIVE_NAMES, row.value).items() if count >= 2**63]
        if negative or len(row.value) != COUNTERS_BYTES:
            text = f"The counters of the queue are damaged: {row.value.hex()}."
            yield self.found(Flaw.COUNTER, row, text, resized(row, COUNTERS_BYTES))


def _whole_row(checks: Checks) -> OfColumn:
    return lambda row, _: checks.check(row)
