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

A limit of both has two rows for a key: that of slots, and that of starts in the column KEY_TOKENS. A task of
the key starts if it has a slot and a token. A parked lane waits for the end of a task if all slots are in
use: only an end sets the time of the next token then, if it finds none. Otherwise the row of starts has it.

A key without a row has all of its slots, or a full bucket. So no row is left of a key that is idle: the end
of the last task clears that of slots, and a sweep that of starts, once the bucket is full again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import gt
from typing import Protocol

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import LimitUnreadable
from fdbqueue.core.seam import ReadTransaction, Transaction, Value
from fdbqueue.tasks.limits.rule import (
    CELLS_MAX,
    LimitKeys,
    Rule,
    cells_bytes,
    cells_of,
    error_of,
    one_less_bytes,
    one_more_bytes,
    rule_of,
)

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
_NO_TOKENS: Sequence[int] = ()


@dataclass(frozen=True)
class State:
    keys: LimitKeys
    rule: Rule | None
    """None for a limit that does not exist, or that cannot be read: it limits nothing."""
    numbers: Sequence[int]
    """Those of the cells."""
    stored: bytes | None = None
    """The value of the rule, as it was read."""
    tokens: Sequence[int] = ()
    """The numbers of the cells of tokens, of a limit of slots and starts."""

    @property
    def error(self) -> LimitUnreadable | None:
        return error_of(self.keys.name, self.stored)

    @property
    def counts_keys(self) -> bool:
        """True if it counts each key apart; the cells are then those of tasks that name no key."""
        return self.rule is not None and self.rule.per_key

    def free(self, now_us: int) -> int | None:
        """Number of tasks that may start now; None for any number."""
        rule = self.rule
        if rule is None:
            return None
        if not rule.rate:
            return free_slots(rule.slots, self.numbers)
        tokens = self.bucket(rule, now_us).all_tokens()
        return min(tokens, self.free_slots) if rule.slots else tokens

    @property
    def is_full(self) -> bool:
        """True if all slots are in use."""
        return self.rule is not None and self.rule.has_slots and not self.free_slots

    @property
    def free_slots(self) -> int:
        return 0 if self.rule is None else free_slots(self.rule.slots, self.numbers)

    def free_tokens(self, now_us: int) -> int | None:
        """None for a limit of slots."""
        if self.rule is None or not self.rule.has_starts:
            return None
        return self.bucket(self.rule, now_us).all_tokens()

    def next_us(self, now_us: int) -> int | None:
        """The time at which the next token comes; None if there are some, or for a limit of slots."""
        if self.rule is None or not self.rule.has_starts:
            return None
        return self.bucket(self.rule, now_us).next_us()

    def wakes_us(self, now_us: int) -> int | None:
        """As `next_us`, for a take that waits. Without a free slot, the bell wakes it."""
        return None if self.is_full else self.next_us(now_us)

    def bucket(self, rule: Rule, now_us: int) -> Bucket:
        return Bucket(rule, self.tokens or self.numbers, now_us * 1_000)

    def start(self, tr: Transaction, count: int, first: int, now_us: int) -> Sequence[int]:
        """Let `count` tasks start, from the cell `first` on. Return the cells of their slots; empty for a
        limit that hands out none.

        Conflicts: takes that use one of these cells; while a cell has too many tasks, all takes.
        Raises: a conflict if fewer may start.
        """
        if self.rule is None:
            return ()
        if not self.rule.rate:
            return self._take_slots(tr, self.rule.slots, count, first)
        self._take_tokens(tr, self.bucket(self.rule, now_us), count, first)
        return self._take_slots(tr, self.rule.slots, count, first) if self.rule.slots else ()

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
        key, numbers = (self.keys.tokens, self.tokens) if self.tokens else (self.keys.cells, self.numbers)
        later = {cell: full_ns - numbers[cell] for cell, full_ns in changed.items()}
        tr.add(key, cells_bytes(later))


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
    return _replied(tr.snapshot, keys, tr.get(keys.row))


def ask_by_snapshot(tr: ReadTransaction, keys: LimitKeys) -> Callable[[], State]:
    return _replied(tr, keys, tr.get(keys.row))


def rely_on_all(tr: Transaction, keys: LimitKeys) -> None:
    """Conflict with each change of the limit, of its slots and of its tokens."""
    tr.add_read_conflict_key(keys.row)
    tr.add_read_conflict_key(keys.cells)


