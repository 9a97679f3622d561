"""The checks of limits that count each key apart: rows of keys, their holders, their lanes and their times.

A walk of a limit (parking/settling.py) is about to look at all rows of its keys: until it is over, a holder
without a task and a lane without a state are no contradictions.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen, under
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.limiting.key_state import KeyState, number_bytes, number_of
from fdbqueue.tasks.limiting.keys import (
    COUNT,
    DUE,
    KEY_HOLDER,
    KEYED,
    OF_KEY,
    OPEN,
    OVER,
    PARKED,
    Held,
    LanePlace,
    LimitKeys,
    held_of,
    shown_key,
)
from fdbqueue.tasks.limiting.rule import Rule, rule_of
from fdbqueue.tasks.parking.keyed_lane import stands_of
from fdbqueue.tasks.parking.turning import lane_at
from fdbqueue.tasks.records.keys import Record, TaskKeys, id_text, sound_record


class KeyChecks:
    def __init__(self, keys: RootKeys, mending: str) -> None:
        self._keys = keys
        self._mending = mending

    def asks(self, row: Row, rest: list[Any]) -> Iterator[Ask]:
        limit, column = LimitKeys(self._keys.prefix, rest[0]), rest[1]
        if column == COUNT:
            yield under(limit.key_holders(rest[2]))
            yield from _times_of(limit, row.value, rest[2])
        elif column in (DUE, OVER):
            yield limit.count(rest[3])
        elif column == OF_KEY:
            yield limit.walk
            yield from self._asks_of_key(limit, row, rest[2:])

    def judge(self, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        limit, column = LimitKeys(self._keys.prefix, rest[0]), rest[1]
        rule = rule_of(seen.value(limit.row))
        if column == COUNT and rule is not None and rule.per_key:
            yield from self._judge_count(limit, rule, row, rest[2], seen)
        elif column in (DUE, OVER) and rest[2] and seen.value(limit.count(rest[3])) is None:
            text = (
                f"A sweep is to look at the key {shown_key(rest[3])!r} of {limit.name!r}, which has no row."
            )
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif column == OF_KEY:
            yield from self._judge_of_key(limit, row, rest[2:], seen)

    def _asks_of_key(self, limit: LimitKeys, row: Row, rest: list[Any]) -> Iterator[Ask]:
        key, side, *place = rest
        held = held_of(row.value) if side == KEY_HOLDER else None
        if held is not None:
            yield limit.count(key)
            yield task_key(self._keys, held, place)
        elif side != KEY_HOLDER:
            yield lane_at(self._keys.prefix, limit, key, LanePlace(*place)).state
            yield from (limit.count(key), limit.due(0, key))

    def _judge_of_key(self, limit: LimitKeys, row: Row, rest: list[Any], seen: Seen) -> Iterator[Suspect]:
        key, side, *place = rest
        if side == KEY_HOLDER:
            yield from self._judge_holder(limit, row, key, place, seen)
            return
        if seen.value(limit.walk) is None:
            yield from self._judge_lane(limit, row, key, side, LanePlace(*place), seen)

    def _judge_lane(
        self, limit: LimitKeys, row: Row, key: bytes, side: int, place: LanePlace, seen: Seen
    ) -> Iterator[Suspect]:
        stands = stands_of(seen.value(lane_at(self._keys.prefix, limit, key, place).state))
        told = f"the key {shown_key(key)!r} of {limit.name!r}"
        state = KeyState(limit, key, rule_of(seen.value(limit.row)), seen.value(limit.count(key)))
        if stands is None or bool(stands.head) != (side == OPEN):
            text = f"A row of {told} names a lane that stands otherwise."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif side == PARKED and not (_opens_later(state) or seen.value(limit.due(0, key)) is not None):
            text = f"Nothing opens a parked lane of {told}: its tasks wait for ever."
            if _has_holders(state):
                text = f"A parked lane of {told} could open now, and waits for the end of a task."
            mend = partial(_settle, limit, key)
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, mend)

    def _judge_holder(
        self, limit: LimitKeys, row: Row, key: bytes, place: list[Any], seen: Seen
    ) -> Iterator[Suspect]:
        held, id_ = held_of(row.value), place[1]
        told = f"the key {shown_key(key)!r} of the limit {limit.name!r}"
        if held is None:
            text = f"A holder of {told} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, lambda tr: tr.clear(row.key))
            return
        stored = seen.value(task_key(self._keys, held, place))
        record = sound_record(stored, id_)
        lost = stored is None or (record is not None and not _holds(record, limit.name, key))
        if lost and seen.value(limit.walk) is None:
            text = f"The task {id_text(id_)} should hold a slot of {told}, and does not."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, partial(_take_back, limit, key, row))
        elif seen.value(limit.count(key)) is None:
            text = f"The task {id_text(id_)} holds a slot of {told}, which has no row."
            yield Suspect(Flaw.COUNTER, row.key, text, self._mending, partial(_recount, limit, key))

    def _judge_count(
        self, limit: LimitKeys, rule: Rule, row: Row, key: bytes, seen: Seen
    ) -> Iterator[Suspect]:
        told = f"the key {shown_key(key)!r} of the limit {limit.name!r}"
        if not rule.is_of_slots:
            if any(seen.value(time) is None for time in _times_of(limit, row.value, key)):
                text = f"No sweep looks at {told}: its row stays, or its tasks."
                mend = partial(_look_at, limit, key)
                yield Suspect(Flaw.TIMER, row.key, text, self._mending, mend)
            return
        held, stored = len(seen.rows(under(limit.key_holders(key)))), number_of(row.value)
        if held < limits.VERIFIED_ROWS_MAX and held != stored:
            text = f"Of {told} {stored:,} slots are in use, and tasks hold {held:,}."
            yield Suspect(Flaw.COUNTER, row.key, text, self._mending, partial(_recount, limit, key))


def slots_of(record: Record) -> dict[str, int]:
    return {} if record.extra is None else record.extra.slots


def task_key(keys: RootKeys, held: Held, place: list[Any]) -> bytes:
    """The record of a holder's task. `place`: the queue and the task."""
    queue, id_ = place
    return TaskKeys(keys.contents(queue), held.partition).task(id_)


