"""The checks of the keys of a root, beside queues: definitions, receipts, sessions, runs, schedules, groups.

They also find the keys of queues that are gone: contents and progress below an id that no definition has.

Of groups: rows and ends under the root, members in a queue, and the counts of both. An entry of a member and
its task name each other. The counts of a group are compared with those of its queues at one version.

The checks of limits: rules, slots, the tasks that hold them, and rows of limits that count each key apart.

Each slot that a task holds is in three places: in its record, in a holder, and in the number of a cell. The
record and the holder name each other. The numbers of all cells are compared with the holders in one
transaction for each limit.

A walk of a limit (limits/parking.py) is about to look at all rows of its keys: until it is over, a holder
without a task and a lane without a state are no contradictions.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core import root_keys as columns
from fdbqueue.core.columns import UNPACKING
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.errors import DefinitionUnreadable, LayoutNewer, ScheduleUnreadable
from fdbqueue.core.once import ATTEMPT
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.registry import IMPORTING, Definition, Registry
from fdbqueue.core.root_keys import LAST_ID_BYTES, RootKeys
from fdbqueue.core.rows import (
    FOREIGN,
    Check,
    Checks,
    Excuse,
    Finder,
    Flaw,
    Row,
    Seen,
    Suspect,
    first_key,
    under,
)
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.sessions.ending import deadline_if_readable
from fdbqueue.operate.verify.values import Cures, command
from fdbqueue.tasks import group_settling
from fdbqueue.tasks.firing import record_of, state_of
from fdbqueue.tasks.group_settling import Counts, counts_added, counts_of, epoch_of, members_of
from fdbqueue.tasks.limited import slots_of
from fdbqueue.tasks.limits import rule
from fdbqueue.tasks.limits.parking import Settling, lane_at, stands_of
from fdbqueue.tasks.limits.rule import Held, LanePlace, LimitKeys, held_of, rule_of, shown_key
from fdbqueue.tasks.limits.state import KeyState, ask_by_snapshot, give_slots, number_bytes, number_of
from fdbqueue.tasks.schedules import renew
from fdbqueue.tasks.stored.records import Record, TaskKeys, id_text, sound_record


class LimitChecks(Finder):
    """The keys of limits under a root."""

    def __init__(self, keys: RootKeys, mending: str) -> None:
        super().__init__(mending)
        self._keys = keys
        self.names: list[str] = []
        """The limits in the slices so far."""
        self.walks: list[str] = []
        """The limits with a walk under way, in the slices so far; some may be gone."""

    def note(self, column: Any, rest: list[Any]) -> None:
        if column == columns.LIMIT:
            self.names.append(rest[0])
        elif column == columns.LIMITED and rest[1] == rule.WALK:
            self.walks.append(rest[0])

    def rule(self, row: Row, rest: list[Any]) -> Check:
        if rule_of(row.value) is None:
            text = f"The limit {rest[0]!r} cannot be read, and limits nothing."
            yield Suspect(Flaw.VALUE, row.key, text, f"fdbqueue limit set {rest[0]} sets it anew.")

    def limited(self, row: Row, rest: list[Any]) -> Check:
        """`rest`: the limit, the column below it, and the parts behind."""
        limit, column = LimitKeys(self._keys.prefix, rest[0]), rest[1]
        if column == rule.OF_KEY:
            key, side, *place = rest[2:]
            if side == rule.KEY_HOLDER:
                return self._key_holder(limit, row, key, place)
            return self._lane(limit, row, key, side, LanePlace(*place))
        if column == rule.HOLDER:
            return self._holder(limit, row, rest[2:])
        if column in (rule.DUE, rule.OVER):
            return self._time(limit, row, rest[2], rest[3])
        if column == rule.COUNT:
            return self._count(limit, row, rest[2])
        if column == rule.KEY_TOKENS:
            return self._key_tokens(limit, row, rest[2])
        return self._cells(limit, row) if column in (rule.CELLS, rule.TOKENS) else self.nothing()

    def _cells(self, limit: LimitKeys, row: Row) -> Check:
        if not (yield [limit.row]).has(limit.row):
            text = f"A key belongs to the limit {limit.name!r}, which does not exist."
            yield self.found(Flaw.STRAY, row, text)

    def _holder(self, limit: LimitKeys, row: Row, place: list[Any]) -> Check:
        held, id_ = held_of(row.value), place[1]
        if held is None or not 0 <= held.cell < rule.CELLS_MAX:
            yield self.found(Flaw.VALUE, row, f"A holder of the limit {limit.name!r} cannot be read.")
            return
        task = self._task(held, place)
        stored = (yield [task]).value(task)
        record = sound_record(stored, id_)
        if stored is None or (record is not None and slots_of(record).get(limit.name) != held.cell):
            text = f"The task {id_text(id_)} should hold a slot of the limit {limit.name!r}, and does not."
            yield self.found(Flaw.STRAY, row, text, partial(_give_back, limit, row, held.cell))

    def _task(self, held: Held, place: list[Any]) -> bytes:
        """The record of a holder's task. `place`: the queue and the task."""
        queue, id_ = place
        return TaskKeys(self._keys.contents(queue), held.partition).task(id_)

    # Limits that count each key apart.

    def _count(self, limit: LimitKeys, row: Row, key: bytes) -> Check:
        holders = under(limit.key_holders(key))
        seen = yield [limit.row, holders, *_times_of(limit, row.value, key)]
        rule, told = rule_of(seen.value(limit.row)), f"the key {shown_key(key)!r} of the limit {limit.name!r}"
        if rule is None or not rule.per_key:
            return
        held, stored = len(seen.rows(holders)), number_of(row.value)
        if not rule.has_slots:
            yield from self._unlooked(limit, row, key, seen, told)
        elif held < limits.VERIFIED_ROWS_MAX and held != stored:
            text = f"Of {told} {stored:,} slots are in use, and tasks hold {held:,}."
            yield self.found(Flaw.COUNTER, row, text, partial(_recount_key, limit, key))

    def _key_tokens(self, limit: LimitKeys, row: Row, key: bytes) -> Check:
        seen = yield [limit.row, *_times_of(limit, row.value, key)]
        rule, told = rule_of(seen.value(limit.row)), f"the key {shown_key(key)!r} of the limit {limit.name!r}"
        if not seen.has(limit.row) or (rule is not None and not rule.has_both):
            text = f"There are tokens of {told}, which has no rate beside slots."
            yield self.found(Flaw.STRAY, row, text)
        elif rule is not None and rule.per_key:
            yield from self._unlooked(limit, row, key, seen, told)

    def _unlooked(self, limit: LimitKeys, row: Row, key: bytes, seen: Seen, told: str) -> Iterator[Any]:
        times = _times_of(limit, row.value, key)
        if not all(map(seen.has, times)):
            text = f"No sweep looks at {told}: its row stays, or its tasks."
            yield self.found(Flaw.TIMER, row, text, dict.fromkeys(times, b""))

    def _time(self, limit: LimitKeys, row: Row, time_us: int, key: bytes) -> Check:
        rows = limit.count(key), limit.key_tokens(key)
        seen = yield [*rows]
        if not any(map(seen.has, rows)) and time_us:
            text = f"A sweep is to look at the key {shown_key(key)!r} of {limit.name!r}, which has no row."
            yield self.found(Flaw.TIMER, row, text)

    def _lane(self, limit: LimitKeys, row: Row, key: bytes, side: int, place: LanePlace) -> Check:
        state_key, due = lane_at(self._keys.prefix, limit, key, place).state, limit.due(0, key)
        seen = yield [limit.row, limit.walk, limit.count(key), limit.key_tokens(key), state_key, due]
        if seen.has(limit.walk):
            return
        stands, told = stands_of(seen.value(state_key)), f"the key {shown_key(key)!r} of {limit.name!r}"
        found, counted = rule_of(seen.value(limit.row)), seen.value(limit.count(key))
        tokens = (seen.value(limit.key_tokens(key)) or b"") if found is not None and found.has_both else None
        state = KeyState(limit, key, found, counted, tokens)
        if stands is None or bool(stands.head) != (side == rule.OPEN):
            text = f"A row of {told} names a lane that stands otherwise."
            yield self.found(Flaw.STRAY, row, text)
        elif side == rule.PARKED and not (state.due_us or state.is_full or seen.has(due)):
            text = f"Nothing opens a parked lane of {told}: its tasks wait for ever."
            # Slots that tasks hold, also of a limit that is unreadable or gone. The row of a key of starts
            # begins with a time, and has that of its sweep behind.
            if number_of(state.stored) > 0 and (not state.over_us or state.used):
                text = f"A parked lane of {told} could open now, and waits for the end of a task."
            yield self.found(Flaw.TIMER, row, text, {due: b""})

    def _key_holder(self, limit: LimitKeys, row: Row, key: bytes, place: list[Any]) -> Check:
        held, id_ = held_of(row.value), place[1]
        told = f"the key {shown_key(key)!r} of the limit {limit.name!r}"
        if held is None:
            yield self.found(Flaw.VALUE, row, f"A holder of {told} cannot be read.")
            return
        count, task = limit.count(key), self._task(held, place)
        seen = yield [limit.walk, count, task]
        record = sound_record(seen.value(task), id_)
        lost = not seen.has(task) or (record is not None and not _holds(record, limit.name, key))
        if lost and not seen.has(limit.walk):
            text = f"The task {id_text(id_)} should hold a slot of {told}, and does not."
            yield self.found(Flaw.STRAY, row, text, partial(_take_back, limit, key, row))
        elif not seen.has(count):
            text = f"The task {id_text(id_)} holds a slot of {told}, which has no row."
            yield self.found(Flaw.COUNTER, row, text, partial(_recount_key, limit, key))


