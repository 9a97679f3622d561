"""State: one limit as a transaction has read it, and the starts that it takes from there."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import LimitUnreadable
from fdbqueue.core.seam import ReadTransaction, Transaction, Value
from fdbqueue.tasks.limiting.bucket import Bucket
from fdbqueue.tasks.limiting.keys import LimitKeys, cells_bytes, cells_of, one_less_bytes, one_more_bytes
from fdbqueue.tasks.limiting.rule import Rule, error_of, rule_of
from fdbqueue.tasks.limiting.slots import free_slots, places

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
