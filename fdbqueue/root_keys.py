"""Keys under the root subspace: the only file that builds or parses them.

R is the root, by default `Subspace(("fdbqueue",))`; values are tuples unless the table says otherwise.

    R[0, name]            definition     see registry/definition.py    read by every call on a named queue
    R[1]                  last id        little-endian, grows only     read by create
    R[2, id, ...]         contents       the queue's own subspace
    R[3, process, slot]   receipt        id and time of last attempt   read by a retry after 1021/1039
    R[4, session]         session        (owner, name, ttr_us), and    read by every take for the session
                                         host, process id and layout
                                         if it has no name
    R[5, name]            named session  session                       read by the openings of that name
    R[6, session]         heartbeat      deadline_us                   read by its next heartbeat, its end
    R[6, session, opener] opener         a deadline and a process      see sessions/openers.py
    R[7, deadline, session] beats due    empty                         sweepers: dead sessions
    R[8, session]         presence       see fleet/presence.py         workers(); goes with the session
    R[9, run]             run            counters, see runs.py         the supervisor; goes with its session
    R[10, session]        membership     run                           the last step of the session's end
    R[11, id, ...]        progress       see imports/progress.py       the next step of an import into a queue
    R[12, name]           schedule       see schedules/records.py      list(); its firing, its verbs
    R[12, name, 0]        its state      see schedules/records.py      the same
    R[13, time, name]     schedule due   empty                         passes: the schedules that are due
    R[14, group]          group          see records/groups.py         puts of members, progress, sweeps
    R[14, group, 0]       counts         of all its members            progress, sweeps; every end adds here
    R[14, group, 1]       cancelled      time in microseconds          puts and takes of members
    R[14, group, 2, id]   spread         name of the queue             sweeps: a queue that has had members
    R[15, 0, group]       doubt          empty                         sweeps: a group that may have ended
    R[15, 1, id]          lost           epoch                         sweeps: a queue with truncated members
    R[15, 2, group]       cancelling     place of the next member      sweeps
    R[15, 3, time, group] over           empty                         sweeps: a group that can be forgotten
    R[16, ...], R[17, ...]               limits: see limiting/keys.py
    R[18, id]             upgrade        see upgrading/upgrade.py      the next step of an upgrade of a queue
    R["celery", ...]      celery         see celery/keys.py            brokers and chords of Celery
    R["results", ...]     stored results see frameworks/keys.py        result backends of frameworks
    R["taskiq", ...]      schedules      see taskiq/keys.py            schedule sources of Taskiq

`id` is never used twice, so a handle to a dropped queue cannot reach the contents of its successor. A
`run` is the id of a supervisor's session. `time` is that of the next look at a schedule, in microseconds. A
schedule that waits for no time has no key in R[13]. `owner` is the first opener; earlier releases read it.
"""

import struct
from typing import Any

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.arguments import checked_prefix

DEFAULT_ROOT = Subspace(("fdbqueue",))

DEFINITION, LAST_ID, CONTENTS, RECEIPT, SESSION, SESSION_NAME, HEARTBEAT, BEAT_DUE, PRESENCE = range(9)
RUN, MEMBERSHIP, PROGRESS, SCHEDULE, SCHEDULE_DUE = 9, 10, 11, 12, 13
CELERY, RESULTS, TASKIQ = "celery", "results", "taskiq"
GROUP, GROUP_SWEEP = 14, 15
COUNTS, CANCELLED, SPREAD = range(3)
"""Rows of a group, behind its id."""
DOUBT, LOST, CANCELLING, OVER = range(4)
"""Rows of the sweeps of groups."""

MEMBERS = 34
"""The column of a queue that outlives its drop: the counts of members of groups (partitions/keys.py)."""
EVERY_EPOCH = b"\xff" * 8
"""The epoch of a dropped queue: no member of it is left, whatever its own."""
LIMIT, LIMITED, UPGRADE = 16, 17, 18

_SHAPES: dict[Any, list[type]] = {
    RECEIPT: [bytes, int],
    SESSION: [bytes],
    SESSION_NAME: [str],
    HEARTBEAT: [bytes],
    BEAT_DUE: [int, bytes],
    PRESENCE: [bytes],
    RUN: [bytes],
    MEMBERSHIP: [bytes],
}
"""The parts behind the column, in the keys that do not belong to a queue."""