def _give_back(limit: LimitKeys, row: Row, cell: int, tr: Transaction) -> None:
    tr.clear(row.key)
    give_slots(tr, limit, [cell])


def _holds(record: Record, name: str, key: bytes) -> bool:
    extra, cell = record.extra, slots_of(record).get(name)
    return extra is not None and cell == rule.KEYED and extra.limit_keys.get(name) == key


def _times_of(limit: LimitKeys, stored: bytes, key: bytes) -> list[bytes]:
    """The keys at whose times sweeps look at a key of a limit of starts; none for one of slots."""
    state = KeyState(limit, key, None, stored)
    times = [limit.over(state.over_us, key)] if state.over_us else []
    return [*times, limit.due(state.due_us, key)] if state.due_us else times


def _take_back(limit: LimitKeys, key: bytes, row: Row, tr: Transaction) -> None:
    tr.clear(row.key)
    KeyState(limit, key, None, None).hold(tr, -1)
    tr.set(limit.due(0, key), b"")


def _recount_key(limit: LimitKeys, key: bytes, tr: Transaction) -> None:
    """Add the difference to the row of the key and to the total. Conflicts: starts and ends of the key."""
    row, holders = tr.get(limit.count(key)), limit.key_holders(key)
    missing = len(tr.get_range(holders.start, holders.stop).to_list()) - number_of(row.value)
    KeyState(limit, key, None, None).hold(tr, missing)
    tr.set(limit.due(0, key), b"")


