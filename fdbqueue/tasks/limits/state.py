"""State: one limit as a transaction has read it, the starts that it takes from there, and one key of it.

Each cell has a part of the slots. A take adds to the number of its cell, and to that of no other; it writes
the gate of that cell, too, and has read it. So of two takes that use one cell, the second one has seen the
first, and no cell has more tasks than slots. The end of a task subtracts blindly: a take that has not seen it
has only read too large a number.

If the slots of a limit become fewer, a cell may have more tasks than slots. Then the sum decides, and all
takes that see such a cell conflict over one gate. A cell that is over its part gets no task, so it falls.

Tokens come at `rate` in `per`, up to `burst` of them. Each cell has a part of the burst, and gets tokens at
its part of the rate. Its number is the time at which it is full. A start moves that time by the time that one
token takes, and may move it beyond the present at most by the time of the cell's whole burst. So in any span
of time a cell has at most the starts of its burst and of the tokens that came, and the same holds for their
sum. The times of a cell never go back: a clock that is behind gets no token twice.

Key state: one key of a limit that counts each key apart, as a transaction has read it. Its row is

    slots    the number of slots that tasks of the key hold; 8 bytes, the least first, for atomic adds
    starts   the nanosecond at which its bucket is full, and the microseconds of its keys R[17, name, 6] and
             R[17, name, 10]; 8 bytes each, the least first; 0 for no key

A key without a row has all of its slots, or a full bucket. So no row is left of a key that is idle: the end
of the last task clears that of slots, and a sweep that of starts, once the bucket is full again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import gt
from typing import Any, Protocol

from fdbqueue.core import limits
from fdbqueue.core.arguments import writable
from fdbqueue.core.database import conflict_in, runtime_of
from fdbqueue.core.errors import InvalidArgument, LimitUnreadable
from fdbqueue.core.page import Page, place_text
from fdbqueue.core.seam import EXACT, ReadTransaction, Transaction, Value
from fdbqueue.core.task import LimitHolder, ReachedLimit
from fdbqueue.tasks.limits.rule import (
    CELLS_MAX,
    Held,
    LimitKeys,
    Rule,
    cells_bytes,
    cells_of,
    error_of,
    held_of,
    known_rule,
    one_less_bytes,
    one_more_bytes,
    rule_of,
    shown_key,
)
from fdbqueue.tasks.stored.records import id_text

_SKEW_NS = round(limits.CLOCK_SKEW_S * 1_000_000_000)


class Bucket:
    """The tokens of one rule, at one time. A take asks for all cells: their numbers are computed at once."""

    def __init__(self, rule: Rule, full_ns: Sequence[int], now_ns: int, cells_max: int = CELLS_MAX) -> None:
        """`full_ns`: the times at which the cells are full."""
        self.now_ns = now_ns
        # A small burst is in few cells, because each of them is lost separately when it is full.
        self.cells = max(1, min(cells_max, rule.burst // limits.CELL_TOKENS_MIN))
        self.token_ns = -(-rule.per_us * 1_000 * self.cells // rule.rate)
        """The time in which a cell gets one token, rounded up."""
        self.rooms = parts_of(rule.burst, self.cells)
        """The tokens for which each cell has room."""
        self.until_full: list[int] = []
        """Nanoseconds until each cell is full. A time that no clock within the bounds has written counts as
        none: it comes from a wrong clock, and would stop the limit until then.
        """
        self.tokens: list[int] = []
        """Those of each cell."""
        for cell, room in enumerate(self.rooms):
            missing = full_ns[cell] - now_ns
            if missing < 0 or missing > room * self.token_ns + _SKEW_NS:
                missing = 0
            tokens = room - -(-missing // self.token_ns)
            self.until_full.append(missing)
            self.tokens.append(tokens if tokens > 0 else 0)

    def all_tokens(self) -> int:
        return sum(self.tokens)

    def next_us(self) -> int | None:
        """The time of the next token; None while there are some."""
        if self.all_tokens():
            return None
        missing = zip(self.until_full, self.rooms, strict=True)
        waits = [until_ns - (room - 1) * self.token_ns for until_ns, room in missing]
        return -(-(self.now_ns + min(waits)) // 1_000)

    def taken(self, count: int, first: int) -> dict[int, int] | None:
        """The new times of the cells that give `count` tokens, `first` before others; None for too few."""
        changed: dict[int, int] = {}
        for step in range(self.cells):
            cell = (first + step) % self.cells
            few = min(self.tokens[cell], count)
            if few:
                count -= few
                changed[cell] = self.now_ns + self.until_full[cell] + few * self.token_ns
        return None if count else changed

    def poured(self, tokens: int) -> list[int]:
        """The times of all cells that have `tokens` together, as many as there is room for."""
        times = []
        for room in self.rooms:
            few = min(room, tokens)
            tokens -= few
            times.append(self.now_ns + (room - few) * self.token_ns)
        return times


@lru_cache(maxsize=256)
def parts_of(total: int, cells: int = CELLS_MAX) -> tuple[int, ...]:
    """The parts of `total` that the cells have."""
    part, more = divmod(total, cells)
    return (part + 1,) * more + (part,) * (cells - more)


def free_slots(slots: int, used: Sequence[int]) -> int:
    return max(0, slots - sum(used))


@dataclass(frozen=True)
class Places:
    """The cells of new tasks, one for each. `is_over`: a cell has more tasks than slots."""

    cells: Sequence[int]
    is_over: bool


def places(slots: int, used: Sequence[int], count: int, first: int) -> Places | None:
    """Cells for `count` tasks, the cell `first` before others; None if there are too few slots."""
    if count > free_slots(slots, used):
        return None
    chosen: list[int] = []
    parts = parts_of(slots)
    for step in range(CELLS_MAX):
        cell = (first + step) % CELLS_MAX
        free = parts[cell] - used[cell]
        if free > 0:
            chosen += [cell] * min(free, count - len(chosen))
            if len(chosen) == count:
                break
    return Places(chosen, is_over=any(map(gt, used, parts)))


_ONE = (1).to_bytes(8, "little")


@dataclass(frozen=True)
class State:
    keys: LimitKeys
    rule: Rule | None
    """None for a limit that does not exist, or that cannot be read: it limits nothing."""
    numbers: Sequence[int]
    """Those of the cells."""
    stored: bytes | None = None
    """The value of the rule, as it was read."""

    @property
    def error(self) -> LimitUnreadable | None:
        return error_of(self.keys.name, self.stored)

    @property
    def counts_keys(self) -> bool:
        """True if it counts each key apart; the cells are then those of tasks that name no key."""
        return self.rule is not None and self.rule.per_key

    def free(self, now_us: int) -> int | None:
        """Number of tasks that may start now; None for any number."""
        if self.rule is None:
            return None
        if self.rule.is_of_slots:
            return free_slots(self.rule.slots, self.numbers)
        return self.bucket(self.rule, now_us).all_tokens()

    def next_us(self, now_us: int) -> int | None:
        """The time at which the next token comes; None if there are some, or for a limit of slots."""
        if self.rule is None or self.rule.is_of_slots:
            return None
        return self.bucket(self.rule, now_us).next_us()

    def bucket(self, rule: Rule, now_us: int) -> Bucket:
        return Bucket(rule, self.numbers, now_us * 1_000)

    def start(self, tr: Transaction, count: int, first: int, now_us: int) -> Sequence[int]:
        """Let `count` tasks start, from the cell `first` on. Return the cells of their slots; empty for a
        limit that hands out none.

        Conflicts: takes that use one of these cells; while a cell has too many tasks, all takes.
        Raises: a conflict if fewer may start.
        """
        if self.rule is None:
            return ()
        if self.rule.is_of_slots:
            return self._take_slots(tr, self.rule.slots, count, first)
        self._take_tokens(tr, self.bucket(self.rule, now_us), count, first)
        return ()

    def _take_slots(self, tr: Transaction, slots: int, count: int, first: int) -> Sequence[int]:
        chosen = places(slots, self.numbers, count, first)
        if chosen is None:
            raise conflict_in(tr)
        if chosen.is_over:
            pass_gate(tr, self.keys.gate_of_all)
        for cell in dict.fromkeys(chosen.cells):
            pass_gate(tr, self.keys.gates[cell])
        tr.add(self.keys.cells, one_more_bytes(chosen.cells))
        return chosen.cells

    def _take_tokens(self, tr: Transaction, bucket: Bucket, count: int, first: int) -> None:
        changed = bucket.taken(count, first)
        if changed is None:
            raise conflict_in(tr)
        for cell in changed:
            pass_gate(tr, self.keys.gates[cell])
        # As an addition: other takes may change the other cells meanwhile.
        later = {cell: full_ns - self.numbers[cell] for cell, full_ns in changed.items()}
        tr.add(self.keys.cells, cells_bytes(later))


def pass_gate(tr: Transaction, gate: bytes) -> None:
    """Conflict with each transaction that passes the same gate meanwhile."""
    tr.add_read_conflict_key(gate)
    tr.add_write_conflict_key(gate)


def give_slots(tr: Transaction, keys: LimitKeys, cells: Iterable[int]) -> None:
    """Give slots of these cells back, blindly, and wake the takes that wait for one."""
    tr.add(keys.cells, one_less_bytes(cells))
    ring(tr, keys)


def ring(tr: Transaction, keys: LimitKeys) -> None:
    tr.add(keys.bell, _ONE)


def ask(tr: Transaction, keys: LimitKeys) -> Callable[[], State]:
    """Ask for a limit. Reads: its rule, serialisably; its cells, by snapshot."""
    return _replied(keys, tr.get(keys.row), tr.snapshot.get(keys.cells))


def ask_by_snapshot(tr: ReadTransaction, keys: LimitKeys) -> Callable[[], State]:
    return _replied(keys, tr.get(keys.row), tr.get(keys.cells))


def rely_on_all(tr: Transaction, keys: LimitKeys) -> None:
    """Conflict with each change of the limit, of its slots and of its tokens."""
    tr.add_read_conflict_key(keys.row)
    tr.add_read_conflict_key(keys.cells)


def _replied(keys: LimitKeys, row: Value, cells: Value) -> Callable[[], State]:
    state: State | None = None

    def reply() -> State:
        nonlocal state
        if state is None:
            state = State(keys, rule_of(row.value), cells_of(cells.value), row.value)
        return state

    return reply


Ask = Callable[[], int | None]
"""The reply to a question for the tasks that may start; None for any number."""

Keyed = tuple[str, bytes]
"""A limit that a task names with a key."""


class Apart(Protocol):
    """The limits that count each key apart."""

    def counts(self, name: str) -> bool:
        """True if that limit does. It waits for the limit."""

    def ask(self, tr: Transaction, name: str, key: bytes) -> Ask:
        """Ask for the tasks of a key that may start."""


class Gate:
    """Counts the tasks that a look finds. All partitions of a queue share it, as they share the limits."""

    def __init__(
        self,
        of_all: Iterable[Ask],
        named: Mapping[str, Ask],
        most: int,
        apart: Apart,
        states: Mapping[str, Callable[[], State]],
    ) -> None:
        """`of_all`: the limits of all tasks; `named`: those that tasks name; `most`: number of tasks that may
        start in one transaction; `states`: all these limits, by their names.
        """
        self._asked: tuple[Iterable[Ask], Mapping[str, Ask]] | None = (of_all, named)
        self._most = most
        """Starts that the transaction has room for."""
        self._apart = apart
        self._states = states
        self._left: int | None = None
        self._rooms: dict[str, int] = {}
        """The limits that let a number of tasks start, and no more."""
        self._key_rooms: dict[Keyed, int] = {}
        """The keys that do, of limits that count each apart."""

    def _see(self) -> None:
        if self._asked is None:
            return
        (of_all, named), self._asked = self._asked, None
        self._rooms = {name: free for name, ask in named.items() if (free := ask()) is not None}
        known = [free for ask in of_all if (free := ask()) is not None]
        if known or self._rooms:
            self._left = min([*known, self._most])

    @property
    def is_shut(self) -> bool:
        """True if no task may start, whatever it names."""
        return self.room(()) == 0

    def room(self, names: Iterable[str], but: str | None = None) -> int | None:
        """Number of tasks with these names that may start; None for any number. `but`: a name that they have
        with keys, which counts only if its limit does not count them apart.
        """
        if self._asked is not None:
            self._see()
        room = None if self._left is None else min(self._left, self._most)
        for name in names:
            few = self._rooms.get(name)
            if few is None or (name == but and self._apart.counts(name)):
                continue
            room = few if room is None else min(room, few)
        return room

    def spend(self) -> Mapping[str, Callable[[], State]]:
        """The limits as this look has read them. A start changes them, so the second one gets none."""
        states, self._states = self._states, {}
        return states

    def ask_key(self, tr: Transaction, keyed: Keyed) -> Callable[[], None]:
        """Ask for the tasks of a key that may start, unless this look knows it. Wait for the limits."""
        if keyed in self._key_rooms or not self._apart.counts(keyed[0]):
            return lambda: None
        asked = self._apart.ask(tr, *keyed)

        def see() -> None:
            free = asked()
            if free is not None:
                self._key_rooms.setdefault(keyed, free)

        return see

    def room_of_key(self, keyed: Keyed) -> int | None:
        """As `room`, for tasks of a key that has been asked for."""
        return self._key_rooms.get(keyed)

    def passes(self, names: Sequence[str], keyed: Keyed | None = None) -> bool:
        """Let a task with these names through, and count it. False if a limit is reached."""
        but = None if keyed is None else keyed[0]
        if self.room(names, but) == 0 or (keyed is not None and self.room_of_key(keyed) == 0):
            return False
        if self._left is not None:
            # One with a key counts for several: it writes the key several times, and may park its lanes.
            weight = (
                limits.STARTS_OF_A_KEYED_ONE + len(keyed[1]) // limits.KEY_BYTES_OF_A_START if keyed else 1
            )
            self._left, self._most = self._left - 1, max(0, self._most - weight)
        for name in names:
            if name in self._rooms and not (name == but and self._apart.counts(name)):
                self._rooms[name] -= 1
        if keyed in self._key_rooms:
            self._key_rooms[keyed] -= 1
        return True


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