_LIMIT_SHAPES: dict[Any, list[list[type]]] = {
    LIMIT: [[str]],
    LIMITED: [
        [str, int],
        [str, int, bytes],
        [str, int, int, bytes],
        [str, int, bytes, int, int, bytes],
        [str, int, bytes, int, int, int, bytes],
    ],
}

_ALL_SHAPES: dict[Any, list[list[type]]] = {
    **{column: [shape] for column, shape in _SHAPES.items()},
    **_LIMIT_SHAPES,
    DEFINITION: [[str]],
    LAST_ID: [[]],
    UPGRADE: [[int]],
    HEARTBEAT: [[bytes], [bytes, bytes]],
    SCHEDULE: [[str], [str, int]],
    SCHEDULE_DUE: [[int, str]],
    GROUP: [[bytes], [bytes, int], [bytes, int, int]],
    GROUP_SWEEP: [[int, bytes], [int, int], [int, int, bytes]],
    CELERY: [
        [int, str, str, str],
        [int, str],
        [int, str, str],
        [int, str, int, str],
        [int, int, str],
    ],
    RESULTS: [[int, str, bytes], [int, str, bytes, int], [int, str, int, bytes]],
    TASKIQ: [[int, str]],
}
"""The parts behind the column, in all keys under the root but contents and progress."""

LAST_ID_BYTES = 8
_STATE = 0
"""The part that tells the state of a schedule from the schedule."""

_INT_ZERO, _INT_BYTES_MAX = 0x14, 8
"""The tuple layer's code of the number 0; that of a number of n bytes is larger by n."""

_BYTES = b"\x01"
"""The tuple layer's code of a byte string."""