# Counters and walks of one limit.


def unwalked(keys: RootKeys, name: str, mending: str, tr: Transaction) -> Suspect | None:
    """The contradiction of a walk that no sweep goes on with, at one version. The mending is its next step.

    Reads: by snapshot; of a walk, all definitions.
    """
    limit = LimitKeys(keys.prefix, name)
    if not tr.snapshot.get(limit.walk).present() or _may_be_named(keys, name, tr):
        return None
    text = f"A sweep is to look at the keys of a limit, and no queue names the limit {name!r}."
    walk = Settling(keys.prefix, limit).walk
    return Suspect(Flaw.TIMER, limit.walk, text, mending, lambda tr: walk(tr, runtime_of(tr).now_us()))


def _may_be_named(keys: RootKeys, name: str, tr: Transaction) -> bool:
    """True if a queue names the limit for its tasks, or has a definition that cannot be read here."""
    under = keys.definitions
    for row in tr.snapshot.get_range(under.start, under.stop):
        try:
            found = Definition.from_bytes(keys.name_of(row.key) or "", row.value)
        except DefinitionUnreadable:
            return True
        if found.kind == IMPORTING or name in found.options.get("task_limits", ()):
            return True
    return False


def miscounted(database: Database, keys: RootKeys, name: str, mending: str) -> Suspect | None:
    """The contradiction between the cells of a limit and its holders, at one version."""
    limit = LimitKeys(keys.prefix, name)
    counted, stored = run(database, lambda tr: _counted(limit, tr))
    if stored is None or counted == stored:
        return None
    text = f"The limit {name!r} counts {sum(stored):,} slots in use, and tasks hold {sum(counted):,}."
    return Suspect(Flaw.COUNTER, limit.cells, text, mending, partial(_recount, limit))


