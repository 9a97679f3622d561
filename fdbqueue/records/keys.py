"""Keys of a task queue, and their values: the only file that builds or parses them.

S is the subspace of the queue. `id` is 20 bytes (index, random): the task's identity, and its order of
arrival. `place` is the sort key of the discipline; it ends in the id. `time` is microseconds since the
epoch, 8 bytes.

    S[1] id              task      record                      every verb; put, the last one by snapshot
    S[2] id, number      payload   bytes, if too many for      take, peek; verbs given an id
                                   the record: a piece of them
    S[3] place           ready     record                      takers, by snapshot; keyed: a pointer per key;
                                                               with lanes: see disciplines/lanes.py
    S[4] session, id     taken     the task key                end of a session, release_all, drop
    S[5] id              delayed   the task key                tasks()
    S[6] place           buried    the task key                kick
    S[7] time, id        timer     empty                       sweeps and takes: tasks that are due
    S[8] ...             beside    see disciplines/keyed.py    keyed disciplines; lanes: disciplines/lanes.py
    S[9]                 live      tasks in each state         statistics; put into a bounded queue
    S[10]                calls     counts of the verbs         statistics; the doorbell of the line
    S[11, ...]           line      see line/keys.py
    S[12] number         seat      never written               conflict keys of puts into a bounded queue
    S[13]                gate      never written               the same, at the edge
    S[14, ...]           owners    see persistent/owners.py    opens of a persistent queue with an owner
    S[15]                paused    empty                       takes: they find nothing
    S[16] id, slot       failure   see failures.py             failures(); written blindly, in a ring
    S[17] class, place   classed   empty                       buried tasks of one class of failure
    S[18] class          count     number of entries in S[17]  classes of failure
    S[19]                redrive   see dead/redrive.py         the next step of a redrive
    S[20] id             ended     an ended task               ended_task()
    S[21] time, id       ended at  the task key                ended_tasks(); sweeps, the oldest first
    S[22] key, time, id  ended of  empty                       ended_tasks_of()
    S[23]                ended     number of entries in S[20]  sweeps
    S[24] to S[28]       of a queue with partitions: see partitions/keys.py
    S[29], S[30]         unique keys: see partitions/keys.py
    S[31], S[32]         results: see partitions/keys.py
    S[33] id, name       step      see tasks/steps.py          step(); the name has its length in front
    S[34] to S[36]       members of groups: see partitions/keys.py

Everything before S[9] is a task's, and goes in one range clear. A task has exactly one key in one of
S[3] to S[6], the one of its state, and at most one timer: the end of its delay, its lease or its ttl.
`class` is the error of the last failure, with its length in front (a byte). Tasks that an earlier release
buried have no entry in S[17]. Only a queue with `retain_s` has S[20] to S[23] (tasks/retaining.py).
If a record is damaged, the key of its state still identifies the task (mending.py).
"""

import struct
from base64 import b32hexencode
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.arguments import checked_id
from fdbqueue.aside import DAMAGED
from fdbqueue.partitions.keys import (
    BELL,
    EPOCH,
    EPOCH_BYTES,
    FLAG,
    GROUP_BYTES,
    MEMBER,
    MEMBERS,
    MOVED,
    PARTITION,
    RESULT,
    RESULT_AT,
    TIME_BYTES,
    UNIQUE,
    WIDE_LINE,
    WINDOW,
    prefix_of,
    time_bytes,
)
from fdbqueue.records.extra import NEVER_US as NEVER_US
from fdbqueue.records.extra import Count as Count
from fdbqueue.records.extra import Extra as Extra
from fdbqueue.records.extra import Member as Member
from fdbqueue.records.extra import Unique as Unique
from fdbqueue.task import TaskState

TASK, PAYLOAD, READY, TAKEN, DELAYED, BURIED, TIMER, BESIDE, LIVE, CALLS, LINE, SEAT, GATE = range(1, 14)
PAUSED, FAILURE, CLASSED, CLASS_COUNT, REDRIVE, ENDED, ENDED_AT, ENDED_OF, ENDED_COUNT = range(15, 24)
STEP = RESULT_AT + 1
LAST = EPOCH

INDEX_BYTES = 8
ID_BYTES = INDEX_BYTES + limits.RANDOM_SUFFIX_BYTES
SESSION_BYTES = 16
NUMBER = struct.Struct(">I")

_NUMBER_SHIFT = 48
"""The second byte of an index is the number of the partition: a task's id names the place of its put."""

