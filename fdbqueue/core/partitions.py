"""Partitions: one queue as several, which share a name, a definition and a plan (docs/partitions.md).

A plan says how many partitions a queue has, and the place of each task key: pure functions over values. It is
part of the definition, which every call reads. A repartition stores the next plan at once: from then on, puts
go by the new number of partitions. It is under way until the partitions of the old number have nothing left
that the order of a task key depends on. Then its end stores the plan once more.

A repartition changes the definition while calls are under way. Each call reads the definition serialisably,
so a transaction of the old plan conflicts with the change. `Current` is the definition as this process knows
it. A call that reads another plan than its process knows keeps the newer one, and raises the conflict by
itself: its retry follows the new plan. It never keeps a plan that its own transaction has stored: that may
not commit. The options of a queue change in the same way (tasks/altering.py).

This is also the only file that builds or parses the keys that partitions share. Queue S, of tasks or of the
recipe. The comment of a column has its value, and behind the semicolon its readers. Only a queue with
partitions has the keys S[24] to S[28]. Partition 0 is the queue itself; another one has columns of its own in
S[28], as S. Queues of tasks have the other keys with partitions or without: a unique key holds for the whole
queue, and a result outlives the partition of its task. Times are microseconds since the epoch.

A queue over a subspace may have S[37], its layout: see registry.py.

Each member of a group has S[35]. S[34] and S[36] outlive a truncate, and S[34] a drop.
"""

import hashlib
import struct
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from enum import StrEnum
from functools import lru_cache, partial
from typing import Any
from weakref import WeakMethod

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_whole
from fdbqueue.core.columns import Table, number, sized
from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import (
    AlterNotCommitted,
    DefinitionUnreadable,
    QueueDropped,
    RepartitionNotCommitted,
)
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import MEMBERS as _MEMBERS
from fdbqueue.core.seam import Transaction, Value