def _counted(keys: LimitKeys, tr: Transaction) -> tuple[list[int], list[int] | None]:
    """The slots by cell, as the holders tell and as they are stored; None for a limit of starts."""
    state, under = ask_by_snapshot(tr.snapshot, keys)(), keys.holders
    rows = tr.snapshot.get_range(under.start, under.stop)
    found = Counter(held.cell for row in rows if (held := held_of(row.value)) is not None)
    has_slots = state.rule is not None and state.rule.has_slots
    return [found[cell] for cell in range(rule.CELLS_MAX)], list(state.numbers) if has_slots else None


def _recount(keys: LimitKeys, tr: Transaction) -> None:
    """Add the differences: a start or an end that commits meanwhile keeps them."""
    claim = keys.gate_of_all
    tr.add_read_conflict_key(claim)
    tr.add_write_conflict_key(claim)
    counted, stored = _counted(keys, tr)
    if stored is not None:
        missing = {cell: counted[cell] - number for cell, number in enumerate(stored)}
        tr.add(keys.cells, rule.cells_bytes(missing))


def miscounted_total(database: Database, limit: LimitKeys, mending: str) -> Suspect | None:
    """The contradiction between the slots of all keys and their sum, at one version; None if there are more
    keys than one transaction reads.
    """
    missing = run(database, partial(_missing_in_total, limit))
    if not missing:
        return None
    text = f"The limit {limit.name!r} counts {-missing:,} more slots in use than its keys have."
    return Suspect(Flaw.COUNTER, limit.total, text, mending, partial(_mend_total, limit))


def _missing_in_total(limit: LimitKeys, tr: Transaction) -> int:
    under_, most = limit.counts, limits.VERIFIED_LIMIT_KEYS_MAX
    rule, total = tr.get(limit.row), tr.get(limit.total)
    rows = tr.get_range(under_.start, under_.stop, limit=most).to_list()
    found = rule_of(rule.value)
    if found is None or not found.has_slots or len(rows) == most:
        return 0
    return sum(number_of(row.value) for row in rows) - number_of(total.value)


def _mend_total(limit: LimitKeys, tr: Transaction) -> None:
    tr.add(limit.total, number_bytes(_missing_in_total(limit, tr)))


class GroupChecks(Finder):
    """The keys of groups under a root."""

    def __init__(self, keys: RootKeys, mending: str) -> None:
        super().__init__(mending)
        self._keys = keys

    def row(self, row: Row, rest: list[Any]) -> Check:
        keys, group = self._keys, rest[0]
        group_row, cancelled = keys.group(group), keys.group_cancelled(group)
        sweeps = [keys.doubt(group), keys.cancelling(group)]
        seen = yield [group_row, keys.group_counts(group), cancelled, *sweeps]
        found = group_settling.readable_row(seen.value(group_row))
        if len(rest) > 1:
            if not seen.has(group_row):
                text = f"A row belongs to the group {group.hex()}, which does not exist."
                yield self.found(Flaw.STRAY, row, text)
        elif found is None:
            text = f"The group {group.hex()} cannot be read: it does not end."
            yield Suspect(Flaw.VALUE, row.key, text, "Put its tasks again, into another group.")
        elif not found.is_open or seen.has(cancelled):
            left, is_due = counts_of(seen.value(keys.group_counts(group))).left, any(map(seen.has, sweeps))
            if left <= 0 and not found.ended_us and not is_due:
                text = f"No member of the group {group.hex()} is left, and no sweep lets it end."
                yield self.found(Flaw.TIMER, row, text, {keys.doubt(group): b""})

    def over(self, row: Row, rest: list[Any]) -> Check:
        if len(rest) != 3:
            return
        group = self._keys.group(rest[-1])
        if not (yield [group]).has(group):
            text = f"A time belongs to the group {rest[-1].hex()}, which does not exist."
            yield self.found(Flaw.STRAY, row, text)