_COLUMNS: dict[int, bytes] = {n: layer.pack((n,)) for n in range(TASK, LAST + 2)}
"""The columns, and the end of the last one; packed once, as each open queue has keys of its own."""
_COLUMN_NUMBERS: dict[bytes, int] = {_COLUMNS[n]: n for n in range(TASK, LAST + 1)}
_REST_BYTES = {layer.pack((TASK,)): ID_BYTES} | {
    layer.pack((n,)): 0 for n in (LIVE, CALLS, GATE, PAUSED, REDRIVE, ENDED_COUNT, EPOCH)
}
"""Number of bytes behind these columns."""


_PLACE_BYTES_MAX = limits.TASK_KEY_BYTES_MAX + INDEX_BYTES + ID_BYTES
_REST_BYTES_OF: dict[int, tuple[int, int]] = {
    TASK: (ID_BYTES, ID_BYTES),
    PAYLOAD: (ID_BYTES + NUMBER.size, ID_BYTES + NUMBER.size),
    READY: (ID_BYTES, _PLACE_BYTES_MAX),
    TAKEN: (SESSION_BYTES + ID_BYTES, SESSION_BYTES + ID_BYTES),
    DELAYED: (ID_BYTES, ID_BYTES),
    BURIED: (ID_BYTES, _PLACE_BYTES_MAX),
    TIMER: (TIME_BYTES + ID_BYTES, TIME_BYTES + ID_BYTES),
    BESIDE: (1, limits.KEY_BYTES_MAX),
    LIVE: (0, 0),
    CALLS: (0, 0),
    LINE: (1, limits.KEY_BYTES_MAX),
    PAUSED: (0, 0),
    FAILURE: (ID_BYTES + 1, ID_BYTES + 1),
    CLASSED: (1 + ID_BYTES, _PLACE_BYTES_MAX + limits.FAILURE_MESSAGE_BYTES_MAX),
    CLASS_COUNT: (1, limits.FAILURE_MESSAGE_BYTES_MAX),
    REDRIVE: (0, 0),
    ENDED: (ID_BYTES, ID_BYTES),
    ENDED_AT: (TIME_BYTES + ID_BYTES, TIME_BYTES + ID_BYTES),
    ENDED_OF: (1 + TIME_BYTES + ID_BYTES, TIME_BYTES + _PLACE_BYTES_MAX),
    ENDED_COUNT: (0, 0),
    FLAG: (1, 1),
    BELL: (0, 1),
    WIDE_LINE: (1, limits.KEY_BYTES_MAX),
    MOVED: (ID_BYTES, ID_BYTES),
    PARTITION: (1 + 2, limits.KEY_BYTES_MAX),
    RESULT: (ID_BYTES, ID_BYTES + NUMBER.size),
    RESULT_AT: (TIME_BYTES + ID_BYTES, TIME_BYTES + ID_BYTES),
    STEP: (ID_BYTES + 2, ID_BYTES + 1 + limits.STEP_NAME_BYTES_MAX),
    UNIQUE: (1, limits.TASK_KEY_BYTES_MAX),
    WINDOW: (TIME_BYTES + 1, TIME_BYTES + limits.TASK_KEY_BYTES_MAX),
    MEMBERS: (EPOCH_BYTES + GROUP_BYTES, EPOCH_BYTES + GROUP_BYTES),
    MEMBER: (GROUP_BYTES + ID_BYTES, GROUP_BYTES + ID_BYTES),
    EPOCH: (0, 0),
}
"""The smallest and the largest number of bytes behind a column. A column that is not here has no keys."""


# A larger number does not fit into a key.
Priority = Annotated[int, msgspec.Meta(ge=0, le=limits.PRIORITY_MAX)]

if TYPE_CHECKING:
    StoredState = str
else:  # the decoder refuses any other text; a type checker would refuse the members of TaskState
    StoredState = Literal["r", "t", "!", "~"]