def _holds(record: Record, name: str, key: bytes) -> bool:
    extra = record.extra
    return extra is not None and extra.slots.get(name) == KEYED and extra.limit_keys.get(name) == key


def _times_of(limit: LimitKeys, stored: bytes, key: bytes) -> list[bytes]:
    """The keys at whose times sweeps look at a key of a limit of starts; none for one of slots."""
    state = KeyState(limit, key, None, stored)
    times = [limit.over(state.over_us, key)] if state.over_us else []
    return [*times, limit.due(state.due_us, key)] if state.due_us else times


def _opens_later(state: KeyState) -> bool:
    """True if the end of a task, or the time of a token, opens the parked lanes of the key."""
    is_of_slots = state.rule is not None and state.rule.is_of_slots
    return bool(state.due_us) or (is_of_slots and not state.has_room(0))


def _has_holders(state: KeyState) -> bool:
    """True if tasks hold slots of the key, also of a limit that is unreadable or gone: their ends open lanes.

    The row of a key of starts begins with a time, and has that of its sweep behind.
    """
    return not state.over_us and number_of(state.stored) > 0


def _settle(limit: LimitKeys, key: bytes, tr: Transaction) -> None:
    """Let the next sweep look at the lanes of the key."""
    tr.set(limit.due(0, key), b"")


def _look_at(limit: LimitKeys, key: bytes, tr: Transaction) -> None:
    row = tr.get(limit.count(key))
    for time in _times_of(limit, row.value or b"", key):
        tr.set(time, b"")


def _take_back(limit: LimitKeys, key: bytes, row: Row, tr: Transaction) -> None:
    tr.clear(row.key)
    KeyState(limit, key, None, None).hold(tr, -1)
    _settle(limit, key, tr)


def _recount(limit: LimitKeys, key: bytes, tr: Transaction) -> None:
    """Add the difference to the row of the key and to the total. Conflicts: starts and ends of the key."""
    row, holders = tr.get(limit.count(key)), limit.key_holders(key)
    missing = len(tr.get_range(holders.start, holders.stop).to_list()) - number_of(row.value)
    KeyState(limit, key, None, None).hold(tr, missing)
    _settle(limit, key, tr)


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