def compare_members(keys: RootKeys, group: bytes, mending: str, tr: Transaction) -> Suspect | None:
    """Compare the counts of a group with those of its queues, at one version. None, too, while a sweep has
    to count members off that a truncate has removed.

    Reads: by snapshot.
    """
    counts, members = _both(keys, group, tr)
    told = _stored(counts)
    if members is None or told == members:
        return None
    text = f"The group {group.hex()} counts as stored {_told(told)}, and there are {_told(members)}."
    mend = partial(_correct, keys, group)
    return Suspect(Flaw.COUNTER, keys.group_counts(group), text, mending, mend)


def _stored(counts: Counts) -> dict[str, int]:
    """The members that a group counts as stored, by the names of the counts of its queues."""
    return {"members": counts.stored, "counted": counts.counted, "buried": counts.buried}


def _told(members: dict[str, int]) -> str:
    return f"{members['members']:,} members, {members['counted']:,} counted, {members['buried']:,} buried"


def _both(keys: RootKeys, group: bytes, tr: Transaction) -> tuple[Counts, dict[str, int] | None]:
    """The counts of a group, and the sums of those of its queues; None if these are not known."""
    snapshot, under = tr.snapshot, keys.spreads_of(group)
    stored = snapshot.get(keys.group_counts(group))
    ids = [keys.last_number_in(row.key) for row in snapshot.get_range(under.start, under.stop)]
    shared = [SharedKeys(keys.contents(id_)) for id_ in ids]
    markers = [snapshot.get(keys.lost_members(id_)) for id_ in ids]
    epochs = [snapshot.get(one.epoch) for one in shared]
    counts = counts_of(stored.value)
    if any(marker.present() for marker in markers):
        return counts, None
    asked = [
        snapshot.get(one.members_of(epoch_of(epoch.value), group))
        for one, epoch in zip(shared, epochs, strict=True)
    ]
    found = [members_of(value.value) for value in asked]
    return counts, {name: sum(one[name] for one in found) for name in group_settling.MEMBERS}


def _correct(keys: RootKeys, group: bytes, tr: Transaction) -> None:
    """Make the counts those of the queues. Members that are missing have failed; others were put, too."""
    tr.add_read_conflict_key(keys.group_counts(group))
    counts, members = _both(keys, group, tr)
    if members is not None:
        changes = {name: members[name] - _stored(counts)[name] for name in ("counted", "buried")}
        too_many = counts.left - (members["members"] - members["counted"])
        changes |= {"failed": max(0, too_many), "put": max(0, -too_many)}
        tr.add(keys.group_counts(group), counts_added(changes))
        tr.set(keys.doubt(group), b"")


_NEXT_BEAT = "The next heartbeat writes it anew; if there is none, a sweep ends the session."


