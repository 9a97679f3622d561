"""What is stored of a task queue: keys, records, and the counters. The only file that builds or parses them.

S is the subspace of the queue. `ID` is 20 bytes (index, random): the task's identity, and its order of
arrival. `PLACE` is the sort key of the discipline; it ends in the id. `TIME` is microseconds since the epoch.
The comment of a column has its value, and behind the semicolon its readers. S[24] to S[32] and S[34] to S[36]
are in core/partitions.py.

Everything before S[9] is a task's, and goes in one range clear. A task has exactly one key in one of
S[3] to S[6], the one of its state, and at most one timer: the end of its delay, its lease or its ttl.
`CLASS` is the error of the last failure. Only a queue with `retain_s` has S[20] to S[23] (retaining.py). If
a record is damaged, the key of its state still identifies the task (`Mender`). S[12] and S[13] are
never written.

`Extra` has the parts of a record that few tasks have. Headers: texts by name that a task has beside its data,
for programs that do not know its codec. They lie in the record, so they cost no key and no round trip; tasks
without headers cost one byte.

Statistics are counters that change in the transaction of the change that they count. All counters of a kind
share one key, as one long little-endian number with 64 bits for each: a single atomic add changes any of
them, down as well as up, because borrows and carries in any order lead to the same sum of non-negative
fields.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from fdbqueue.core import limits, partitions
from fdbqueue.core.columns import Column, Table, sized, text, text_in
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.partitions import ANY, BYTE, GROUP_BYTES, ID, KEY, PIECE_NUMBER, TIME, prefix_of
from fdbqueue.core.partitions import ID_BYTES as ID_BYTES
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import DAMAGED

NEVER_US = 2**63 - 1

# Bounds of the numbers in a record: larger ones do not fit into a key.
Count = Annotated[int, msgspec.Meta(ge=0, le=NEVER_US)]


class Unique(msgspec.Struct, frozen=True, array_like=True):
    """The unique key of a task, and its scope. Append fields with a default; never reorder."""

    key: bytes
    is_queued_only: bool = False
    """True for the scope of tasks that wait; otherwise a task is in scope until it is gone."""
    until_us: Count = 0
    """The end of a scope in seconds, whatever becomes of the task; 0 for the other scopes."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A task's membership in a group. Append fields with a default; never reorder."""

    group: Annotated[bytes, msgspec.Meta(min_length=GROUP_BYTES, max_length=GROUP_BYTES)]
    epoch: Count = 0
    """That of the queue at its put."""
    holds: bool = True
    """True if the group waits for it while it is buried."""
    counted: bool = False
    """True if it was buried, and counts as failed since: a later end does not count it once more."""


HANDED_OFF = b"fdbqueue handoff"
"""In place of the session of a task that was handed off: no session has this id."""


class Handed(msgspec.Struct, frozen=True, array_like=True):
    """What a task that was handed off waits for. Append fields with a default; never reorder."""

    ttl_us: Count
    """The time that it had to be completed."""
    waits_for: str = ""
    """A text for people; empty for none."""


HANDED_AT = 1
"""The place of `Handed` in `Extra.more`."""