class RootKeys:
    def __init__(self, root: Any) -> None:
        """Raises WrongType, InvalidArgument."""
        self.prefix: bytes = checked_prefix("root", root)
        self.last_id: bytes = self._pack(LAST_ID)
        self.definitions: slice = self._range(DEFINITION)
        self.receipts: slice = self._range(RECEIPT)
        self.sessions: slice = self._range(SESSION)
        self.beats_due: slice = self._range(BEAT_DUE)
        self.presences: slice = self._range(PRESENCE)
        self.memberships: slice = self._range(MEMBERSHIP)
        self.schedules: slice = self._range(SCHEDULE)
        self.schedules_due: slice = self._range(SCHEDULE_DUE)
        self.groups: slice = self._range(GROUP)
        self.group_sweeps = slice(self._pack(GROUP_SWEEP, DOUBT), self._pack(GROUP_SWEEP, OVER))
        """What sweeps of groups have to do at once."""
        self.doubts: slice = self._range(GROUP_SWEEP, DOUBT)
        self.lost: slice = self._range(GROUP_SWEEP, LOST)
        self.cancellings: slice = self._range(GROUP_SWEEP, CANCELLING)
        self.groups_over: slice = self._range(GROUP_SWEEP, OVER)
        self.limits: slice = self._range(LIMIT)
        self.all_contents = slice(self._pack(CONTENTS), self._pack(CONTENTS + 1))

    def _pack(self, *items: Any) -> bytes:
        key: bytes = layer.pack(items, prefix=self.prefix)
        return key

    def _range(self, *items: Any) -> slice:
        under = self._pack(*items)
        return slice(under + b"\x00", under + b"\xff")

    def is_before_the_first_queue(self, key: bytes) -> bool:
        """True if `key` may lie under a root in which no queue has been created yet: receipts, sessions,
        limits, results of frameworks and schedules of Taskiq.
        """
        column, *shape = self._shape_of(key)
        if column in (GROUP, GROUP_SWEEP, CELERY, RESULTS, TASKIQ):
            return shape in _ALL_SHAPES[column]
        return _SHAPES.get(column) == shape or shape in _LIMIT_SHAPES.get(column, ())

    def is_receipt(self, key: bytes) -> bool:
        """True if `key` has the shape of a receipt."""
        return self._shape_of(key) == [RECEIPT, *_SHAPES[RECEIPT]]

    def _shape_of(self, key: bytes) -> list[Any]:
        """The column and the types of what follows; [None] for a key that no tuple makes."""
        column, *rest = self._parts_of(key)
        return [column, *map(type, rest)]

    def _parts_of(self, key: bytes) -> list[Any]:
        """The column and what follows; [None] for a key that no tuple makes."""
        try:
            return list(layer.unpack(key, prefix_len=len(self.prefix))) or [None]
        except (ValueError, IndexError, struct.error):
            return [None]

    def limit_of(self, key: bytes) -> str | None:
        """The limit that a key of R[16] belongs to; None for another shape."""
        column, rest = self.shape_of(key)
        return rest[0] if column == LIMIT else None

    def definition(self, name: str) -> bytes:
        return self._pack(DEFINITION, name)

    def name_of(self, definition_key: bytes) -> str | None:
        """None for a key that ends in no name."""
        column, *rest = self._parts_of(definition_key)
        name = rest[0] if column == DEFINITION and len(rest) == 1 else None
        return name if isinstance(name, str) and self.definition(name) == definition_key else None

    def shape_of(self, key: bytes) -> tuple[Any, list[Any]]:
        """The column of a key and the parts behind it; None as the column of a key that no tuple makes."""
        column, *rest = self._parts_of(key)
        known = column == PROGRESS or [type(part) for part in rest] in _ALL_SHAPES.get(column, ())
        return (column, rest) if known else (None, rest)

    def id_in(self, contents_key: bytes) -> int | None:
        """The id of the queue that a key of R[2] belongs to; None for another shape."""
        start = len(self._pack(CONTENTS))
        size = contents_key[start] - _INT_ZERO if len(contents_key) > start else 0
        found = contents_key[start + 1 : start + 1 + size]
        return int.from_bytes(found, "big") if 0 < size <= _INT_BYTES_MAX and len(found) == size else None

    def contents(self, id_: int) -> Subspace:
        return Subspace((CONTENTS, id_), self.prefix)

    def receipt(self, process: bytes, slot: int) -> bytes:
        return self._pack(RECEIPT, process, slot)

    def receipts_in(self, parts: int) -> list[bytes]:
        """The first bytes of even parts of the receipts, in order: names of processes are random.

        There are at most limits.RECEIPT_PARTS_MAX parts.
        """
        first, count = self._pack(RECEIPT) + _BYTES, min(parts, limits.RECEIPT_PARTS_MAX)
        return [first, *(first + bytes((256 * number // count,)) for number in range(1, count))]

    def session(self, session: bytes) -> bytes:
        return self._pack(SESSION, session)

    def session_named(self, name: str) -> bytes:
        return self._pack(SESSION_NAME, name)

    def heartbeat(self, session: bytes) -> bytes:
        return self._pack(HEARTBEAT, session)

    def opener(self, session: bytes, opener: bytes) -> bytes:
        return self._pack(HEARTBEAT, session, opener)

    def openers(self, session: bytes) -> slice:
        return self._range(HEARTBEAT, session)

    def presence(self, session: bytes) -> bytes:
        return self._pack(PRESENCE, session)

    def session_of(self, presence: bytes) -> bytes:
        """The session in a key of R[4] or R[8]."""
        session: bytes = layer.unpack(presence, prefix_len=len(self.prefix))[1]
        return session

    def run(self, run: bytes) -> bytes:
        return self._pack(RUN, run)

    def membership(self, session: bytes) -> bytes:
        return self._pack(MEMBERSHIP, session)

    def upgrade(self, id_: int) -> bytes:
        """The progress of an upgrade of one queue."""
        return self._pack(UPGRADE, id_)

    def imports_into(self, id_: int) -> slice:
        """The progress of all imports into one queue."""
        return self._range(PROGRESS, id_)

    def progress(self, id_: int, label: str) -> bytes:
        return self._pack(PROGRESS, id_, label)

    def skipped(self, id_: int, label: str, position: tuple[Any, ...]) -> bytes:
        return self._pack(PROGRESS, id_, label, position)

    def all_skipped(self, id_: int, label: str) -> slice:
        return self._range(PROGRESS, id_, label)

    def position_of(self, skipped_key: bytes) -> tuple[Any, ...]:
        position: tuple[Any, ...] = layer.unpack(skipped_key, prefix_len=len(self.prefix))[-1]
        return position

    def schedule(self, name: str) -> bytes:
        return self._pack(SCHEDULE, name)

    def schedule_state(self, name: str) -> bytes:
        return self._pack(SCHEDULE, name, _STATE)

    def schedule_in(self, key: bytes) -> tuple[str, bool] | None:
        """The name in a key of R[12], and true for the state; None for a key of another shape."""
        column, *rest = self._parts_of(key)
        if column != SCHEDULE or not rest or not isinstance(rest[0], str):
            return None
        return (rest[0], len(rest) > 1) if rest[1:] in ([], [_STATE]) else None

    def schedules_after(self, name: str) -> slice:
        """The schedules with their states behind that name; all for an empty name."""
        begin = self.schedule(name) + b"\xff" if name else self.schedules.start
        return slice(begin, self.schedules.stop)

    def schedule_due(self, time_us: int, name: str) -> bytes:
        return self._pack(SCHEDULE_DUE, time_us, name)

    def schedule_due_in(self, key: bytes) -> tuple[int, str] | None:
        """The time and the name in a key of R[13]; None for a key of another shape."""
        column, *rest = self._parts_of(key)
        if column != SCHEDULE_DUE or [type(part) for part in rest] != [int, str]:
            return None
        return rest[0], rest[1]

    def schedules_due_until(self, time_us: int) -> slice:
        """The entries of at most this time."""
        return slice(self.schedules_due.start, self._pack(SCHEDULE_DUE, time_us + 1))

    # Groups.

    def group(self, group: bytes) -> bytes:
        return self._pack(GROUP, group)

    def rows_of_group(self, group: bytes) -> slice:
        """All rows of a group."""
        start = self.group(group)
        return slice(start, start + b"\xff")

    def group_in(self, key: bytes) -> bytes | None:
        """The group of a key of R[14], or of one of R[15] that ends in a group; None for another shape."""
        column, *rest = self._parts_of(key)
        if column == GROUP:
            return rest[0] if isinstance(rest[0], bytes) else None
        return rest[-1] if column == GROUP_SWEEP and isinstance(rest[-1], bytes) else None

    def group_counts(self, group: bytes) -> bytes:
        return self._pack(GROUP, group, COUNTS)

    def group_cancelled(self, group: bytes) -> bytes:
        return self._pack(GROUP, group, CANCELLED)

    def group_spread(self, group: bytes, id_: int) -> bytes:
        return self._pack(GROUP, group, SPREAD, id_)

    def spreads_of(self, group: bytes) -> slice:
        """The queues that have had members of a group."""
        return self._range(GROUP, group, SPREAD)

    def doubt(self, group: bytes) -> bytes:
        return self._pack(GROUP_SWEEP, DOUBT, group)

    def members_in(self, id_: int) -> slice:
        """The counts of members of groups in the contents of a queue."""
        return slice(self._pack(CONTENTS, id_, MEMBERS), self._pack(CONTENTS, id_, MEMBERS + 1))

    def lost_members(self, id_: int) -> bytes:
        return self._pack(GROUP_SWEEP, LOST, id_)

    def cancelling(self, group: bytes) -> bytes:
        return self._pack(GROUP_SWEEP, CANCELLING, group)

    def group_over(self, time_us: int, group: bytes) -> bytes:
        return self._pack(GROUP_SWEEP, OVER, time_us, group)

    def groups_over_until(self, time_us: int) -> slice:
        return slice(self.groups_over.start, self._pack(GROUP_SWEEP, OVER, time_us + 1))

    def last_number_in(self, key: bytes) -> int:
        """The number in a key of R[14] or R[15] that has one: an id of a queue, or a time."""
        numbers = [part for part in self._parts_of(key) if isinstance(part, int)]
        return int(numbers[-1])

    def beat_due(self, deadline_us: int, session: bytes) -> bytes:
        return self._pack(BEAT_DUE, deadline_us, session)

    def beats_due_until(self, deadline_us: int) -> slice:
        """The entries with at most this deadline."""
        return slice(self.beats_due.start, self._pack(BEAT_DUE, deadline_us + 1))

    def beats_due_after(self, deadline_us: int) -> slice:
        return slice(self._pack(BEAT_DUE, deadline_us + 1), self.beats_due.stop)

    def beat_of(self, beat_due_key: bytes) -> tuple[int, bytes] | None:
        """The deadline, and the session that has it; None for a key of another shape."""
        if self._shape_of(beat_due_key) != [BEAT_DUE, *_SHAPES[BEAT_DUE]]:
            return None
        _, deadline_us, session = layer.unpack(beat_due_key, prefix_len=len(self.prefix))
        return deadline_us, session