class RootChecks(Checks):
    def __init__(self, registry: Registry) -> None:
        super().__init__(Cures(None).mending)
        self._keys: RootKeys = registry.keys
        self.groups: set[bytes] = set()
        """The groups, in the slices so far; at most limits.VERIFIED_TASK_KEYS_MAX."""
        self.limits = LimitChecks(registry.keys, self.mending)
        self.names: defaultdict[int, set[str]] = defaultdict(set)
        """The names of the queues with each id, in the slices so far; 0 if the id cannot be read."""
        self.imported: set[int] = set()
        """The ids of queues that have the progress of an import."""
        groups, schedules = GroupChecks(self._keys, self.mending), ScheduleChecks(self._keys, self.mending)
        self._checks: dict[Any, Callable[[Row, list[Any]], Check]] = {
            columns.DEFINITION: self._definition,
            columns.LAST_ID: self._last_id,
            columns.RECEIPT: self._receipt,
            columns.SESSION: self._session,
            columns.SESSION_NAME: self._name,
            columns.HEARTBEAT: self._heartbeat,
            columns.PRESENCE: self._presence,
            columns.RUN: self._run,
            columns.MEMBERSHIP: self._membership,
            columns.SCHEDULE: schedules.schedule,
            columns.SCHEDULE_DUE: schedules.due,
            columns.GROUP: groups.row,
            columns.GROUP_SWEEP: groups.over,
            columns.LIMIT: self.limits.rule,
            columns.LIMITED: self.limits.limited,
        }

    def check(self, row: Row) -> Check:
        column, rest = self._keys.shape_of(row.key)
        if column is None:
            return self.unknown(row, "No key under a root has this shape.")
        return self._checks[column](row, rest) if column in self._checks else self.nothing()

    def note(self, row: Row) -> None:
        column, rest = self._keys.shape_of(row.key)
        self.limits.note(column, rest)
        if column == columns.DEFINITION:
            self.names[Definition.listed(rest[0], row.value).id].add(rest[0])
        elif column == columns.GROUP and len(self.groups) < limits.VERIFIED_TASK_KEYS_MAX:
            self.groups.add(rest[0])
        elif column == columns.PROGRESS and rest and isinstance(rest[0], int):
            self.imported.add(rest[0])

    def _definition(self, row: Row, rest: list[Any]) -> Check:
        name, last_id = rest[0], self._keys.last_id
        last = (yield [last_id]).value(last_id)
        try:
            id_ = Definition.from_bytes(name, row.value).id
        except DefinitionUnreadable as error:
            yield unreadable(row.key, name, error)
            return
        if last is None or int.from_bytes(last, "little") < id_:
            text = f"The id of the queue {name!r} is beyond the last one: a new queue may get the same."
            least = id_.to_bytes(LAST_ID_BYTES, "little")
            yield self.found(Flaw.DEFINITION, row, text, lambda tr: tr.max(last_id, least))

    def _last_id(self, row: Row, _: list[Any]) -> Check:
        if len(row.value) != LAST_ID_BYTES:
            text = f"The last id of a queue is damaged, so that no queue can be made: {row.value.hex()}."
            yield self.found(Flaw.DEFINITION, row, text, self._renew_last_id)

    def _renew_last_id(self, tr: Transaction) -> None:
        """Set it to the largest id of a definition, and of contents. Conflicts: a create, a drop."""
        under, contents = self._keys.definitions, self._keys.all_contents
        named = ((self._keys.name_of(row.key), row.value) for row in tr.get_range(under.start, under.stop))
        ids = [Definition.listed(name, value).id for name, value in named if name is not None]
        last = tr.get_range(contents.start, contents.stop, limit=1, reverse=True)
        ids += [self._keys.id_in(row.key) or 0 for row in last]
        tr.set(self._keys.last_id, max(ids, default=0).to_bytes(LAST_ID_BYTES, "little"))

    def _receipt(self, row: Row, _: list[Any]) -> Check:
        if len(row.value) != ATTEMPT.size:
            yield self.found(Flaw.VALUE, row, "A receipt is damaged: no sweep removes it.")

    # Sessions.

    def _session(self, row: Row, rest: list[Any]) -> Check:
        session, (name, ttr_us) = rest[0], _session_in(row.value)
        beat, named = self._keys.heartbeat(session), None if name is None else self._keys.session_named(name)
        seen = yield [beat] if named is None else [beat, named]
        if ttr_us is None:
            text = f"The record of the session {session.hex()} is damaged."
            yield Suspect(Flaw.SESSION, row.key, text, _NEXT_BEAT)
        if not seen.has(beat):
            text = f"The session {session.hex()} has no heartbeat: no sweep finds it when it is dead."
            mend = partial(_write_heartbeat, self._keys, session, ttr_us or 0)
            yield self.found(Flaw.SESSION, row, text, mend)
        if named is not None and seen.value(named) != session:
            text = f"The name {name!r} of the session {session.hex()} leads to another session, or none."
            yield Suspect(Flaw.SESSION, row.key, text, "The end of that session, or its ttr.")

    def _name(self, row: Row, rest: list[Any]) -> Check:
        session = self._keys.session(row.value)
        if not (yield [session]).has(session):
            yield self.found(Flaw.STRAY, row, f"The name {rest[0]!r} leads to a session that does not exist.")

    def _heartbeat(self, row: Row, rest: list[Any]) -> Check:
        session, deadline_us = self._keys.session(rest[0]), deadline_if_readable(row.value)
        entries = [] if deadline_us is None or len(rest) > 1 else [self._keys.beat_due(deadline_us, rest[0])]
        seen = yield [session, *entries]
        if not seen.has(session):
            yield self._of_no_session("A heartbeat", row, rest)
        elif deadline_us is None:
            text = f"A heartbeat of the session {rest[0].hex()} is damaged."
            yield Suspect(Flaw.SESSION, row.key, text, _NEXT_BEAT)
        elif not all(map(seen.has, entries)):
            text = f"No sweep finds the session {rest[0].hex()} when it is dead: its heartbeat has no entry."
            yield self.found(Flaw.SESSION, row, text, {entries[0]: b""})

    def _presence(self, row: Row, rest: list[Any]) -> Check:
        session = self._keys.session(rest[0])
        if not (yield [session]).has(session):
            yield self._of_no_session("A presence", row, rest)

    def _of_no_session(self, told: str, row: Row, rest: list[Any]) -> Suspect:
        text = f"{told} belongs to the session {rest[0].hex()}, which does not exist."
        return self.found(Flaw.STRAY, row, text)

    # Runs of fleets.

    def _run(self, row: Row, rest: list[Any]) -> Check:
        """The last session of the run's workers clears the row after the supervisor has ended."""
        run, session = rest[0], self._keys.session(rest[0])
        if not (yield [session]).has(session):
            text = f"The counts of the run {run.hex()} have outlived its last worker."
            excuse = Excuse(under(self._keys.memberships), lambda rows: any(row.value == run for row in rows))
            yield self.found(Flaw.STRAY, row, text, excuses=[excuse])

    def _membership(self, row: Row, rest: list[Any]) -> Check:
        session = self._keys.session(rest[0])
        if not (yield [session]).has(session):
            text = f"The session {rest[0].hex()} has ended, and is still a member of a run."
            yield self.found(Flaw.STRAY, row, text, excuses=[unless_ending(self._keys, rest[0])])