_SCORE_BYTES = 4
_SCORES = {n: struct.Struct(f">{n}I") for n in range(1, limits.PARTITIONS_MAX + 1)}


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The partitions of a queue. Append fields with a default; never reorder them."""

    epoch: int
    """The number of changes of the plan."""
    count: int
    """The open partitions are those from 0 to count - 1: only they get new tasks."""
    before: int = 0
    """The number of open partitions before the repartition that is under way; 0 if none is."""
    high: int = 0
    """Partitions from this number on hold nothing."""

    @property
    def serving(self) -> int:
        """The partitions below this number may have ready tasks: the open ones, and those that close."""
        return max(self.count, self.before)

    @property
    def may_have_moved(self) -> bool:
        """True if a task may be in another partition than the one in its id."""
        return self.epoch > 0

    def is_sound(self) -> bool:
        most = limits.PARTITIONS_MAX
        return 0 < self.count <= most and 0 <= self.before <= most and self.serving <= self.high <= most


def checked_partitions(count: int) -> int:
    return checked_whole("partitions", count, 1, limits.PARTITIONS_MAX)


def first_plan(count: int) -> Plan | None:
    return Plan(0, count, 0, count) if count > 1 else None


def begun(plan: Plan | None, count: int) -> Plan:
    """The plan with which a repartition to `count` begins."""
    if plan is None:
        return Plan(1, count, 1, count)
    return Plan(plan.epoch + 1, count, plan.count, max(plan.high, count))


def ended(plan: Plan) -> Plan:
    """The plan after the repartition that was under way."""
    return replace(plan, epoch=plan.epoch + 1, before=0)


def lowered(plan: Plan, high: int) -> Plan:
    """The plan after the last partitions have become empty."""
    return replace(plan, epoch=plan.epoch + 1, high=high)


@lru_cache(maxsize=limits.TASK_KEYS_PLACED)
def home_of(key: bytes, count: int) -> int:
    """The partition of a task key, or of another name, among `count`: the one with its highest score.

    With another number of partitions, only those keys move for which a new partition has the highest score,
    or whose partition has gone.
    """
    scores = _scores(key, count)
    return scores.index(max(scores))


def homes_of(member: bytes, members: Collection[bytes], count: int) -> list[int]:
    """The partitions from which `member` takes first: those for which it has the highest score of all
    `members`. Without any, the one for which it has its own highest score.
    """
    scores = {one: _scores(one, count) for one in {*members, member}}
    mine = scores[member]
    owned = [
        n for n in range(count) if all((mine[n], member) >= (other[n], one) for one, other in scores.items())
    ]
    return owned or [home_of(member, count)]


def _scores(name: bytes, count: int) -> Sequence[int]:
    """A score of `name` for each partition. Those of the first partitions do not depend on `count`."""
    digest = hashlib.shake_128(name).digest(_SCORE_BYTES * count)
    return _SCORES[count].unpack(digest)


class PartitionState(StrEnum):
    OPEN = "open"
    """It gets new items."""
    CLOSING = "closing"
    """It gets no new items, and takes drain it."""
    CLOSED = "closed"
    """It has only delayed, buried and ended tasks, or nothing. Such tasks join another partition when they
    become ready.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A partition of a queue, and its tasks in each state; those of a recipe queue are all ready."""

    number: int
    state: PartitionState
    ready: int
    taken: int = 0
    buried: int = 0
    delayed: int = 0
    puts: int | None = None
    """Number of tasks put into it so far; None in a recipe queue, which does not count calls."""
    takes: int | None = None
    """Number of tasks taken from it so far; None as for `puts`."""
    may_be_ready: bool
    """True if it has a flag: takes look here."""
    prefix: bytes
    """All its keys begin with this. Partition 0 is the queue itself: those of others begin with it, too."""


@dataclass(frozen=True, slots=True)
class Repartition:
    """A change of the number of partitions, from `before` to `partitions`."""

    before: int
    partitions: int
    is_finished: bool
    """False while a partition of the old number still has tasks that others wait for."""


ID_BYTES = 8 + limits.RANDOM_SUFFIX_BYTES
TIME_BYTES = 8
EPOCH_BYTES = 8
GROUP_BYTES = 16

ANY = sized(1, limits.KEY_BYTES_MAX)
ID, KEY, GROUP = sized(ID_BYTES), sized(1, limits.TASK_KEY_BYTES_MAX), sized(GROUP_BYTES)
PIECE_NUMBER, TIME, BYTE = number(4), number(8), number(1)

S = Table()
FLAG = S.column(24, BYTE)  # empty; takes: the partition may have available items
BELL = S.column(25)  # grows with each new flag; watches of the first request in S[26]
ROOM = S.column(25, sized(1))  # 00: grows as tasks go, if there is a capacity; puts that wait for room
WIDE_LINE = S.column(26, ANY)  # see line/decision.py; takes that wait for all partitions
MOVED = S.column(27, ID)  # the task's partition; verbs by id, if that is not the one in the id
PARTITION = S.column(28, BYTE, sized(2, limits.KEY_BYTES_MAX - 1))
UNIQUE = S.column(29, KEY)  # id of its task, and the end of a scope in seconds; puts with this unique key
WINDOW = S.column(30, TIME, KEY)  # id of its task; sweeps: the ends of scopes in seconds
RESULT = S.column(31, ID)  # see tasks/results.py; result(): the end of a task that was asked for one
RESULT_PIECE = S.column(31, ID, PIECE_NUMBER)  # a piece of it; result(), if it is large
RESULT_AT = S.column(32, TIME, ID)  # empty; sweeps: the results that are over, the oldest first
MEMBERS = S.column(_MEMBERS, TIME, GROUP)  # by epoch: counts, see group_settling.py; sweeps, after a truncate
MEMBER = S.column(35, GROUP, ID)  # empty; sweeps, after the cancel of a group
EPOCH = S.column(36)  # number of truncates; puts of members
ALTERED = S.column(38)  # see tasks/altering.py; the next change of an option, alterations()
POINT = S.column(44, number(4))  # see tasks/chronicle.py; sweeps, charts
TIMES = S.column(45, number(4), sized(0, limits.TASK_KEY_BYTES_MAX))  # see tasks/chronicle.py; figures


def prefix_of(subspace: Any, partition: int) -> bytes:
    """The prefix of the keys of a partition of the queue in `subspace`."""
    prefix: bytes = subspace.key()
    return prefix + PARTITION.code + bytes((partition,)) if partition else prefix


def time_bytes(time_us: int) -> bytes:
    return time_us.to_bytes(TIME_BYTES, "big")


class SharedKeys:
    """The keys that the partitions of a queue share."""

    def __init__(self, subspace: Any) -> None:
        prefix: bytes = subspace.key()
        self.flag, self.flags, self.flagged = FLAG.key(prefix), FLAG.all(prefix), FLAG.first(prefix)
        self.bell, self.room = BELL.start(prefix), ROOM.key(prefix)(b"\x00")
        self.line = WIDE_LINE.start(prefix)
        self.moved, self.all_moved = MOVED.key(prefix), MOVED.all(prefix)
        self.partitions = PARTITION.all(prefix)
        self.under = PARTITION.of(prefix, b"\xff")
        """Everything of a partition but partition 0."""
        self.unique, self.uniques = UNIQUE.key(prefix), UNIQUE.all(prefix)
        self.window, self.windows = WINDOW.key(prefix), WINDOW.all(prefix)
        self.window_parts, self.windows_until = WINDOW.pair(prefix), WINDOW.until(prefix)
        self.result, self.results = RESULT.key(prefix), RESULT.all(prefix)
        self.result_piece = RESULT_PIECE.key(prefix)
        self.result_at, self.result_times = RESULT_AT.key(prefix), RESULT_AT.all(prefix)
        self.result_time, self.results_until = RESULT_AT.first(prefix), RESULT_AT.until(prefix)
        self.members_of, self.members = MEMBERS.key(prefix), MEMBERS.all(prefix)
        """The counts of the members of a group that were put in an epoch."""
        self.members_parts = MEMBERS.pair(prefix)
        self.member, self.all_member = MEMBER.key(prefix), MEMBER.all(prefix)
        self.epoch = EPOCH.start(prefix)
        self.altered = ALTERED.start(prefix)
        self.point, self.points, self.slot_of = POINT.key(prefix), POINT.all(prefix), POINT.first(prefix)
        self.times_at, self.times = TIMES.key(prefix), TIMES.all(prefix)

    def column_of(self, key: bytes) -> int | None:
        """The column of a key that queues of every kind have: FLAG, BELL or WIDE_LINE; None for another."""
        if key.startswith(self.line):
            return WIDE_LINE
        if key in (self.bell, self.room):
            return BELL
        return FLAG if key.startswith(self.flags.start) and len(key) == len(self.flags.start) + 1 else None

    def pieces_of(self, id_: bytes) -> slice:
        """The pieces of a large result."""
        return slice(self.result(id_) + b"\x00", self.result(id_) + b"\xff")

    def members_before(self, epoch: int) -> slice:
        """The counts of the members that were put in earlier epochs."""
        return slice(self.members.start, self.members_of(epoch, b""))

    def members_in(self, group: bytes, after: bytes = b"") -> slice:
        """The members of a group, behind the task `after`."""
        start = self.member(group, b"")
        return slice(start + after + b"\x00" * bool(after), start + b"\xff" * 32)


_RING = (1).to_bytes(8, "little")


class Flag:
    """The flag of one partition, in one transaction: it may have available items. Without it, it has none.

    A change that may make an item available reads the flag, and sets it if it is absent; then it also rings
    the bell, which wakes a waiting take. A taker clears the flag after it has read serialisably that none is
    there.
    """

    def __init__(self, tr: Transaction, keys: SharedKeys, partition: int) -> None:
        self._tr = tr
        self._keys = keys
        self._key = keys.flag(partition)
        self._asked: Value | None = None

    def ask(self) -> None:
        if self._asked is None:
            self._asked = self._tr.snapshot.get(self._key)

    def set(self) -> None:
        """Set the flag if it is absent. Conflicts: a taker that clears it."""
        self.ask()
        flag, self._asked = self._asked, None
        # A taker that clears the flag has not seen this change: one of the two conflicts.
        self._tr.add_read_conflict_key(self._key)
        if flag is None or not flag.present():
            self._tr.set(self._key, b"")
            ring(self._tr, self._keys)


def ring(tr: Transaction, keys: SharedKeys) -> None:
    tr.add(keys.bell, _RING)


def ring_for_room(tr: Transaction, keys: SharedKeys) -> None:
    tr.add(keys.room, _RING)


OPTION = "partitions"
"""The option of a definition that holds the plan."""


class PartitionGone(Exception):
    """The partition that a take has chosen has gone with the last repartition."""


LASTING = ("codec", "temporary", "limits", "task_limits")
"""The options of a queue that stay as they are; any other one may change, and the queue is the same."""


class Current:
    def __init__(
        self, registry: Registry, definition: Definition, lock: AbstractContextManager[Any] | None = None
    ) -> None:
        """`lock`: of several threads that share this object. Raises: DefinitionUnreadable for a plan that is
        none.
        """
        self._lock = nullcontext() if lock is None else lock
        self.definition = definition
        self.plan = plan_of(definition)
        """The plan; None for a queue that never had partitions. Ask the guard first, then read it: so a
        transaction never relies on an older plan than the one it checks."""
        self._listeners: list[WeakMethod[Callable[[], None]]] = []
        self._followers: list[WeakMethod[Callable[[Definition], None]]] = []
        self._key = registry.keys.definition(definition.name)
        self._stored: bytes | None = definition.to_bytes()
        self._version = 0
        """The latest read version at which another definition was met."""

    def exists(self, tr: Transaction) -> Callable[[], None]:
        """Ask for the definition. The reply raises QueueDropped, and does not go by the plan."""
        found = tr.get(self._key)

        def reply() -> None:
            self._present(found.value)

        return reply

    def on_partitions(self, listener: Callable[[], None]) -> None:
        """Have a method called when the queue, which had no partitions, has some, or the other way round.

        Several handles share this object. It keeps no service alive.
        """
        self._listeners.append(WeakMethod(listener, self._listeners.remove))

    def on_options(self, known: Definition, follower: Callable[[Definition], None]) -> None:
        """Have a method called with each later definition than `known`, before any call goes by it. As
        `on_partitions`.
        """
        with self._lock:
            self._followers.append(WeakMethod(follower, self._followers.remove))
            if self.definition is not known:
                follower(self.definition)

    def guard(self, tr: Transaction) -> Callable[[], None]:
        """Ask for the definition. The reply raises QueueDropped, a conflict if the plan or an option has
        changed, or RepartitionNotCommitted or AlterNotCommitted if `tr` itself has changed it.
        """
        return partial(self._check, tr, tr.get(self._key), self._stored)

    def guard_of(self, partition: int, tr: Transaction) -> Callable[[], None]:
        """As `guard`, for a partition but partition 0. The reply also raises PartitionGone: no key may come
        into a partition that the plan does not have.
        """
        check = self.guard(tr)

        def reply() -> None:
            check()
            if self.plan is None or partition >= self.plan.high:
                raise PartitionGone

        return reply

    def _check(self, tr: Transaction, found: Value, expected: bytes | None) -> None:
        value = found.value
        if value != expected:
            self._keep(tr, value)
            raise conflict_in(tr)

    def _keep(self, tr: Transaction, value: bytes | None) -> None:
        """Keep a later definition: another plan, or the layout and the appended parts of a newer release."""
        found = self._present(value)
        plan, version = plan_of(found), tr.get_read_version().wait()
        with self._lock:
            is_later = self._is_later(plan, version) or self._is_restored(version)
        if not is_later:
            return
        committed = self._committed(tr, version)
        if value != committed and committed is not None:  # without one, `tr` itself has made the queue
            same = epoch_of(plan) == epoch_of(self.plan)
            raise (AlterNotCommitted if same else RepartitionNotCommitted)(name=self.definition.name)
        with self._lock:  # another thread may have met a later one meanwhile
            if self._is_later(plan, version) or version >= self._version:
                self._version = version
                self._follow(found, value, plan)

    def _present(self, value: bytes | None) -> Definition:
        """The definition in `value`. Raises: QueueDropped."""
        found = None if value is None else Definition.from_bytes(self.definition.name, value)
        if found is None or not _lasting(found).is_same_queue(_lasting(self.definition)):
            raise QueueDropped(name=self.definition.name)
        return found

    def _is_later(self, plan: Plan | None, version: int) -> bool:
        """With the plan of before, the version decides: layouts and appended parts have no order."""
        found, known = epoch_of(plan), epoch_of(self.plan)
        return found > known or (found == known and version >= self._version)

    def _is_restored(self, version: int) -> bool:
        """True if a plan of before, read at this version, is the present one: data of a backup.

        Else the transaction began before the present plan was stored, and conflicts with it.
        """
        known, self._version = self._version, max(self._version, version)
        return 0 < known <= version

    def _committed(self, tr: Transaction, version: int) -> bytes | None:
        """The stored definition, without the writes of `tr`. Round trips: 1."""
        other: Transaction = tr.db.create_transaction()
        other.set_read_version(version)
        value: bytes | None = other.get(self._key).value
        return value

    def _follow(self, found: Definition, value: bytes | None, plan: Plan | None) -> None:
        had_parts = self.plan is not None
        # In this order: a call that asks its guard meanwhile has the later plan and options, and conflicts.
        for follower in tuple(self._followers):
            follow = follower()
            if follow is not None:
                follow(found)
        self.plan = plan
        self.definition, self._stored = found, value
        if had_parts != (plan is not None):
            for reference in tuple(self._listeners):
                listener = reference()
                if listener is not None:
                    listener()


def epoch_of(plan: Plan | None) -> int:
    return -1 if plan is None else plan.epoch


def plan_of(definition: Definition) -> Plan | None:
    stored = definition.options.get(OPTION)
    try:
        plan = msgspec.convert(stored, Plan | None)
        if plan is not None and not plan.is_sound():
            raise ValueError(f"{stored} are no partitions")
    except (msgspec.ValidationError, ValueError) as reason:
        raise DefinitionUnreadable(name=definition.name, reason=str(reason)) from reason
    return plan


def with_plan(definition: Definition, plan: Plan) -> Definition:
    return dataclass_replace(definition, options={**definition.options, OPTION: msgspec.to_builtins(plan)})


def store(tr: Transaction, registry: Registry, name: str, keys: SharedKeys, plan: Plan) -> None:
    """Store the plan, and wake the takes that wait for all partitions. Conflicts: every call on the queue."""
    found = registry.find(tr, name)
    tr.set(registry.keys.definition(name), with_plan(found, plan).to_bytes())
    ring(tr, keys)


def lasting_bytes(definition: Definition) -> bytes:
    """The name and all that stays of a queue. Two queues of one id differ in it, or in other options."""
    return repr(definition.name).encode() + dataclass_replace(_lasting(definition), version=()).to_bytes()


def _lasting(definition: Definition) -> Definition:
    options = {name: value for name, value in definition.options.items() if name in LASTING}
    return dataclass_replace(definition, options=options)
