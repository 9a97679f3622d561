"""The trash of a task queue: what operators have purged, for limits.TRASH_KEPT_S.

    R[20, id, purge]          (actor, tasks, bytes)
    R[21, id, purge, piece]   a task as the line of an export; its pieces are named by its id and a number
    R[22, purge, id]          see tasks/trashed.py

The transaction that removes tasks writes them here, and that of a restore does the reverse. So a purge that
is killed halfway leaves each task in the queue or in the trash. A task in the trash has left its groups and
limits, as a deleted one; a restored one is made as by an import.

The oldest purges make room for a later one. A purge that is too large alone ends with an error, and leaves
the other tasks in the queue. The trash is no part of an export.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.database import Database, at_pace
from fdbqueue.core.errors import InvalidArgument, TrashFull
from fdbqueue.core.partitions import TIME_BYTES, Plan, home_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import readable
from fdbqueue.core.seam import KeyValue, ReadTransaction, Transaction
from fdbqueue.core.task import TAKEN
from fdbqueue.core.visible import counted
from fdbqueue.operate.exports.exporting import TasksOf
from fdbqueue.operate.exports.file import TaskLine
from fdbqueue.operate.exports.importing import place_tasks
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import REMOVED
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.rows import rows_of_features
from fdbqueue.tasks.selected import (
    EVERY,
    ChangedTasks,
    Selection,
    Where,
    begin,
    changed,
    in_halves,
    look_of,
    selection_of,
)
from fdbqueue.tasks.stored.records import ID_BYTES, Record, record_of
from fdbqueue.tasks.trashed import clear, over_us

_RANDOM_BYTES = 4
PURGE_BYTES, NUMBER_BYTES = TIME_BYTES + _RANDOM_BYTES, 4
_PIECE_BYTES = limits.PAYLOAD_PIECE_BYTES_MAX  # fixed: a task has fewer than TRASH_ROWS


class _Summary(msgspec.Struct, frozen=True, array_like=True):
    """A purge as stored. Append fields with a default."""

    actor: str = ""
    tasks: int = 0
    size_bytes: int = 0


_encoded = msgspec.msgpack.Encoder().encode
_summary_of = msgspec.msgpack.Decoder(_Summary).decode
_line_of = msgspec.msgpack.Decoder(TaskLine).decode


@dataclass(frozen=True, slots=True)
class Purge:
    """What one call of an operator has moved into the trash."""

    id: str
    at: float
    until: float
    """The time from which on it cannot be restored."""
    actor: str
    tasks: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Restored:
    """How far a restore has come."""

    tasks: int = 0
    left: int = 0
    """Tasks that stay in the trash: another task has their unique key, or they cannot be read."""
    after: bytes | None = b""
    """The key of the last piece that it has looked at; None at the end."""


def purge(
    queue: TaskQueue,
    database: Database,
    actor: str,
    where: Mapping[str, Any] | None = None,
    *,
    progress: Callable[[ChangedTasks], object] | None = None,
    after: str | None = None,
    look: int | None = None,
    most: int = limits.TRASH_TASKS_MAX,
) -> ChangedTasks:
    """Move all tasks of now into the trash, or the waiting ones that match, as `TaskQueue.change` does.

    A record that cannot be read stays in the queue.
    Raises: TrashFull, before it removes anything if the number of all tasks tells so.
    """
    runtime = database.runtime
    name = runtime.now_us().to_bytes(TIME_BYTES, "big") + runtime.random_bytes(_RANDOM_BYTES)
    keep = _Keep(name, actor, most)
    if where is None:
        there = queue.statistics(database)["tasks"]["total"]
        keep.require_room(queue.name, there)
        look = max(1, there)  # tasks put meanwhile have later ids
    chosen = selection_of(queue._shape, where or {}, None, "delete")
    edit = replace_fields(chosen.edit, edge=keep)
    all_ = Where(EVERY | {TAKEN, ""})  # also those that have expired
    selection = Selection(all_ if where is None else chosen.where, edit)
    paced = at_pace(database, "background")
    return changed(queue, paced, selection, begin(after), look_of(chosen, look), progress, dry_run=False)


@dataclass(frozen=True)
class _Keep:
    """The edge of one purge: tasks go from the queue into the trash."""

    purge: bytes
    actor: str
    most: int

    def require_room(self, name: str, tasks: int, size_bytes: int = 0) -> None:
        if tasks > self.most or size_bytes > limits.TRASH_BYTES_MAX:
            most = f"{counted(self.most, 'task')} and {limits.TRASH_BYTES_MAX:,} bytes"
            raise TrashFull(name=name, most=most)

    def __call__(self, change: Change, records: Sequence[Record]) -> list[Record]:
        """Writes: the tasks into the trash. Conflicts: another purge, or a restore, of the queue."""
        tr, keys, id_ = change.tr, change.shape.root, change.shape.definition.id
        lines, _ = TasksOf(change.shape, leave_out=True).lines(tr, records)
        values = [_encoded(line) for line in lines]
        there = _stored(tr, keys, id_)
        before = there.pop(self.purge, _Summary(self.actor))
        size_bytes = before.size_bytes + sum(map(len, values))
        found = _Summary(self.actor, before.tasks + len(values), size_bytes)
        self.require_room(change.shape.name, found.tasks, found.size_bytes)
        for over in too_many(there, found, self.most):
            clear(tr, keys, id_, over)
        tr.set(keys.purge(id_, self.purge), _encoded(found))
        tr.set(keys.trash_over(self.purge, id_), b"")
        for line, value in zip(lines, values, strict=True):
            task = record_of(line.record).id
            for at in range(0, len(value), _PIECE_BYTES):
                name = task + (at // _PIECE_BYTES).to_bytes(NUMBER_BYTES, "big")
                tr.set(keys.trashed(id_, self.purge, name), value[at : at + _PIECE_BYTES])
        change.discard(records, REMOVED)
        change.count("other")
        return [*records]


def _stored(tr: ReadTransaction, keys: RootKeys, id_: int) -> dict[bytes, _Summary]:
    """The purges of a queue by their names, the oldest first."""
    under = keys.purges_of(id_)
    named = [(keys.purge_in(bytes(row.key)), row.value) for row in tr.get_range(under.start, under.stop)]
    sound = ((parts[1], value) for parts, value in named if parts and len(parts[1]) == PURGE_BYTES)
    return {name: readable(_summary_of, bytes(value)) or _Summary() for name, value in sound}


def too_many(others: Mapping[bytes, _Summary], new: _Summary, most: int) -> list[bytes]:
    """The purges, the oldest first, that make room for a new one."""
    tasks = new.tasks + sum(one.tasks for one in others.values())
    size_bytes = new.size_bytes + sum(one.size_bytes for one in others.values())
    gone = list[bytes]()
    for name, one in others.items():
        kept = len(others) - len(gone) + 1
        if tasks <= most and size_bytes <= limits.TRASH_BYTES_MAX and kept <= limits.TRASH_PURGES_MAX:
            break
        tasks, size_bytes = tasks - one.tasks, size_bytes - one.size_bytes
        gone.append(name)
    return gone


def purges(tr: ReadTransaction, keys: RootKeys, id_: int, now_us: int) -> list[Purge]:
    """The purges in the trash of a queue, the latest first.

    Reads: at most limits.TRASH_PURGES_MAX keys.
    """
    found = [(over_us(name), name, one) for name, one in reversed(_stored(tr, keys, id_).items())]
    return [
        Purge(name.hex(), over / 1e6 - limits.TRASH_KEPT_S, over / 1e6, one.actor, one.tasks, one.size_bytes)
        for over, name, one in found
        if now_us < over
    ]


def listed(queue: TaskQueue, database: Database, id_: str | None = None) -> list[Purge]:
    """As `purges`; with an id that one alone. Raises: InvalidArgument, QueueDropped."""
    found = [one for one in queue._see(database, _purges) if id_ in (None, one.id)]
    if id_ is not None and not found:
        raise InvalidArgument(name="the purge", wanted="one that lies in the trash", got=id_)
    return found


def _purges(change: Change) -> list[Purge]:
    change.require_queue()
    return purges(change.tr.snapshot, change.shape.root, change.shape.definition.id, change.now_us)


def empty(queue: TaskQueue, database: Database, id_: str | None = None) -> int:
    """Clear a purge, or the whole trash. Return the number of its tasks. Raises: InvalidArgument."""
    found = listed(queue, database, id_)
    for one in found:
        queue._once(at_pace(database, "background"), "trash empty", partial(_empty, bytes.fromhex(one.id)))
    return sum(one.tasks for one in found)


def _empty(name: bytes, change: Change) -> None:
    change.require_queue()
    clear(change.tr, change.shape.root, change.shape.definition.id, name)


def restore(
    queue: TaskQueue,
    database: Database,
    id_: str | None = None,
    progress: Callable[[Restored], object] | None = None,
    most: int = limits.TRASH_TASKS_MAX,
) -> Restored:
    """Put the tasks of a purge, by default of the latest one, back into the queue, which may exceed its
    capacity by them.

    After `most` tasks, another call goes on. Times go on in the trash: delays are over, and tasks expire. A
    task that was taken is ready. A task stays in the trash while another one has its unique key. The tasks of
    a purge with a damaged summary come back, too.
    Conflicts: as a put; another restore.
    Raises: InvalidArgument, QueueDropped.
    """
    found = listed(queue, database, id_)
    so_far = Restored(after=b"" if found else None)
    call = partial(queue._once_in_all, at_pace(database, "background"), "trash restore")
    while so_far.after is not None and so_far.tasks < most:
        so_far = in_halves(call, _Restore(bytes.fromhex(found[0].id), so_far))
        if progress is not None:
            progress(so_far)
    return so_far


@dataclass
class _Restore:
    """One transaction of a restore."""

    purge: bytes
    so_far: Restored
    few: int = field(default_factory=lambda: limits.VERB_BATCH)
    """The number of tasks that the next attempt looks at, at most."""

    def __call__(self, changes: Sequence[Change]) -> Restored:
        few, self.few = self.few, max(1, self.few // 2)
        tr, shape = changes[0].tr, changes[0].shape
        keys, id_ = shape.root, shape.definition.id
        stored = tr.get(keys.purge(id_, self.purge)).value
        changes[0].require_queue()
        if stored is None:
            return replace_fields(self.so_far, after=None)
        read, is_last = self._read(tr, keys, id_, few)
        free, by_home = _free(tr, changes[0], read), defaultdict[int, list[TaskLine]](list)
        for one in free:
            by_home[_home(changes[0].plan, one.line, one.record)].append(one.line)
            for key in one.keys:
                tr.clear(key)
        for number, lines in by_home.items():
            place_tasks(changes[number], lines)
        before, after = self.so_far, None if is_last else read[-1].keys[-1]
        done = Restored(before.tasks + len(free), before.left + len(read) - len(free), after)
        if is_last and not done.left:
            clear(tr, keys, id_, self.purge)
        else:
            was = readable(_summary_of, stored) or _Summary()
            size_bytes = was.size_bytes - sum(one.size_bytes for one in free)
            rest = _Summary(was.actor, max(0, was.tasks - len(free)), max(0, size_bytes))
            tr.set(keys.purge(id_, self.purge), _encoded(rest))
        return done

    def _read(self, tr: Transaction, keys: RootKeys, id_: int, few: int) -> tuple[list["_Kept"], bool]:
        """The next tasks in the trash; true if they are the last. The purge itself was read serialisably."""
        under = keys.trashed_by(id_, self.purge)
        start = self.so_far.after + b"\x00" if self.so_far.after else under.start
        rows = tr.snapshot.get_range(start, under.stop, limit=limits.TRASH_ROWS).to_list()
        by_task = groupby(rows, key=lambda row: ((keys.trashed_in(bytes(row.key)) or [b""])[-1])[:ID_BYTES])
        found = [_kept(list(pieces)) for _, pieces in by_task]
        if len(rows) == limits.TRASH_ROWS and len(found) > 1:
            found.pop()  # its last pieces may be behind
        sizes = accumulate(one.size_bytes for one in found[:few])
        most = max(1, sum(size <= limits.MOVED_BYTES_MAX for size in sizes))
        return found[:most], len(rows) < limits.TRASH_ROWS and most >= len(found)


class _Kept(NamedTuple):
    """A task in the trash."""

    keys: Sequence[bytes]
    size_bytes: int
    line: Any
    record: Any
    """None, as the line, if it cannot be read."""


def _kept(pieces: Sequence[KeyValue]) -> _Kept:
    value = b"".join(bytes(piece.value) for piece in pieces)
    line = readable(_line_of, value)
    record = None if line is None else readable(record_of, line.record)
    return _Kept([bytes(piece.key) for piece in pieces], len(value), line, record)


def _free(tr: Transaction, change: Change, found: Iterable[_Kept]) -> list[_Kept]:
    """Those that may be restored: no other task has their unique keys."""
    features = rows_of_features(change.shape)
    asked = [
        (one, [rows.ask_welcome(tr, one.record, change.now_us) for rows in features])
        for one in found
        if one.record is not None
    ]
    return [one for one, welcome in asked if all(ask() for ask in welcome)]


def _home(plan: Plan | None, line: TaskLine, record: Record) -> int:
    """The partition of a restored task: that of its task key now, or its own, if that is open."""
    if plan is None or (not record.key and line.partition < plan.count):
        return line.partition
    return home_of(record.key or record.id, plan.count)