class ScheduleChecks(Finder):
    """Each schedule has a state, and one that waits for a time has a key that passes find."""

    def __init__(self, keys: RootKeys, mending: str) -> None:
        super().__init__(mending)
        self._keys = keys

    def schedule(self, row: Row, rest: list[Any]) -> Check:
        if self._keys.schedule_in(row.key) is None:
            return self.unknown(row, "No key of a schedule has this shape.")
        return self._record(row, rest[0]) if len(rest) == 1 else self._state(row, rest[0])

    def _record(self, row: Row, name: str) -> Check:
        keys, key = self._keys, self._keys.schedule_state(name)
        state = state_of((yield [key]).value(key))
        try:
            record_of(name, row.value)
        except ScheduleUnreadable as error:
            cure = f"Use the release that made it. If it is damaged: {command('schedule', 'delete', name)}"
            yield Suspect(Flaw.DEFINITION, row.key, str(error), cure)
            return
        if state is None:
            text = f"The state of the schedule {name!r} is missing, or damaged: its due time is lost."
            yield self.found(Flaw.VALUE, row, text, lambda tr: renew(tr, keys, name, runtime_of(tr).now_us()))

    def _state(self, row: Row, name: str) -> Check:
        schedule, state = self._keys.schedule(name), state_of(row.value)
        at_us = None if state is None else state.at_us
        due = [] if at_us is None else [self._keys.schedule_due(at_us, name)]
        seen = yield [schedule, *due]
        if not seen.has(schedule):
            text = f"The state of a schedule belongs to {name!r}, which does not exist."
            yield self.found(Flaw.STRAY, row, text)
        elif not all(map(seen.has, due)):
            text = f"No pass finds the schedule {name!r}: it has no key at the time of its next try."
            yield self.found(Flaw.TIMER, row, text, {due[0]: b""})

    def due(self, row: Row, rest: list[Any]) -> Check:
        time_us, name = rest
        value = (yield [self._keys.schedule_state(name)]).value(self._keys.schedule_state(name))
        state = state_of(value)
        if value is None or (state is not None and state.at_us != time_us):
            text = f"A key leads passes to the schedule {name!r}, which is not due then."
            yield self.found(Flaw.STRAY, row, text)


def unreadable(key: bytes, name: str, error: DefinitionUnreadable) -> Suspect:
    """The finding for a definition that cannot be read, or has options that cannot."""
    cure = "Use a newer release."
    if not isinstance(error, LayoutNewer):
        drop = command("drop", name, "--yes")
        cure = f"Use the release that made it. If it is damaged, this removes the queue: {drop}"
    return Suspect(Flaw.DEFINITION, key, str(error), cure)


def unless_ending(keys: RootKeys, session: bytes) -> Excuse:
    """Until the end of a session is finished, an entry of its heartbeat tells sweeps to go on with it."""

    def explains(rows: Sequence[Row]) -> bool:
        beats = (keys.beat_of(row.key) for row in rows)
        return any(beat is not None and beat[1] == session for beat in beats)

    return Excuse(under(keys.beats_due), explains)