class Extra(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a record that few tasks have. Append values to `more`, never fields behind it: an earlier
    release keeps those, and drops any other part when it rewrites the record.
    """

    headers: dict[str, str] = {}
    result_ttl_us: Annotated[int, msgspec.Meta(ge=0, le=NEVER_US)] = 0
    """Time for which the result is kept; 0 if none was asked for."""
    unique: Unique | None = None
    steps: Count = 0
    """Number of its steps that are done."""
    steps_bytes: Count = 0
    """Their bytes, names and results."""
    groups: tuple[Member, ...] = ()
    """The groups that count it."""
    waits: bytes = b""
    """The group for which it waits, as a delayed task without a due time; empty for none."""
    slots: dict[str, int] = {}
    """The limits of which a taken task holds a slot, and the cell of each slot; empty in other states."""
    limits: tuple[str, ...] = ()
    """The limits that the task names."""
    limit_keys: dict[str, bytes] = {}
    """The one among them that it names with a key, packed; empty for a task that names none so."""
    more: tuple[Any, ...] = ()
    """Attempts and backoff (tasks/attempts.py), and `Handed`, or None for each. Behind them, parts that a
    newer release has appended: they are kept, and not read.
    """

    def with_steps(self, steps: int, steps_bytes: int) -> "Extra":
        return msgspec.structs.replace(self, steps=steps, steps_bytes=steps_bytes)

    @property
    def handed(self) -> Handed | None:
        """That of a task that was handed off; None for another task, and for a part that cannot be read."""
        try:
            return msgspec.convert(self.more[HANDED_AT], Handed | None) if self.more[HANDED_AT:] else None
        except msgspec.ValidationError:
            return None

    def with_handed(self, handed: Handed | None) -> "Extra":
        before = (*self.more, *repeat(None, HANDED_AT))[:HANDED_AT]
        more = [*before, handed, *self.more[HANDED_AT + 1 :]]
        while more and more[-1] is None:
            more.pop()
        return msgspec.structs.replace(self, more=tuple(more))


extra_to_bytes = msgspec.msgpack.Encoder().encode


def without_slots(extra: Extra) -> Extra | None:
    """The extra parts of a task that is taken no more; None for a task that has no other part."""
    if not (extra.slots or extra.handed):
        return extra
    kept = extra.with_handed(None) if extra.handed else extra
    rest = msgspec.structs.replace(kept, slots={})
    return None if rest == Extra() else rest


_to_bytes = msgspec.msgpack.Encoder().encode


def asked_headers(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED."""
    return {"headers": checked_headers("headers", options["headers"])}


def checked_headers(name: str, headers: Any) -> dict[str, str]:
    if not _are_texts(headers) or _size_bytes(headers) > limits.HEADERS_BYTES_MAX:
        wanted = f"texts by name, at most {limits.HEADERS_BYTES_MAX} bytes together"
        raise InvalidArgument(name=name, wanted=wanted, got=headers)
    # A subclass of str may encode itself in another way: these are plain texts.
    return {str.__str__(name): str.__str__(text) for name, text in headers.items()}


def _are_texts(headers: Any) -> bool:
    if not isinstance(headers, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(text, str) for name, text in headers.items())


def _size_bytes(headers: Mapping[str, str]) -> int:
    """The bytes of the stored form; more than any bound for a text with half a surrogate pair."""
    try:
        return len(_to_bytes(dict(headers)))
    except UnicodeEncodeError:
        return limits.HEADERS_BYTES_MAX + 1


# A trace context: names and texts, such as those of a `traceparent`. It is read with the record, so it costs
# no key and no round trip.

_trace_from_bytes = msgspec.msgpack.Decoder(dict[str, str]).decode


def packed_trace(carrier: Mapping[str, str]) -> bytes:
    """The context as stored bytes, a msgpack map: its first entries, up to limits.TRACE_BYTES_MAX."""
    kept: dict[str, str] = {}
    stored = b""
    for name, value in carrier.items():
        kept[name] = value
        longer = _to_bytes(kept)
        if len(longer) > limits.TRACE_BYTES_MAX:
            break
        stored = longer
    return stored


def unpacked_trace(stored: bytes) -> dict[str, str] | None:
    """The context of stored bytes; None if there is none, or if it cannot be read."""
    if not stored:
        return None
    try:
        return _trace_from_bytes(stored)
    except DAMAGED:
        return None


INDEX_BYTES = 8
SESSION_BYTES = 16
DETACHED_MARK = bytes(SESSION_BYTES - limits.RANDOM_SUFFIX_BYTES)
"""The begin of the session of a detached lease.

No name of a process begins with it: in a directory, the kernel tells nothing about such a session.
"""
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUV"
_TABLE, _ID_DIGITS = _DIGITS.encode().ljust(256), 32
NUMBER = struct.Struct(">I")

_NUMBER_SHIFT = 48
"""The second byte of an index is the number of the partition: a task's id names the place of its put."""

_PLACE_BYTES_MAX = limits.TASK_KEY_BYTES_MAX + INDEX_BYTES + ID_BYTES
SESSION, PLACE = sized(SESSION_BYTES), sized(ID_BYTES, _PLACE_BYTES_MAX)
CLASS, NAME = text(0, limits.FAILURE_MESSAGE_BYTES_MAX - 1), text(1, limits.STEP_NAME_BYTES_MAX)

S = Table(*partitions.S.columns)
TASK = S.column(1, ID)  # record; every verb; put, the last one by snapshot
PAYLOAD = S.column(2, ID, PIECE_NUMBER)  # a piece of it, if too large for the record; take, peek; verbs by id
READY = S.column(3, PLACE)  # record, or a pointer of a keyed discipline (lanes.py); takers, by snapshot
TAKEN = S.column(4, SESSION, ID)  # the task key; end of a session, release_all, drop
DELAYED = S.column(5, ID)  # the task key; tasks()
BURIED = S.column(6, PLACE)  # the task key; kick
TIMER = S.column(7, TIME, ID)  # empty; sweeps and takes: tasks that are due
BESIDE = S.column(8, ANY)  # see keyed.py and limits/parking.py
COUNTERS = S.column(9)  # see COUNTER_NAMES; statistics, put into a bounded queue, the doorbell of the line
LINE = S.column(11, ANY)  # see line/decision.py
OWNERS = S.column(14, ANY)  # see queues/unacked.py; opens of a persistent queue with an owner
PAUSED = S.column(15)  # empty; takes: they find nothing
FAILURE = S.column(16, ID, BYTE)  # see failures.py; failures(). Written blindly, in a ring of slots
CLASSED = S.column(17, CLASS, PLACE)  # empty; buried tasks of one class of failure
CLASS_COUNT = S.column(18, CLASS)  # number of entries in S[17]; classes of failure
REDRIVE = S.column(19)  # see redrive.py; the next step of a redrive
ENDED = S.column(20, ID)  # an ended task; ended_task()
ENDED_AT = S.column(21, TIME, ID)  # the task key; ended_tasks(); sweeps, the oldest first
ENDED_OF = S.column(22, KEY, TIME, ID)  # empty; ended_tasks_of()
ENDED_COUNT = S.column(23)  # number of entries in S[20]; sweeps
STEP = S.column(33, ID, NAME)  # see tasks/steps.py; step()

SEAT: Column[int] = Column(12, (PIECE_NUMBER,))  # conflict keys of puts into a bounded queue
GATE: Column[()] = Column(13, ())  # the same, at the edge

_CODES = frozenset(column.code for column in (*S.columns, SEAT, GATE))
_REST_BYTES = {TASK.code: ID_BYTES} | {
    column.code: 0
    for column in (COUNTERS, GATE, PAUSED, REDRIVE, ENDED_COUNT, partitions.EPOCH, partitions.ALTERED)
}
"""Numbers of bytes behind these columns, by which a queue knows its own keys from those of something else."""


# A larger number does not fit into a key.
Priority = Annotated[int, msgspec.Meta(ge=0, le=limits.PRIORITY_MAX)]

if TYPE_CHECKING:
    StoredState = str
else:  # the decoder refuses any other text; a type checker would refuse the members of TaskState
    StoredState = Literal["r", "t", "!", "~"]


TIMED = (TaskState.DELAYED, TaskState.TAKEN)
"""States with a timer of their own; that of the others is the end of the life of the task."""


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A task as stored, with a small payload (change.py). Append fields with a default; never reorder."""

    id: Annotated[bytes, msgspec.Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
    state: StoredState
    pri: Priority
    created_us: int
    expires_us: Count
    ttr_us: Count
    size_bytes: Count
    key: bytes = b""
    attempts: int = 0
    until_us: Count = NEVER_US
    """The end of the delay or of the lease; NEVER_US in other states."""
    session: bytes = b""
    token: bytes = b""
    cost: int = 1
    failures: int = 0
    """Number of failed attempts since the put, and in an earlier queue; the latest failures are stored."""
    forgiven: int = 0
    """`failures` at the last kick, or at the put into another queue."""
    orphaned: int = 0
    """Number of attempts in a row that ended without their holder (lease over, holder dead)."""
    excused: int = 0
    """Failures since the last kick that an outage of the database caused, and that do not count."""
    payload: bytes = b""
    taken_us: int = 0
    """The time of its take; 0 in other states."""
    trace: bytes = b""
    """The trace context of its put (`packed_trace`)."""
    cancelled_us: int = 0
    """The time of its cancel, if it was taken then: it ends with its lease. 0 in other states."""
    error: str | None = None
    """The class of its last failure since the put or the last kick. A buried task without one has an empty
    text.
    """
    fraction: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """The progress that the holder of a taken task has told; None in other states."""
    told_us: int = 0
    """The time at which that was told."""
    extra: Extra | None = None

    @property
    def failures_counted(self) -> int:
        return self.failures - self.forgiven - self.excused

    @property
    def timer_us(self) -> int:
        return self.until_us if self.state in TIMED else self.expires_us


record_to_bytes: Callable[[Record], bytes] = msgspec.msgpack.Encoder().encode
record_of = msgspec.msgpack.Decoder(Record).decode
"""Decode a record. Raises one of aside.DAMAGED for damaged bytes."""


def sound_record(value: bytes | None, id_: bytes) -> Record | None:
    """The record of task `id_`; None for other bytes."""
    try:
        record = None if value is None else record_of(value)
    except DAMAGED:
        return None
    return record if record is not None and record.id == id_ else None


class TaskKeys:
    """The keys of a queue without partitions, or of one partition."""

    def __init__(self, subspace: Any, partition: int = 0) -> None:
        self.prefix = prefix = prefix_of(subspace, partition)
        self.partition = partition
        self.first_index = partition << _NUMBER_SHIFT
        self._before_own = self.first_index.to_bytes(INDEX_BYTES, "big")
        self.task, self.tasks = TASK.key(prefix), TASK.all(prefix)
        after_own = (partition + 1) << _NUMBER_SHIFT
        # Tasks that a put has made here, without those that have moved here, and without damage.
        self.own_tasks = slice(self.task(self._before_own), self.task(after_own.to_bytes(INDEX_BYTES, "big")))
        self._index = slice(len(self.tasks.start), len(self.tasks.start) + INDEX_BYTES)
        self.payload, self.payloads_of = PAYLOAD.key(prefix), PAYLOAD.of(prefix)
        self.ready_at, self.ready = READY.key(prefix), READY.all(prefix)
        self.taken_by, self.taken = TAKEN.key(prefix), TAKEN.all(prefix)
        self.taker_in, self.all_taken_by = TAKEN.first(prefix), TAKEN.of(prefix)
        self.delayed_at, self.delayed = DELAYED.key(prefix), DELAYED.all(prefix)
        self.buried_at, self.buried = BURIED.key(prefix), BURIED.all(prefix)
        self.timer, self.timers = TIMER.key(prefix), TIMER.all(prefix)
        self.time_of, self.timers_until = TIMER.first(prefix), TIMER.until(prefix)
        self.beside, self.line = BESIDE.start(prefix), LINE.start(prefix)
        self.counters = COUNTERS.start(prefix)
        self.contents = slice(self.tasks.start, self.counters)
        self.seat, self.seats, self.gate = SEAT.key(prefix), SEAT.all(prefix), GATE.start(prefix)
        self.paused, self.redrive = PAUSED.start(prefix), REDRIVE.start(prefix)
        self.failure, self.failures = FAILURE.key(prefix), FAILURE.all(prefix)
        self.failures_of = FAILURE.of(prefix)
        self.classed_at, self.classed, self.class_in = (
            CLASSED.key(prefix),
            CLASSED.all(prefix),
            CLASSED.first(prefix),
        )
        self.class_count, self.class_counts = CLASS_COUNT.key(prefix), CLASS_COUNT.all(prefix)
        self.class_counted = CLASS_COUNT.first(prefix)
        self.ended, self.all_ended = ENDED.key(prefix), ENDED.all(prefix)
        self.ended_at, self.ended_times = ENDED_AT.key(prefix), ENDED_AT.all(prefix)
        self.ended_time, self.ended_after = ENDED_AT.first(prefix), ENDED_AT.after(prefix)
        self.ended_of, self.all_ended_of = ENDED_OF.key(prefix), ENDED_OF.all(prefix)
        self.ended_count = ENDED_COUNT.start(prefix)
        self.step, self.all_steps = STEP.key(prefix), STEP.all(prefix)
        self.step_name, self.steps_of = STEP.last(prefix), STEP.of(prefix, b"\xff")
        self.parts_of, self.has_shape = S.parts_of(prefix), S.has_shape(prefix)

    class_at = staticmethod(text_in)
    """The class in the part of a key of S[17] or S[18] behind its column."""

    def is_key(self, key: bytes) -> bool:
        """True if `key` may be one of this queue; its subspace may hold keys of something else."""
        column = key[len(self.prefix) : len(self.prefix) + 2]
        rest_bytes = len(key) - len(self.prefix) - len(column)
        return column in _CODES and rest_bytes == _REST_BYTES.get(column, rest_bytes)

    def index_of(self, task_key: bytes) -> int:
        return int.from_bytes(task_key[self._index])

    def order_of(self, id_: bytes) -> bytes:
        """The order of a task by arrival; it ends in the id. A task that has moved here comes before all that
        were put here: otherwise it would wait behind puts without end.
        """
        return id_ if partition_of(id_) == self.partition else self._before_own + id_

    def classed_under(self, error: str) -> slice:
        start = self.classed_at(error, b"")
        return slice(start, start[:-1] + bytes((start[-1] + 1,)))  # it ends in no 0xff

    def ended_of_after(self, key: bytes, time_us: int) -> slice:
        """The tasks of a task key that ended after that time. A longer task key goes on with 0xff, and a time
        of the next two thousand years begins with 0x00.
        """
        return slice(self.ended_of(key, time_us + 1, b""), self.all_ended_of.start + key + b"\xff")


def partition_of(id_: bytes) -> int:
    return 0 if id_[0] else id_[1]


def id_in(key: bytes) -> bytes:
    return key[-ID_BYTES:]


def priority_in(place: bytes) -> int:
    """The priority of a task, from its place without its id: there may be one, and an index behind it."""
    return int(NUMBER.unpack_from(place)[0]) if len(place) % INDEX_BYTES == NUMBER.size else 0


def new_id(index: int, random: bytes) -> bytes:
    return index.to_bytes(INDEX_BYTES, "big") + random


def id_text(id_: bytes) -> str:
    """Printable, and in the same order: base32 with the extended hex alphabet."""
    # Each step halves the groups of bits and spreads them. base64.b32hexencode takes three times as long.
    bits = int.from_bytes(id_)
    for low, high, shift in _SPREAD:
        bits = bits & low | (bits & high) << shift
    return bits.to_bytes(_ID_DIGITS).translate(_TABLE).decode()


def id_bytes(text: Any) -> bytes:
    if not isinstance(text, str) or len(text) != _ID_DIGITS or text.strip(_DIGITS):
        raise InvalidArgument(name="task", wanted="a Task, or the id of one", got=text)
    return int(text, 32).to_bytes(ID_BYTES)


def id_of(task: Task | str) -> bytes:
    """The id in a task, or in the text of an id. Raises: InvalidArgument."""
    return id_bytes(task.id if isinstance(task, Task) else task)


_SPREAD = [
    (low := sum(((1 << (80 >> n)) - 1) << at for at in range(0, 256, 256 >> n)), low << (80 >> n), 48 >> n)
    for n in range(5)
]
"""For each step: masks of the lower and the upper halves of the groups, and the way of the upper ones."""


Statistics = dict[str, dict[str, int]]

LIVE_NAMES = ("ready", "taken", "buried", "delayed")
LIVE_OF: dict[str, str] = {
    TaskState.READY: "ready",
    TaskState.TAKEN: "taken",
    TaskState.BURIED: "buried",
    TaskState.DELAYED: "delayed",
}
CALL_NAMES = (
    "put",
    "take",
    "ack",
    "release",
    "bury",
    "kick",
    "delete",
    "touch",
    "ttl",
    "ttr",
    "delay",
    "done",
    "other",
    "cancel",
)
"""`done` is reported with the tasks. New ones go to the end.

`other` counts changes that no statistic reports, because the key of these counters is the doorbell of the
line.
"""

COUNTER_NAMES = (*LIVE_NAMES, *CALL_NAMES)
"""The counters of a queue, in one row: nearly every change counts tasks and a call, and adds to one key."""

_FIELD_BITS = 64
_MASK = (1 << _FIELD_BITS) - 1
_ONE = {name: 1 << (_FIELD_BITS * at) for at, name in enumerate(COUNTER_NAMES)}
ONE_LIVE = {state: _ONE[name] for state, name in LIVE_OF.items()}
"""One more task of a state, in the number of COUNTERS."""
ONE_CALL = {call: _ONE[call] for call in CALL_NAMES}
COUNTERS_BYTES, CALLS_AT = 8 * len(COUNTER_NAMES), 8 * len(LIVE_NAMES)
COUNTERS_MASK = (1 << (8 * COUNTERS_BYTES)) - 1
"""Fields may be negative while they are added up: the number is stored modulo this one."""
NO_TASKS = bytes(CALLS_AT).ljust(COUNTERS_BYTES, b"\xff")
"""Its AND to the counters leaves those of calls."""


def packed(fields: tuple[str, ...], changes: Mapping[str, int]) -> bytes:
    bits = _FIELD_BITS * len(fields)
    total = 0
    for name, change in changes.items():
        total += change << (_FIELD_BITS * fields.index(name))
    return (total & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def unpacked(fields: tuple[str, ...], value: bytes | None) -> dict[str, int]:
    total = int.from_bytes(value or b"", "little")
    return {name: (total >> (_FIELD_BITS * n)) & _MASK for n, name in enumerate(fields)}


def count_of(counters: bytes | None) -> int:
    return sum(unpacked(LIVE_NAMES, counters).values())


def calls_in(counters: bytes | None) -> dict[str, int]:
    return unpacked(CALL_NAMES, (counters or b"")[CALLS_AT:])


def statistics_of(counters: bytes | None) -> Statistics:
    tasks, done = unpacked(LIVE_NAMES, counters), calls_in(counters)
    counts = {**tasks, "done": done.pop("done"), "total": sum(tasks.values())}
    done.pop("other")
    return {"tasks": counts, "calls": done, "ends": ends_of(done)}


def summed(found: Sequence[Statistics]) -> Statistics:
    """The statistics of several partitions, which all have the same names, as those of one queue."""
    return {
        part: {name: sum(one[part][name] for one in found) for name in names}
        for part, names in found[0].items()
    }


def ends_of(calls: Mapping[str, int]) -> dict[str, int]:
    """The ends of tasks: acked, expired, deleted and cancelled ones are done; a buried one may be kicked."""
    # An expiry counts as a delete, too, as in the reference.
    return {
        "acked": calls["ack"],
        "expired": calls["ttl"],
        "deleted": calls["delete"] - calls["ttl"],
        "cancelled": calls["cancel"],
        "buried": calls["bury"],
    }