def _replied(tr: ReadTransaction, keys: LimitKeys, row: Value) -> Callable[[], State]:
    cells, tokens = tr.get(keys.cells), tr.get(keys.tokens) if keys.has_both else None
    state: State | None = None

    def reply() -> State:
        nonlocal state
        if state is None:
            rule, times = rule_of(row.value), _NO_TOKENS
            has_both = keys.has_both = rule is not None and rule.has_both
            if has_both:  # another thread may note another rule meanwhile
                times = cells_of((tr.get(keys.tokens) if tokens is None else tokens).value)
            state = State(keys, rule, cells_of(cells.value), row.value, times)
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
    tokens: bytes | None = None
    """The row of starts of a limit of slots and starts, maybe empty; None for any other limit."""

    @property
    def is_apart(self) -> bool:
        return self.rule is not None and self.rule.per_key

    @property
    def starts_key(self) -> bytes:
        return self.keys.count(self.key) if self.tokens is None else self.keys.key_tokens(self.key)

    @property
    def used(self) -> int:
        rule = self.rule
        return number_of(self.stored) if rule is not None and (rule.slots or not rule.rate) else 0

    @property
    def is_full(self) -> bool:
        """True if all slots are in use."""
        return self.rule is not None and self.rule.has_slots and self.used >= self.rule.slots

    @property
    def due_us(self) -> int:
        """The time at which parked lanes of the key may open; 0 for none."""
        return number_of(((self.stored if self.tokens is None else self.tokens) or b"")[_BYTES:])

    @property
    def over_us(self) -> int:
        """The time at which a sweep looks if the row is over; 0 without a row."""
        return number_of(((self.stored if self.tokens is None else self.tokens) or b"")[2 * _BYTES :])

    def free(self, now_us: int) -> int | None:
        """Number of tasks of the key that may start now; None for any number."""
        rule = self.rule
        if rule is None or not rule.per_key:
            return None
        if not rule.rate:
            return max(0, rule.slots - number_of(self.stored))
        tokens = self.bucket(rule, now_us).all_tokens()
        return min(tokens, max(0, rule.slots - self.used)) if rule.slots else tokens

    def has_room(self, now_us: int) -> bool:
        return self.free(now_us) != 0

    def may_start_after(self, ended: int) -> bool:
        """True if there is a slot for a task once `ended` others have given theirs back."""
        return self.rule is None or self.used - ended < self.rule.slots

    def has_token(self, tr: Transaction, ended: int, now_us: int) -> bool:
        """True if the end of `ended` tasks opens the lanes of the key; without a token, a sweep does later.

        Conflicts: of a limit of slots and starts, a change of its rule, and of the tokens of the key.
        """
        if self.rule is None or not self.rule.per_key or self.tokens is None:
            return True
        for read in (self.keys.row, self.starts_key):
            tr.add_read_conflict_key(read)
        if self.bucket(self.rule, now_us).all_tokens():
            return True
        if not self.due_us:
            self.refill(tr, self.full_ns, now_us, more=-ended)
        return False

    def next_us(self, now_us: int) -> int | None:
        return self._next_us(self.full_ns, now_us)

    def _next_us(self, full_ns: int, now_us: int) -> int | None:
        if self.rule is None or not self.rule.per_key or not self.rule.rate:
            return None
        return Bucket(self.rule, [full_ns], now_us * 1_000, cells_max=1).next_us()

    def bucket(self, rule: Rule, now_us: int) -> Bucket:
        """One cell: takes of one key may conflict."""
        full_ns = number_of(self.stored if self.tokens is None else self.tokens)
        return Bucket(rule, [full_ns], now_us * 1_000, cells_max=1)

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
        if self.rule.rate:
            self._take_tokens(tr, self.rule, count, now_us)
        if self.rule.slots or not self.rule.rate:
            pass_gate(tr, self.keys.key_gate(self.key))
            self.hold(tr, count)
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
        tr.add_read_conflict_key(self.starts_key)
        self.refill(tr, changed[0], now_us, more=count)

    @property
    def full_ns(self) -> int:
        return number_of(self.stored if self.tokens is None else self.tokens)

    def refill(
        self, tr: Transaction, full_ns: int, now_us: int, *, anew: bool = False, more: int = 0
    ) -> None:
        """Store the row of a limit of starts, with the time of the next token if there is none, and a slot is
        free once `more` are in use.

        An earlier time stays, unless `anew`: its sweep moves it.
        """
        next_us, was_us = 0, self.due_us
        if self.rule is None or self.tokens is None or self.used + more < self.rule.slots:
            next_us = self._next_us(full_ns, now_us) or 0
        due_us = next_us if anew or not was_us else min(next_us or was_us, was_us)
        self._store(tr, full_ns, due_us, self.over_us or -(-full_ns // 1_000))

    def look_later(self, tr: Transaction, now_us: int) -> None:
        """Clear the row of a limit of starts if it is over; otherwise have another sweep look at it."""
        if not self.due_us and (not self.is_apart or self.full_ns <= now_us * 1_000):
            tr.clear(self.keys.over(self.over_us, self.key))
            tr.clear(self.starts_key)
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
        tr.set(self.starts_key, row)


def ask_key(tr: ReadTransaction, keys: LimitKeys, key: bytes) -> Callable[[Rule | None], KeyState]:
    """Ask for one key of a limit. The reply wants the rule of the same version.

    Round trips: one more if this process learns only then that the limit is one of slots and starts.
    """
    row, tokens = tr.get(keys.count(key)), tr.get(keys.key_tokens(key)) if keys.has_both else None

    def reply(rule: Rule | None) -> KeyState:
        has_both = keys.has_both = rule is not None and rule.has_both
        if not has_both:
            return KeyState(keys, key, rule, row.value)
        starts = tr.get(keys.key_tokens(key)) if tokens is None else tokens
        return KeyState(keys, key, rule, row.value, starts.value or b"")

    return reply