def _session_in(record: bytes) -> tuple[str | None, int | None]:
    """The name and the ttr of a session, in microseconds; None for each that is missing or damaged."""
    try:
        name, ttr_us = layer.unpack(record)[1:3]
    except UNPACKING:
        return None, None
    is_ttr = isinstance(ttr_us, int) and ttr_us > 0
    return name if isinstance(name, str) else None, ttr_us if is_ttr else None


def _write_heartbeat(keys: RootKeys, session: bytes, ttr_us: int, tr: Transaction) -> None:
    deadline_us = runtime_of(tr).now_us() + ttr_us
    tr.set(keys.heartbeat(session), layer.pack((deadline_us,)))
    tr.set(keys.beat_due(deadline_us, session), b"")


# Keys of queues that are gone.


def orphans(database: Database, registry: Registry, checks: RootChecks) -> Iterator[Suspect]:
    """The ids without a definition, and those with two. `checks` has seen the definitions."""
    for key in _first_keys(database, registry):
        id_ = registry.keys.id_in(key)
        if id_ is None:
            yield Suspect(Flaw.UNKNOWN, key, "No queue can have a key of this shape.", FOREIGN)
        elif id_ not in checks.names:
            yield from run(database, partial(_judge, registry, id_))
    for id_ in sorted(checks.imported - checks.names.keys()):
        yield from run(database, partial(_judge, registry, id_))
    for id_, names in sorted(checks.names.items()):
        if len(names) > 1:
            yield from run(database, partial(_judge_twins, registry, id_))


def _first_keys(database: Database, registry: Registry) -> Iterator[bytes]:
    """The first key below each id: one read each."""
    start, stop = registry.keys.all_contents.start, registry.keys.all_contents.stop
    while (first := run(database, partial(first_key, start, stop))) is not None:
        yield first
        id_ = registry.keys.id_in(first)
        behind = first + b"\x00"
        start = behind if id_ is None else max(behind, registry.keys.contents(id_ + 1).key())


def _judge(registry: Registry, id_: int, tr: Transaction) -> list[Suspect]:
    """Look at the definitions and the keys of the id at one version. Reads: by snapshot."""
    keys = [first_key(under.start, under.stop, tr) for under in _ranges(registry, id_)]
    key = next((key for key in keys if key is not None), None)
    if tr.snapshot.get(registry.keys.lost_members(id_)).present():
        return []  # a sweep of groups counts the members off that the drop has removed
    if key is None or id_ in _ids(registry, tr.snapshot):
        return []
    text = f"Keys belong to the queue {id_}, which has no definition: it was dropped."
    return [Suspect(Flaw.ORPHAN, key, text, Cures(None).mending, partial(_clear, registry, id_))]


def _judge_twins(registry: Registry, id_: int, tr: Transaction) -> list[Suspect]:
    names = [name for name, known in _definitions(registry, tr.snapshot) if known == id_]
    if len(names) < 2:
        return []
    text = f"The queues {', '.join(map(repr, names))} have the same id, so they share their contents."
    key = registry.keys.definition(names[-1])
    return [Suspect(Flaw.DEFINITION, key, text, "Copy the tasks to a new queue: a drop removes them all.")]


def _clear(registry: Registry, id_: int, tr: Transaction) -> None:
    """Clear the keys of a queue that no definition has. Conflicts: a create."""
    if id_ not in _ids(registry, tr):
        for under in _ranges(registry, id_):
            tr.clear_range(under.start, under.stop)


def _ranges(registry: Registry, id_: int) -> tuple[slice, ...]:
    """The keys of a queue: its contents, and the progress of imports into it."""
    return registry.keys.contents(id_).range(), registry.keys.imports_into(id_)


def _ids(registry: Registry, tr: ReadTransaction) -> set[int]:
    return {id_ for _, id_ in _definitions(registry, tr)}


def _definitions(registry: Registry, tr: ReadTransaction) -> Iterator[tuple[str, int]]:
    under = registry.keys.definitions
    for row in tr.get_range(under.start, under.stop):
        name = registry.keys.name_of(row.key)
        if name is not None:
            yield name, Definition.listed(name, row.value).id
