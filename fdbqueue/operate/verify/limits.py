"""The checks of limits: rules, slots, the tasks that hold them, and rows of limits that count each key apart.

Each slot that a task holds is in three places: in its record, in a holder, and in the number of a cell. The
record and the holder name each other. The numbers of all cells are compared with the holders in one
transaction for each limit.

A walk of a limit (limits/parking.py) is about to look at all rows of its keys: until it is over, a holder
without a task and a lane without a state are no contradictions.
"""

from collections import Counter
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core import root_keys as columns
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.registry import IMPORTING, Definition
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import Check, Finder, Flaw, Row, Suspect, under
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.limited import slots_of
from fdbqueue.tasks.limits import rule
from fdbqueue.tasks.limits.parking import Settling, lane_at, stands_of
from fdbqueue.tasks.limits.rule import Held, LanePlace, LimitKeys, held_of, rule_of, shown_key
from fdbqueue.tasks.limits.state import KeyState, ask_by_snapshot, give_slots, number_bytes, number_of
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
        return self._cells(limit, row) if column == rule.CELLS else self.nothing()

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
        times, holders = _times_of(limit, row.value, key), under(limit.key_holders(key))
        seen = yield [limit.row, holders, *times]
        rule, told = rule_of(seen.value(limit.row)), f"the key {shown_key(key)!r} of the limit {limit.name!r}"
        if rule is None or not rule.per_key:
            return
        held, stored = len(seen.rows(holders)), number_of(row.value)
        if not rule.is_of_slots:
            if not all(map(seen.has, times)):
                text = f"No sweep looks at {told}: its row stays, or its tasks."
                yield self.found(Flaw.TIMER, row, text, dict.fromkeys(times, b""))
        elif held < limits.VERIFIED_ROWS_MAX and held != stored:
            text = f"Of {told} {stored:,} slots are in use, and tasks hold {held:,}."
            yield self.found(Flaw.COUNTER, row, text, partial(_recount_key, limit, key))

    def _time(self, limit: LimitKeys, row: Row, time_us: int, key: bytes) -> Check:
        count = limit.count(key)
        if not (yield [count]).has(count) and time_us:
            text = f"A sweep is to look at the key {shown_key(key)!r} of {limit.name!r}, which has no row."
            yield self.found(Flaw.TIMER, row, text)

    def _lane(self, limit: LimitKeys, row: Row, key: bytes, side: int, place: LanePlace) -> Check:
        state_key, due = lane_at(self._keys.prefix, limit, key, place).state, limit.due(0, key)
        seen = yield [limit.row, limit.walk, limit.count(key), state_key, due]
        if seen.has(limit.walk):
            return
        stands, told = stands_of(seen.value(state_key)), f"the key {shown_key(key)!r} of {limit.name!r}"
        state = KeyState(limit, key, rule_of(seen.value(limit.row)), seen.value(limit.count(key)))
        is_full = state.rule is not None and state.rule.is_of_slots and not state.has_room(0)
        if stands is None or bool(stands.head) != (side == rule.OPEN):
            text = f"A row of {told} names a lane that stands otherwise."
            yield self.found(Flaw.STRAY, row, text)
        elif side == rule.PARKED and not (state.due_us or is_full or seen.has(due)):
            text = f"Nothing opens a parked lane of {told}: its tasks wait for ever."
            # Slots that tasks hold, also of a limit that is unreadable or gone. The row of a key of starts
            # begins with a time, and has that of its sweep behind.
            if not state.over_us and number_of(state.stored) > 0:
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
    is_of_slots = state.rule is not None and state.rule.is_of_slots
    return [found[cell] for cell in range(rule.CELLS_MAX)], list(state.numbers) if is_of_slots else None


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
    if found is None or not found.is_of_slots or len(rows) == most:
        return 0
    return sum(number_of(row.value) for row in rows) - number_of(total.value)


def _mend_total(limit: LimitKeys, tr: Transaction) -> None:
    tr.add(limit.total, number_bytes(_missing_in_total(limit, tr)))
