"""Keys under the root subspace: the only file that builds or parses them.

R is the root, by default `Subspace(("fdbqueue",))`. Values are tuples unless a comment says otherwise. The
comment of a column has its parts and its value, and behind the semicolon its readers. R[2, id] is the
subspace of a queue. limits/rule.py builds the keys in R[16] and R[17]. beanstalkd/keys.py,
celery/databases.py, taskiq/broker.py and integrations/common.py build those in R["beanstalkd"], R["celery"],
R["taskiq"] and R["results"].

`id` is never used twice, so a handle to a dropped queue cannot reach the contents of its successor. A
`run` is the id of a supervisor's session. `time` is that of the next look at a schedule, in microseconds. A
schedule that waits for no time has no key in R[13]. `owner` is the first opener.
"""

from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_prefix
from fdbqueue.core.columns import Column, Table, unpacked

LAYOUT = 1
"""The key layout of this release: the keys of queues and of a root, and the meaning of their values.

It lies in the definition of each named queue, and beside a queue over a subspace. Each session tells that of
its release.
"""


DEFAULT_ROOT = Subspace(("fdbqueue",))

R, IMPORTS, SWEEPS, TRASH = Table(), Table(), Table(), Table()
DEFINITION = R.packed(0, str)  # name: see registry.py; every call on a named queue
LAST_ID = R.packed(1)  # little-endian, grows only; create
CONTENTS: Column[()] = Column(2, ())
RECEIPT = R.packed(3, bytes, int)  # process, slot: id and time of last attempt; a retry after 1021 or 1039
SESSION = R.packed(4, bytes)  # (owner, name, ttr_us), without a name also host, process id, layout; its takes
SESSION_NAME = R.packed(5, str)  # session; the openings of that name
HEARTBEAT = R.packed(6, bytes)  # session: (deadline_us, from, to), see sessions/ending.py; heartbeat, end
OPENER = R.packed(6, bytes, bytes)  # session, opener: a deadline and a process; see sessions/ending.py
BEAT_DUE = R.packed(
    7, int, bytes
)  # deadline, session: empty, or the process of an end; sweepers: dead sessions
PRESENCE = R.packed(8, bytes)  # session: see fleet/status.py; workers(). It goes with the session
DRAIN = R.packed(8, bytes, int)  # session, 0: empty; the worker, see fleet/gate.py. It goes with the session
RUN = R.packed(9, bytes)  # run: counters, see sessions/ending.py; the supervisor. It goes with its session
MEMBERSHIP = R.packed(10, bytes)  # session: run; the last step of the session's end
IMPORT = IMPORTS.packed(11, int)  # id
PROGRESS = IMPORTS.packed(11, int, str)  # id, label: see operate/imports.py; the next step of an import
SKIPPED = IMPORTS.packed(11, int, str, tuple)  # id, label, position: the same
SCHEDULE = R.packed(12, str)  # name: see tasks/firing.py; list(), its firing, its verbs
SCHEDULE_STATE = R.packed(12, str, int)  # name, 0: the same
SCHEDULE_DUE = R.packed(13, int, str)  # time, name: empty; passes: the schedules that are due
GROUP = R.packed(14, bytes)  # group: see group_settling.py; puts of members, progress, sweeps
GROUP_ROW = R.packed(14, bytes, int)  # group, row: see below
GROUP_SPREAD = R.packed(14, bytes, int, int)  # group, 2, id: name of a queue that has had members; sweeps
GROUP_SWEEP = R.packed(15, int, bytes)  # and the two next ones: see below
R.packed(15, int, int)
R.packed(15, int, int, bytes)
LIMIT = R.packed(16, str)  # name: see limits/rule.py
PAUSE = R.packed(18)  # (time_us,), see fleet/gate.py; all workers
AUDIT_COUNT = R.packed(19)  # little-endian: the lines; each action
AUDIT = R.packed(19, int, bytes)  # place, random bytes: see operate/audit.py; the page and the command
PURGE = R.packed(20, int, bytes)  # id, purge: see operate/exports/trash.py; later purges, `trash`
TRASHED = R.packed(21, int, bytes, bytes)  # id, purge, task and number: a piece of the task; a restore
PURGES, TRASHED_OF, TRASHED_BY = TRASH.packed(20, int), TRASH.packed(21, int), TRASH.packed(21, int, bytes)
TRASH_OVER = R.packed(22, bytes, int)  # purge, id: empty; sweeps: the purges that are over
BEANSTALKD, CELERY, RESULTS, TASKIQ = "beanstalkd", "celery", "results", "taskiq"
LIMITED = 17

# Rows of a group, behind its id: counts of all its members, to which every end adds; the time of its cancel,
# which puts and takes of members read; the queues that have had members.
COUNTS, CANCELLED, SPREAD = range(3)

