"""Groups as stored, and the sweeps that let them end.

The counts of a group are one long number, as those of statistics are: an atomic add changes any of them. So
the ends of members never conflict with each other. A task is *left* until it has ended, or is buried in a
group that does not wait for buried tasks.

Settling: the sweeps of groups. They let groups end, and count members off that were removed all at once.
Every end of a member sets the group's key of doubt, blindly. A sweep reads the definition and the counts of
a group in doubt, and relies on them serialisably. If the group is closed and no member is left, it has ended:
the task of `then` starts in the same transaction. Otherwise the doubt is cleared. An end that commits
meanwhile changes the counts, so it aborts the sweep: no end is missed. Two sweeps conflict: `then` starts
once.

A group that is in use would abort each sweep that clears its doubt. So a sweep clears the doubt only of a
group that has the same counts as one pass before. Any process that uses a task queue of the root sweeps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Annotated, Any, Protocol

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import DefinitionUnreadable, InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.partitions import GROUP_BYTES, SharedKeys
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import SWEPT_OF_ROOT, TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import catch_up
from fdbqueue.tasks.options import is_kind, later
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.stored.records import Count, Extra, Member, Record, id_in, packed, unpacked
from fdbqueue.tasks.verbs import Target

COUNTS = ("put", "done", "failed", "buried", "counted")
"""Those of a group. `counted`: members that count as failed, and are still stored."""
MEMBERS = ("members", "counted", "buried")
"""Those of the members of a group that one queue stores."""
_FIELD_MAX = 2**63


class Then(msgspec.Struct, frozen=True, array_like=True):
    """The task that starts when a group has ended. Append fields with a default; never reorder."""

    queue_id: int
    queue: str
    task: bytes


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """The definition of a group. Append values to `more` (`Extra`)."""

    created_us: Count
    holds: bool = True
    """True if it waits for its buried members."""
    is_open: bool = True
    then: Then | None = None
    retain_us: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Time for which the rows of an ended group are kept."""
    ended_us: Count = 0
    """The time at which it has ended; 0 before."""
    parent: bytes = b""
    """The one member of a group that a put with `after` has made."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""


row_to_bytes = msgspec.msgpack.Encoder().encode
row_of = msgspec.msgpack.Decoder(GroupRow).decode
"""Decode a definition. Raises one of aside.DAMAGED for damaged bytes."""


def readable_row(value: bytes | None) -> GroupRow | None:
    try:
        return None if value is None else row_of(value)
    except DAMAGED:
        return None


@dataclass(frozen=True)
class Counts:
    put: int = 0
    done: int = 0
    failed: int = 0
    buried: int = 0
    counted: int = 0

    @property
    def left(self) -> int:
        return self.put - self.done - self.failed

    @property
    def stored(self) -> int:
        return self.left + self.counted


def counts_of(value: bytes | None) -> Counts:
    return Counts(**{name: _signed(number) for name, number in unpacked(COUNTS, value).items()})


def counts_added(changes: Mapping[str, int]) -> bytes:
    return packed(COUNTS, changes)


def members_of(value: bytes | None) -> dict[str, int]:
    return unpacked(MEMBERS, value)


def members_added(changes: Mapping[str, int]) -> bytes:
    return packed(MEMBERS, changes)


NO_MEMBERS = packed(MEMBERS, {})


def _signed(number: int) -> int:
    return number - 2 * _FIELD_MAX if number >= _FIELD_MAX else number


class HasExtra(Protocol):
    """A record, or the draft of one."""

    @property
    def extra(self) -> Extra | None: ...


class AnyGroup(Protocol):
    """A group of either face: `fdbqueue.Group`, and `fdbqueue.aio.Group` in a call of fdbqueue.aio."""

    @property
    def id(self) -> str: ...


def checked_group(group: Any) -> bytes:
    """The stored id of a group, or of the text of its id. Raises: InvalidArgument."""
    text = group if isinstance(group, str) else getattr(group, "id", None)
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if len(found) != GROUP_BYTES:
        raise InvalidArgument(name="group", wanted="a Group, or the id of one", got=group)
    return found


def groups_of(record: HasExtra) -> tuple[Member, ...]:
    return () if record.extra is None else record.extra.groups


def with_groups(record: Record, groups: tuple[Member, ...]) -> Record:
    return replace(record, extra=replace(record.extra or Extra(), groups=groups))


def without_groups(record: Record) -> Record:
    return with_groups(record, ()) if groups_of(record) else record


def epoch_of(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")


def groups_in(records: Sequence[Record]) -> Iterator[bytes]:
    yield from dict.fromkeys(member.group for record in records for member in groups_of(record))


_log = logger("fdbqueue")

_ID_BYTES = 8
"""Of the id of a queue, in the place of a cancel."""


class Verdict(Enum):
    ENDS = auto()
    CLEAR = auto()
    """It goes on: there is nothing to do before the next end of a member."""
    LEAVE = auto()
    """Its counts change: look again."""


class Start(Enum):
    """The reason why a task of `then` does not start in this transaction."""

    UNKNOWN = auto()
    """This process does not know its queue."""
    NO_ROOM = auto()
    """It is large, and moves into another partition, as others have in this transaction."""


@dataclass(frozen=True)
class Doubted:
    group: bytes
    row: GroupRow | None
    counts: Counts
    cancelled: bool


def judge(found: Doubted, before: Counts | None) -> Verdict:
    """`before`: its counts in the last pass, if it was remembered."""
    row = found.row
    if row is None or row.ended_us:
        return Verdict.CLEAR
    if found.counts.left <= 0 and (found.cancelled or not row.is_open):
        return Verdict.ENDS
    return Verdict.CLEAR if found.counts == before else Verdict.LEAVE


def sweep_groups(database: Database, keys: RootKeys) -> None:
    for name in SWEPT_OF_ROOT:
        keeper_of(database, keys).sweep_root(name)


class Settling:
    """The sweeps of the groups under one root, by one process: a `Tidied` of its keeper."""

    name = "groups"

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys
        self._registry = Registry(keys)
        self._now_us = database.runtime.now_us
        self._after = b""
        """The last group in doubt that this pass has looked at."""
        self._before: dict[bytes, Counts] = {}
        """The counts of groups in doubt, in the last pass."""
        self._now: dict[bytes, Counts] = {}
        """Those of this pass."""

    def guard(self, _: Transaction) -> Callable[[], None]:
        return lambda: None

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        sweeps, over = self._keys.group_sweeps, self._keys.groups_over
        now = tr.snapshot.get_range(sweeps.start, sweeps.stop, limit=1)
        later_on = tr.snapshot.get_range(over.start, over.stop, limit=1)
        return lambda: (
            0 if now.to_list() else next((self._keys.last_number_in(row.key) for row in later_on), None)
        )

    def tidy(self, tr: Transaction) -> bool:
        return self._settle(tr) or self._count_lost(tr) or self._cancel(tr) or self._forget(tr)

    # Groups in doubt.

    def _settle(self, tr: Transaction) -> bool:
        """Look at the next groups in doubt. True if there may be more of them."""
        doubts, limit = self._keys.doubts, limits.GROUPS_SWEPT_MAX
        start = self._keys.doubt(self._after) + b"\x00" if self._after else doubts.start
        rows = tr.snapshot.get_range(start, doubts.stop, limit=limit).to_list()
        found = self._see(tr, [group for row in rows if (group := self._keys.group_in(row.key)) is not None])
        judged = [(one, judge(one, self._before.get(one.group))) for one in found]
        ends = [one for one, verdict in judged if verdict is Verdict.ENDS]
        for one, verdict in judged:
            if verdict is Verdict.CLEAR:
                self._clear(tr, one.group)
        for one, verdict in judged:
            # The next pass clears those with the same counts, and has room for others.
            if verdict is Verdict.LEAVE and len(self._now) < limits.GROUPS_REMEMBERED_MAX:
                self._now[one.group] = one.counts
        ended = moved_bytes = 0
        for one in ends:
            if ended == limits.GROUPS_ENDED_MAX:
                return True
            moved = self._end(tr, one, moved_bytes)
            if moved is Start.NO_ROOM:
                return True
            if moved is not Start.UNKNOWN:
                ended, moved_bytes = ended + 1, moved_bytes + moved
        if ended or any(verdict is Verdict.CLEAR for _, verdict in judged):
            return True  # the same groups come again, in case this does not commit
        self._after = found[-1].group if found and len(rows) == limit else b""
        if not self._after:
            self._before, self._now = self._now, {}
        return bool(self._after)

    def _see(self, tr: Transaction, groups: Sequence[bytes]) -> list[Doubted]:
        snapshot, keys = tr.snapshot, self._keys
        asked = [
            (
                group,
                snapshot.get(keys.group(group)),
                snapshot.get(keys.group_counts(group)),
                snapshot.get(keys.group_cancelled(group)),
            )
            for group in groups
        ]
        return [
            Doubted(group, readable_row(row.value), counts_of(counts.value), cancelled.present())
            for group, row, counts, cancelled in asked
        ]

    def _rely_on(self, tr: Transaction, group: bytes) -> None:
        """Conflict with an end of a member, and with a close or a cancel of the group."""
        keys = self._keys
        for key in (keys.group(group), keys.group_counts(group), keys.group_cancelled(group)):
            tr.add_read_conflict_key(key)

    def _clear(self, tr: Transaction, group: bytes) -> None:
        self._rely_on(tr, group)
        tr.clear(self._keys.doubt(group))

    def _end(self, tr: Transaction, found: Doubted, besides: int) -> int | Start:
        """Let a group end, and the task of `then` start. Return the bytes that this has moved into another
        partition. `besides`: those of other groups in this transaction.
        """
        row = found.row
        assert row is not None  # it ends
        moved = 0 if row.then is None else self._start(tr, row.then, found, besides)
        if isinstance(moved, Start):
            return moved
        self._clear(tr, found.group)
        now_us = self._now_us()
        tr.set(self._keys.group(found.group), row_to_bytes(replace(row, is_open=False, ended_us=now_us)))
        tr.set(self._keys.group_over(later(now_us, row.retain_us), found.group), b"")
        return moved

    def _start(self, tr: Transaction, then: Then, found: Doubted, besides: int) -> int | Start:
        """Start the task of `then`; of a cancelled group, cancel it. Return the bytes that have moved."""
        calls = self._calls(tr, then.queue, then.queue_id)
        if calls is not None:
            verb = partial(
                _start, id_=then.task, group=found.group, cancelled=found.cancelled, besides=besides
            )
            return calls.parts.within(tr, verb, then.task)
        return 0 if self._look(tr, then.queue, then.queue_id) is None else Start.UNKNOWN

    def _look(self, tr: Transaction, name: str, id_: int) -> Definition | None:
        try:
            found = self._registry.look(tr, name)
        except DefinitionUnreadable as error:
            self._database.troubles.met(_log, "a group waits for a queue that cannot be read", error)
            return Definition(name, id_, "", {})
        return found if found is not None and found.id == id_ else None

    def _calls(self, tr: Transaction, name: str, id_: int) -> TaskCalls | None:
        """The services of a queue; None if it was dropped, or this process does not know its kind."""
        found = self._look(tr, name, id_)
        if found is None or not is_kind(found.kind):
            return None
        try:
            return calls_of(self._database, shape_of(self._registry, found))
        except DefinitionUnreadable as error:
            self._database.troubles.met(_log, f"groups cannot use the queue {name!r}", error)
            return None

    # Members that a truncate or a drop has removed.

    def _count_lost(self, tr: Transaction) -> bool:
        """Count off the members of some groups that one queue has lost. True if there were any."""
        lost = self._keys.lost
        first = tr.snapshot.get_range(lost.start, lost.stop, limit=1).to_list()
        if not first:
            return False
        marker, id_ = first[0].key, self._keys.last_number_in(first[0].key)
        tr.add_read_conflict_key(marker)  # another truncate of the queue, or another sweep, changes it
        shared = SharedKeys(self._keys.contents(id_))
        under = shared.members_before(epoch_of(first[0].value))
        rows = tr.get_range(under.start, under.stop, limit=limits.VERB_BATCH).to_list()
        for row in rows:
            _, group = shared.members_parts(row.key)
            self._count_off(tr, group, members_of(row.value))
            tr.clear(row.key)
        if len(rows) < limits.VERB_BATCH:
            tr.clear(marker)
        return True

    def _count_off(self, tr: Transaction, group: bytes, gone: dict[str, int]) -> None:
        changes = {
            "failed": gone["members"] - gone["counted"],
            "counted": -gone["counted"],
            "buried": -gone["buried"],
        }
        tr.add(self._keys.group_counts(group), counts_added(changes))
        tr.set(self._keys.doubt(group), b"")

    # Members of a cancelled group.

    def _cancel(self, tr: Transaction) -> bool:
        """Cancel the next members of a cancelled group. True if there was one to sweep."""
        rows = self._keys.cancellings
        found = tr.snapshot.get_range(rows.start, rows.stop, limit=limits.GROUPS_SWEPT_MAX).to_list()
        return any(self._cancel_some(tr, row.key, row.value) for row in found)

    def _cancel_some(self, tr: Transaction, marker: bytes, place: bytes) -> bool:
        """False if this process does not know the queue that is next."""
        group = self._keys.group_in(marker) or b""
        queue_id, after = int.from_bytes(place[:_ID_BYTES], "big"), place[_ID_BYTES:]
        spreads = self._keys.spreads_of(group)
        start = self._keys.group_spread(group, queue_id)
        rows = tr.snapshot.get_range(start, spreads.stop, limit=1).to_list()
        if not rows:
            tr.add_read_conflict_key(marker)
            tr.clear(marker)
            tr.set(self._keys.doubt(group), b"")
            return True
        found_id, name = self._keys.last_number_in(rows[0].key), rows[0].value.decode()
        calls = self._calls(tr, name, found_id)
        if calls is None and self._look(tr, name, found_id) is not None:
            return False
        tr.add_read_conflict_key(marker)
        last = None if calls is None else _cancel_in(tr, calls, group, after if found_id == queue_id else b"")
        tr.set(marker, _place(found_id + 1) if last is None else _place(found_id, last))
        return True

    # Groups that have ended.

    def _forget(self, tr: Transaction) -> bool:
        """Remove the rows of groups that ended long ago. One with buried members stays."""
        now_us, keys = self._now_us(), self._keys
        under = keys.groups_over_until(now_us)
        over = tr.snapshot.get_range(under.start, under.stop, limit=limits.GROUPS_SWEPT_MAX).to_list()
        found = {row.key: group for row in over if (group := keys.group_in(row.key)) is not None}
        for key, seen in zip(found, self._see(tr, list(found.values())), strict=True):
            self._rely_on(tr, seen.group)
            tr.add_read_conflict_key(key)
            tr.clear(key)
            if seen.counts.stored > 0:
                again_us = now_us + round(limits.GROUP_LOOKED_AT_EVERY_S * 1_000_000)
                tr.set(keys.group_over(again_us, seen.group), b"")
            else:
                rows = keys.rows_of_group(seen.group)
                tr.clear_range(rows.start, rows.stop)
                tr.clear(keys.doubt(seen.group))
        return len(over) == limits.GROUPS_SWEPT_MAX


def _place(queue_id: int, after: bytes = b"") -> bytes:
    return queue_id.to_bytes(_ID_BYTES, "big") + after


def _start(change: Change, id_: bytes, group: bytes, cancelled: bool, besides: int) -> int | Start:
    [record] = change.read([id_])
    if record is None or record.extra is None or record.extra.waits != group:
        return 0
    if cancelled:
        edges.cancel(change, [record])
    elif not change.joinable([record], besides):
        return Start.NO_ROOM
    else:
        edges.start(change, record)
    return change.moved_bytes


def _cancel_in(tr: Transaction, calls: TaskCalls, group: bytes, after: bytes) -> bytes | None:
    """Cancel the next members of a group in one queue. Return the last of them, None without any."""
    under = calls.shape.shared.members_in(group, after)
    # If each has the most groups and long keys. The sweep cannot halve it: the keeper commits, and would try
    # the same again.
    each_bytes = limits.CANCELLED_BYTES + limits.CANCELLED_PREFIX_COPIES * len(calls.shape.keys.prefix)
    most = max(1, min(-(-limits.VERB_BATCH // 2), limits.TRANSACTION_BYTES_MAX // each_bytes))
    rows = tr.snapshot.get_range(under.start, under.stop, limit=most).to_list()
    ids = [id_in(row.key) for row in rows]
    calls.parts.each(tr, [Target(id_) for id_ in ids], _cancel_each)
    return ids[-1] if ids else None


def _cancel_each(change: Change, targets: Sequence[Target]) -> list[None]:
    found = change.read(target.id for target in targets)
    for record in found:
        current = None if record is None else catch_up(change, record)
        if current is not None:
            edges.cancel_any(change, current)
    return [None] * len(targets)