class Record(msgspec.Struct, frozen=True, array_like=True):
    """A task as stored, with a small payload (payloads.py). Append fields with a default; never reorder."""

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
    """The trace context of its put (trace_context.py)."""
    cancelled_us: int = 0
    """The time of its cancel, if it was taken then: it ends with its lease. 0 in other states."""
    error: str | None = None
    """The class of its last failure since the put or the last kick. A buried task without one has an empty
    text; None, if an earlier release buried it.
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
        """The time of the task's timer."""
        waits = self.state in (TaskState.DELAYED, TaskState.TAKEN)
        return self.until_us if waits else self.expires_us


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
        prefix = prefix_of(subspace, partition)
        self.partition = partition
        self.first_index = partition << _NUMBER_SHIFT
        self._before_own = self.first_index.to_bytes(INDEX_BYTES, "big")
        columns = {n: prefix + column for n, column in _COLUMNS.items()}
        self._task, self._payload = columns[TASK], columns[PAYLOAD]
        self._taken, self._delayed, self._buried = columns[TAKEN], columns[DELAYED], columns[BURIED]
        self._ready, self._timer, self._seat = columns[READY], columns[TIMER], columns[SEAT]
        self.prefix = prefix
        self.beside = columns[BESIDE]
        self.live = columns[LIVE]
        self.calls = columns[CALLS]
        self.line = columns[LINE]
        self.gate = columns[GATE]
        self.paused = columns[PAUSED]
        self._failure = columns[FAILURE]
        self._classed, self._class_count = columns[CLASSED], columns[CLASS_COUNT]
        self.redrive = columns[REDRIVE]
        self._ended, self._ended_at, self._ended_of = columns[ENDED], columns[ENDED_AT], columns[ENDED_OF]
        self.ended_count = columns[ENDED_COUNT]
        self._step = columns[STEP]
        self.all_steps = slice(columns[STEP], columns[STEP + 1])
        # A column ends where the next one begins: what follows its prefix may start with any byte.
        self.tasks = slice(columns[TASK], columns[PAYLOAD])
        after_own = (partition + 1) << _NUMBER_SHIFT
        # Tasks that a put has made here, without those that have moved here, and without damage.
        self.own_tasks = slice(
            columns[TASK] + self._before_own, columns[TASK] + after_own.to_bytes(INDEX_BYTES, "big")
        )
        self.ready = slice(columns[READY], columns[TAKEN])
        self.taken = slice(columns[TAKEN], columns[DELAYED])
        self.delayed = slice(columns[DELAYED], columns[BURIED])
        self.buried = slice(columns[BURIED], columns[TIMER])
        self.timers = slice(columns[TIMER], columns[BESIDE])
        self.contents = slice(columns[TASK], columns[LIVE])
        self.seats = slice(columns[SEAT], columns[GATE])
        self.failures = slice(columns[FAILURE], columns[CLASSED])
        self.classed = slice(columns[CLASSED], columns[CLASS_COUNT])
        self.class_counts = slice(columns[CLASS_COUNT], columns[REDRIVE])
        self.all_ended = slice(columns[ENDED], columns[ENDED_AT])
        self.ended_times = slice(columns[ENDED_AT], columns[ENDED_OF])
        self.all_ended_of = slice(columns[ENDED_OF], columns[ENDED_COUNT])

    def is_key(self, key: bytes) -> bool:
        """True if `key` may be one of this queue; its subspace may hold keys of something else."""
        column = key[len(self.prefix) : len(self.prefix) + 2]
        rest_bytes = len(key) - len(self.prefix) - len(column)
        return column in _COLUMN_NUMBERS and rest_bytes == _REST_BYTES.get(column, rest_bytes)

    def has_shape(self, key: bytes) -> bool:
        """True if this queue may have stored `key`, judged by the numbers of bytes of its parts."""
        column, rest = self.parts_of(key)
        shortest, longest = _REST_BYTES_OF.get(column, (0, -1))
        return shortest <= len(rest) <= longest

    def parts_of(self, key: bytes) -> tuple[int, bytes]:
        """The number of the key's column, 0 for an unknown one, and the part behind it."""
        start = len(self.prefix)
        return _COLUMN_NUMBERS.get(key[start : start + 2], 0), key[start + 2 :]

    def task(self, id_: bytes) -> bytes:
        return self._task + id_

    def payload(self, id_: bytes, piece: int = 0) -> bytes:
        return self._payload + id_ + NUMBER.pack(piece)

    def payloads_of(self, id_: bytes) -> slice:
        return slice(self._payload + id_, self._payload + id_ + b"\xff" * (NUMBER.size + 1))

    def order_of(self, id_: bytes) -> bytes:
        """The order of a task by arrival; it ends in the id. A task that has moved here comes before all that
        were put here: otherwise it would wait behind puts without end.
        """
        return id_ if partition_of(id_) == self.partition else self._before_own + id_

    def ready_at(self, place: bytes) -> bytes:
        return self._ready + place

    def taken_by(self, session: bytes, id_: bytes) -> bytes:
        return self._taken + session + id_

    def taker_in(self, taken_key: bytes) -> bytes:
        """The session for which the task is taken."""
        return taken_key[len(self._taken) : len(self._taken) + SESSION_BYTES]

    def all_taken_by(self, session: bytes) -> slice:
        return slice(self._taken + session, self._taken + session + b"\xff" * (ID_BYTES + 1))

    def delayed_at(self, id_: bytes) -> bytes:
        return self._delayed + id_

    def buried_at(self, place: bytes) -> bytes:
        return self._buried + place

    def timer(self, time_us: int, id_: bytes) -> bytes:
        return self._timer + time_bytes(time_us) + id_

    def timers_until(self, now_us: int) -> slice:
        """Timers of that time and before."""
        return slice(self.timers.start, self._timer + time_bytes(now_us + 1))

    def time_of(self, timer_key: bytes) -> int:
        start = len(self._timer)
        return int.from_bytes(timer_key[start : start + TIME_BYTES], "big")

    def seat(self, number: int) -> bytes:
        return self._seat + NUMBER.pack(number)

    def failure(self, id_: bytes, slot: int) -> bytes:
        return self._failure + id_ + bytes((slot,))

    def failures_of(self, id_: bytes) -> slice:
        return slice(self._failure + id_, self._failure + id_ + b"\xff" * 2)

    def classed_under(self, error: str) -> slice:
        """The buried tasks of a class of failure."""
        start = self._classed + _sized(error)
        return slice(start, start[:-1] + bytes((start[-1] + 1,)))  # it ends in no 0xff

    def classed_at(self, error: str, place: bytes) -> bytes:
        return self._classed + _sized(error) + place

    def class_at(self, rest: bytes) -> str:
        """The class in the part of a key of S[17] or S[18] behind its column."""
        return _class_in(rest)

    def class_in(self, classed_key: bytes) -> str:
        return _class_in(classed_key[len(self._classed) :])

    def class_count(self, error: str) -> bytes:
        return self._class_count + _sized(error)

    def class_counted(self, class_count_key: bytes) -> str:
        return _class_in(class_count_key[len(self._class_count) :])

    def step(self, id_: bytes, name: str) -> bytes:
        return self._step + id_ + _sized(name)

    def steps_of(self, id_: bytes) -> slice:
        return slice(self._step + id_, self._step + id_ + b"\xff")

    def step_name(self, step_key: bytes) -> str:
        return _class_in(step_key[len(self._step) + ID_BYTES :])

    def ended(self, id_: bytes) -> bytes:
        return self._ended + id_

    def ended_at(self, time_us: int, id_: bytes) -> bytes:
        return self._ended_at + time_bytes(time_us) + id_

    def ended_of(self, key: bytes, time_us: int, id_: bytes) -> bytes:
        return self._ended_of + key + time_bytes(time_us) + id_

    def ended_after(self, time_us: int) -> slice:
        """The tasks that ended after that time."""
        return slice(self._ended_at + time_bytes(time_us + 1), self.ended_times.stop)

    def ended_of_after(self, key: bytes, time_us: int) -> slice:
        """The tasks of a task key that ended after that time. A longer task key goes on with 0xff, and a time
        of the next two thousand years begins with 0x00.
        """
        under = self._ended_of + key
        return slice(under + time_bytes(time_us + 1), under + b"\xff")

    def ended_time(self, ended_at_key: bytes) -> int:
        start = len(self._ended_at)
        return int.from_bytes(ended_at_key[start : start + TIME_BYTES], "big")

    def index_of(self, task_key: bytes) -> int:
        start = len(self._task)
        return int.from_bytes(task_key[start : start + INDEX_BYTES], "big")


def partition_of(id_: bytes) -> int:
    """The number of the partition into which the task was put."""
    return 0 if id_[0] else id_[1]


def id_in(key: bytes) -> bytes:
    """The task's id, in which every index key ends."""
    return key[-ID_BYTES:]


def priority_in(place: bytes) -> int:
    """The priority of a task, from its place without its id: there may be one, and an index behind it."""
    return int(NUMBER.unpack_from(place)[0]) if len(place) % INDEX_BYTES == NUMBER.size else 0


def new_id(index: int, random: bytes) -> bytes:
    return index.to_bytes(INDEX_BYTES, "big") + random


def id_text(id_: bytes) -> str:
    """Printable, and in the same order: base32 with the extended hex alphabet."""
    return b32hexencode(id_).decode()


def id_bytes(text: Any) -> bytes:
    """Parse the printable id of a task. Raises InvalidArgument."""
    return checked_id("task", text, ID_BYTES, "a Task, or the id of one")


def _sized(error: str) -> bytes:
    """The class with its length in front: no class is then a prefix of another."""
    name = error.encode()
    return bytes((len(name),)) + name


def _class_in(rest: bytes) -> str:
    return rest[1 : 1 + rest[0]].decode(errors="replace")
