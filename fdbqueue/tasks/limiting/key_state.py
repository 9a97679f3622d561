"""Key state: one key of a limit that counts each key apart, as a transaction has read it. Its row is

    slots    the number of slots that tasks of the key hold; 8 bytes, the least first, for atomic adds
    starts   the nanosecond at which its bucket is full, and the microseconds of its keys R[17, name, 6] and
             R[17, name, 10]; 8 bytes each, the least first; 0 for no key

A key without a row has all of its slots, or a full bucket. So no row is left of a key that is idle: the end
of the last task clears that of slots, and a sweep that of starts, once the bucket is full again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import writable
from fdbqueue.core.database import conflict_in, runtime_of
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.page import Page, place_text
from fdbqueue.core.seam import EXACT, ReadTransaction, Transaction
from fdbqueue.core.task import LimitHolder, ReachedLimit
from fdbqueue.tasks.limiting.keys import Held, LimitKeys, held_of, shown_key
from fdbqueue.tasks.limiting.rule import Rule, known_rule
from fdbqueue.tasks.limiting.state import Bucket, State, pass_gate
from fdbqueue.tasks.records.keys import id_text

_BYTES = 8
_NONE = bytes(_BYTES)


def number_bytes(number: int) -> bytes:
    """As the operand of an atomic add; it may be negative."""
    return (number & ((1 << 8 * _BYTES) - 1)).to_bytes(_BYTES, "little")


def number_of(stored: bytes | None) -> int:
    return int.from_bytes((stored or b"")[:_BYTES], "little")


@dataclass(frozen=True)
class KeyState:
    keys: LimitKeys
    key: bytes
    rule: Rule | None
    stored: bytes | None

    @property
    def is_apart(self) -> bool:
        return self.rule is not None and self.rule.per_key

    @property
    def used(self) -> int:
        is_of_slots = self.rule is not None and self.rule.is_of_slots
        return number_of(self.stored) if is_of_slots else 0

    @property
    def due_us(self) -> int:
        """The time at which parked lanes of the key may open; 0 for none."""
        return number_of((self.stored or b"")[_BYTES:])

    @property
    def over_us(self) -> int:
        """The time at which a sweep looks if the row is over; 0 without a row."""
        return number_of((self.stored or b"")[2 * _BYTES :])

    def free(self, now_us: int) -> int | None:
        """Number of tasks of the key that may start now; None for any number."""
        if self.rule is None or not self.rule.per_key:
            return None
        if self.rule.is_of_slots:
            return max(0, self.rule.slots - self.used)
        return self.bucket(self.rule, now_us).all_tokens()

    def has_room(self, now_us: int) -> bool:
        return self.free(now_us) != 0

    def may_start_after(self, ended: int) -> bool:
        """True if a task may start once `ended` others have given their slots back."""
        return self.rule is None or self.used - ended < self.rule.slots

    def next_us(self, now_us: int) -> int | None:
        if self.rule is None or not self.rule.per_key or self.rule.is_of_slots:
            return None
        return self.bucket(self.rule, now_us).next_us()

    def bucket(self, rule: Rule, now_us: int) -> Bucket:
        """One cell: takes of one key may conflict."""
        return Bucket(rule, [number_of(self.stored)], now_us * 1_000, cells_max=1)

    def start(self, tr: Transaction, count: int, now_us: int) -> bool:
        """Let `count` tasks of the key start. True if no other one may start now.

        Conflicts: takes of the key; if no other one may start, the end of a task of the key.
        Raises: a conflict if fewer may start.
        """
        assert self.rule is not None
        free = self.free(now_us)
        if free is None or free < count:
            raise conflict_in(tr)
        if free == count:  # before the write: FoundationDB drops a read conflict on a key that was written
            tr.add_read_conflict_key(self.keys.count(self.key))
        if self.rule.is_of_slots:
            pass_gate(tr, self.keys.key_gate(self.key))
            self.hold(tr, count)
        else:
            self._take_tokens(tr, self.rule, count, now_us)
        return free == count

    def hold(self, tr: Transaction, count: int) -> None:
        """Add to the slots in use. A negative `count` gives them back. Writes: blindly."""
        row = self.keys.count(self.key)
        for counter in (row, self.keys.total):
            tr.add(counter, number_bytes(count))
        if count < 0:
            tr.compare_and_clear(row, _NONE)

    def _take_tokens(self, tr: Transaction, rule: Rule, count: int, now_us: int) -> None:
        changed = self.bucket(rule, now_us).taken(count, 0)
        assert changed is not None
        tr.add_read_conflict_key(self.keys.count(self.key))
        self.refill(tr, changed[0], now_us)

    @property
    def full_ns(self) -> int:
        return number_of(self.stored)

    def refill(self, tr: Transaction, full_ns: int, now_us: int, *, anew: bool = False) -> None:
        """Store the row of a limit of starts, with the time of the next token if there is none.

        An earlier time stays, unless `anew`: its sweep moves it.
        """
        later = KeyState(self.keys, self.key, self.rule, number_bytes(full_ns))
        next_us = later.next_us(now_us) or 0
        due_us = next_us if anew or not self.due_us else min(next_us or self.due_us, self.due_us)
        self._store(tr, full_ns, due_us, self.over_us or -(-full_ns // 1_000))

    def look_later(self, tr: Transaction, now_us: int) -> None:
        """Clear the row of a limit of starts if it is over; otherwise have another sweep look at it."""
        if not self.due_us and (not self.is_apart or self.full_ns <= now_us * 1_000):
            tr.clear(self.keys.over(self.over_us, self.key))
            tr.clear(self.keys.count(self.key))
        else:
            self._store(tr, self.full_ns, self.due_us, max(now_us + 1, -(-self.full_ns // 1_000)))

    def _store(self, tr: Transaction, full_ns: int, due_us: int, over_us: int) -> None:
        for key_at, was_us, time_us in (
            (self.keys.due, self.due_us, due_us),
            (self.keys.over, self.over_us, over_us),
        ):
            if was_us and was_us != time_us:
                tr.clear(key_at(was_us, self.key))
            if time_us and was_us != time_us:
                tr.set(key_at(time_us, self.key), b"")
        row = number_bytes(full_ns) + number_bytes(due_us) + number_bytes(over_us)
        tr.set(self.keys.count(self.key), row)


def ask_holders(tr: ReadTransaction, keys: LimitKeys) -> Callable[[], tuple[LimitHolder, ...]]:
    """Ask for the first holders of a limit. A damaged one is left out."""
    under, most = keys.holders, limits.LIMIT_HOLDERS_SHOWN
    rows = tr.get_range(under.start, under.stop, limit=most, streaming_mode=EXACT)

    def reply() -> tuple[LimitHolder, ...]:
        found = [(keys.task_in(row.key)[1], held_of(row.value)) for row in rows]
        return tuple(_holder(id_, held) for id_, held in found if held is not None)

    return reply


def ask_key_holders(
    tr: ReadTransaction, keys: LimitKeys, key: bytes
) -> Callable[[], tuple[LimitHolder, ...]]:
    under, most = keys.key_holders(key), limits.LIMIT_HOLDERS_SHOWN
    rows = tr.get_range(under.start, under.stop, limit=most, streaming_mode=EXACT)

    def reply() -> tuple[LimitHolder, ...]:
        found = [(keys.parts_of(row.key)[-1], held_of(row.value)) for row in rows]
        return tuple(_holder(id_, held) for id_, held in found if held is not None)

    return reply


def _holder(id_: bytes, held: Held) -> LimitHolder:
    return LimitHolder(task=id_text(id_), queue=held.queue, session=held.session.hex())


def reached_of(state: State, now_us: int, holders: tuple[LimitHolder, ...]) -> ReachedLimit:
    """`state`: of a limit that lets no task start."""
    rule, next_us = state.rule, state.next_us(now_us)
    slots = rule.slots if rule is not None and rule.is_of_slots else None
    return ReachedLimit(
        name=state.keys.name,
        slots=slots,
        used=0 if slots is None else sum(state.numbers),
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
    )


def unreadable_of(state: State, key: bytes) -> ReachedLimit:
    """`state`: of a limit that cannot be read, and for which tasks of the key wait."""
    return ReachedLimit(
        name=state.keys.name,
        slots=None,
        used=0,
        next=None,
        holders=(),
        key=shown_key(key),
        per_key=True,
        error=str(state.error),
    )


def reached_of_key(state: KeyState, now_us: int, holders: tuple[LimitHolder, ...]) -> ReachedLimit:
    """`state`: that of a key under which no task may start."""
    rule, next_us = state.rule, state.next_us(now_us)
    return ReachedLimit(
        name=state.keys.name,
        slots=rule.slots if rule is not None and rule.is_of_slots else None,
        used=state.used,
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
        key=shown_key(state.key),
        per_key=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitKey:
    """A key of a limit that counts each key apart, as one transaction has read it."""

    key: Any
    used: int
    """Number of slots that tasks of the key hold."""
    free: int
    """Number of tasks of the key that may start now."""
    next: float | None = None
    """The time of its next token, if there is none; in seconds since the epoch."""
    holders: Sequence[LimitHolder] = ()
    """Tasks that hold its slots, at most limits.LIMIT_HOLDERS_SHOWN; `Limit.open_key` reads them."""


def open_key(tr: Transaction, keys: LimitKeys, key: bytes) -> LimitKey:
    snapshot = writable(tr).snapshot
    rule, row, holders = (
        snapshot.get(keys.row),
        snapshot.get(keys.count(key)),
        ask_key_holders(snapshot, keys, key),
    )
    state = KeyState(keys, key, _counting(keys, rule.value), row.value)
    return _key_of(state, runtime_of(tr).now_us(), holders())


def listed_keys(tr: Transaction, keys: LimitKeys, limit: int, after: bytes | None) -> Page[LimitKey]:
    start = keys.counts.start if after is None else keys.count(after) + b"\x00"
    snapshot = writable(tr).snapshot
    asked, rows = snapshot.get(keys.row), snapshot.get_range(start, keys.counts.stop, limit=limit).to_list()
    rule, now_us = _counting(keys, asked.value), runtime_of(tr).now_us()
    found = [KeyState(keys, keys.parts_of(row.key)[1], rule, row.value) for row in rows]
    following = place_text(found[-1].key) if len(rows) == limit else None
    return Page((_key_of(state, now_us) for state in found), following)


def _counting(keys: LimitKeys, stored: bytes | None) -> Rule:
    rule = known_rule(keys.name, stored)
    if not rule.per_key:
        raise InvalidArgument(name="name", wanted="a limit that was set with `per_key`", got=keys.name)
    return rule


def _key_of(state: KeyState, now_us: int, holders: Sequence[LimitHolder] = ()) -> LimitKey:
    next_us = state.next_us(now_us)
    return LimitKey(
        key=shown_key(state.key),
        used=state.used,
        free=state.free(now_us) or 0,
        next=None if next_us is None else next_us / 1_000_000,
        holders=holders,
    )


def used_of(state: State, total: bytes | None) -> int:
    """Number of slots of a limit that tasks hold, of all keys. `total`: those of tasks with keys."""
    assert state.rule is not None
    return sum(state.numbers) + number_of(total) if state.rule.is_of_slots else 0