# Rows of the sweeps of groups, below R[15].
DOUBT = SWEEPS.packed(0, bytes)  # group: empty; a group that may have ended
LOST = SWEEPS.packed(1, int)  # id: epoch; a queue with truncated members
CANCELLING = SWEEPS.packed(2, bytes)  # group: place of the next member
OVER = SWEEPS.packed(3, int, bytes)  # time, group: empty; a group that can be forgotten

MEMBERS: Column[()] = Column(34, ())
"""The column of a queue that outlives its drop: the counts of members of groups (partitions.py)."""
EVERY_EPOCH = b"\xff" * 8
"""The epoch of a dropped queue: no member of it is left, whatever its own."""

_SHAPES: dict[Any, list[list[type]]] = {
    LIMITED: [
        [str, int],
        [str, int, bytes],
        [str, int, int, bytes],
        [str, int, bytes, int, int, bytes],
        [str, int, bytes, int, int, int, bytes],
    ],
    BEANSTALKD: [[int], [int, int], [int, bytes], [int, str, int, bytes]],
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
for _column in R.columns:
    _SHAPES.setdefault(_column, []).append([*_column.parts])

_OF_QUEUES = frozenset((DEFINITION, LAST_ID, SCHEDULE, SCHEDULE_DUE, PROGRESS))
"""The columns that have no keys before the first queue."""

LAST_ID_BYTES = 8
_STATE = _DRAIN = 0
"""The part that tells the state of a schedule from the schedule, and a drain from a presence."""

_INT_ZERO, _INT_BYTES_MAX = 0x14, 8
"""The tuple layer's code of the number 0; that of a number of n bytes is larger by n."""

_BYTES = b"\x01"
"""The tuple layer's code of a byte string."""


class RootKeys:
    def __init__(self, root: Any) -> None:
        self.prefix = prefix = checked_prefix("root", root)
        self.definition, self.definitions = DEFINITION.key(prefix), DEFINITION.all(prefix)
        self._definition_in = DEFINITION.parse(prefix)
        self.last_id, self.all_contents = LAST_ID.start(prefix), CONTENTS.all(prefix)
        self.receipt, self.receipts = RECEIPT.key(prefix), RECEIPT.all(prefix)
        self.session, self.session_named = SESSION.key(prefix), SESSION_NAME.key(prefix)
        self.heartbeat, self.opener = HEARTBEAT.key(prefix), OPENER.key(prefix)
        self.openers = HEARTBEAT.under(prefix)
        self.beat_due, self.beats_due = BEAT_DUE.key(prefix), BEAT_DUE.all(prefix)
        self.beats_due_until, self.beats_due_after = BEAT_DUE.until(prefix), BEAT_DUE.after(prefix)
        self.beat_of = BEAT_DUE.parse(prefix)
        """The deadline, and the session that has it; None for a key of another shape."""
        self.presence, self.presences = PRESENCE.key(prefix), PRESENCE.all(prefix)
        self.session_of = PRESENCE.first(prefix)
        self.drain, self.pause = PRESENCE.key(prefix, _DRAIN), PAUSE.start(prefix)
        self.run = RUN.key(prefix)
        self.membership, self.memberships = MEMBERSHIP.key(prefix), MEMBERSHIP.all(prefix)
        self.imports_into, self.progress = IMPORT.under(prefix), PROGRESS.key(prefix)
        self.skipped, self.all_skipped = SKIPPED.key(prefix), PROGRESS.under(prefix)
        self.position_of = SKIPPED.last(prefix)
        self.schedule, self.schedules = SCHEDULE.key(prefix), SCHEDULE.all(prefix)
        self.schedule_state = SCHEDULE.key(prefix, _STATE)
        self.schedule_due, self.schedules_due = SCHEDULE_DUE.key(prefix), SCHEDULE_DUE.all(prefix)
        self.schedules_due_until = SCHEDULE_DUE.until(prefix)
        self.schedule_due_in = SCHEDULE_DUE.parse(prefix)
        self.limits = LIMIT.all(prefix)
        self.audit_count, self.audit = AUDIT_COUNT.start(prefix), AUDIT.all(prefix)
        self.audit_line, self.audit_in = AUDIT.key(prefix), AUDIT.parse(prefix)
        self.purge, self.purge_in = PURGE.key(prefix), PURGE.parse(prefix)
        self.trashed, self.trashed_in = TRASHED.key(prefix), TRASHED.parse(prefix)
        self.purges_of, self.trash_of = PURGES.under(prefix), TRASHED_OF.under(prefix)
        self.trashed_by = TRASHED_BY.under(prefix)
        self.trash_over, self.trash_overs = TRASH_OVER.key(prefix), TRASH_OVER.all(prefix)
        self.trash_over_in = TRASH_OVER.parse(prefix)
        self.group, self.groups = GROUP.key(prefix), GROUP.all(prefix)
        self.group_counts, self.group_cancelled = GROUP.key(prefix, COUNTS), GROUP.key(prefix, CANCELLED)
        self._group_spread, self.spreads_of = GROUP_SPREAD.key(prefix), GROUP.under(prefix, SPREAD)
        sweeps = GROUP_SWEEP.start(prefix)
        self.doubt, self.doubts = DOUBT.key(sweeps), DOUBT.all(sweeps)
        self.lost_members, self.lost = LOST.key(sweeps), LOST.all(sweeps)
        self.cancelling, self.cancellings = CANCELLING.key(sweeps), CANCELLING.all(sweeps)
        self.group_over, self.groups_over = OVER.key(sweeps), OVER.all(sweeps)
        self.groups_over_until = OVER.until(sweeps)
        self.group_sweeps = slice(DOUBT.start(sweeps), OVER.start(sweeps))
        """What sweeps of groups have to do at once."""

    def contents(self, id_: int) -> Subspace:
        return Subspace((CONTENTS, id_), self.prefix)

    def members_in(self, id_: int) -> slice:
        """The counts of members of groups in the contents of a queue."""
        return MEMBERS.all(self.contents(id_).key())

    def is_before_the_first_queue(self, key: bytes) -> bool:
        """True if `key` may lie under a root in which no queue has been created yet: receipts, sessions,
        limits, results of frameworks and schedules of Taskiq.
        """
        column, _ = self.shape_of(key)
        return column is not None and column not in _OF_QUEUES

    def is_receipt(self, key: bytes) -> bool:
        return bool(self.shape_of(key)[0] == RECEIPT)

    def shape_of(self, key: bytes) -> tuple[Any, list[Any]]:
        """The column of a key and the parts behind it; None as the column of a key that no tuple makes."""
        column, *rest = self._parts_of(key)
        known = column == PROGRESS or [type(part) for part in rest] in _SHAPES.get(column, ())
        return (column, rest) if known else (None, rest)

    def _parts_of(self, key: bytes) -> list[Any]:
        """The column and what follows; [None] for a key that no tuple makes."""
        return list(unpacked(key, len(self.prefix)) or [None])

    def name_of(self, definition_key: bytes) -> str | None:
        """None for a key that ends in no name."""
        found = self._definition_in(definition_key)
        return found[0] if found is not None and self.definition(*found) == definition_key else None

    def limit_of(self, key: bytes) -> str | None:
        """The limit that a key of R[16] belongs to; None for another shape."""
        column, rest = self.shape_of(key)
        return rest[0] if column == LIMIT else None

    def id_in(self, contents_key: bytes) -> int | None:
        """The id of the queue that a key of R[2] belongs to; None for another shape."""
        start = len(self.all_contents.start)
        size = contents_key[start] - _INT_ZERO if len(contents_key) > start else 0
        found = contents_key[start + 1 : start + 1 + size]
        return int.from_bytes(found, "big") if 0 < size <= _INT_BYTES_MAX and len(found) == size else None

    def receipts_in(self, parts: int) -> list[bytes]:
        """The first bytes of even parts of the receipts, in order: names of processes are random.

        There are at most limits.RECEIPT_PARTS_MAX parts.
        """
        first, count = RECEIPT.start(self.prefix) + _BYTES, min(parts, limits.RECEIPT_PARTS_MAX)
        return [first, *(first + bytes((256 * number // count,)) for number in range(1, count))]

    def schedule_in(self, key: bytes) -> tuple[str, bool] | None:
        """The name in a key of R[12], and true for the state; None for a key of another shape."""
        column, rest = self.shape_of(key)
        if column != SCHEDULE:
            return None
        return (rest[0], len(rest) > 1) if rest[1:] in ([], [_STATE]) else None

    def schedules_after(self, name: str) -> slice:
        """The schedules with their states behind that name; all for an empty name."""
        begin = self.schedule(name) + b"\xff" if name else self.schedules.start
        return slice(begin, self.schedules.stop)

    def presence_and_orders(self, session: bytes) -> slice:
        """The presence of a worker, and what its session is told."""
        start = self.presence(session)
        return slice(start, start + b"\xff")

    # Groups.

    def rows_of_group(self, group: bytes) -> slice:
        start = self.group(group)
        return slice(start, start + b"\xff")

    def group_in(self, key: bytes) -> bytes | None:
        """The group of a key of R[14], or of one of R[15] that ends in a group; None for another shape."""
        column, *rest = self._parts_of(key)
        if column == GROUP:
            return rest[0] if isinstance(rest[0], bytes) else None
        return rest[-1] if column == GROUP_SWEEP and isinstance(rest[-1], bytes) else None

    def group_spread(self, group: bytes, id_: int) -> bytes:
        return self._group_spread(group, SPREAD, id_)

    def last_number_in(self, key: bytes) -> int:
        """The number in a key of R[14] or R[15] that has one: an id of a queue, or a time."""
        numbers = [part for part in self._parts_of(key) if isinstance(part, int)]
        return int(numbers[-1])
