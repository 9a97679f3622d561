"""The checks of a keyed discipline: lines, states, pointers, counters and levels of task keys."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify.asking import Ask, Row, Seen, Under, under
from fdbqueue.operate.verify.cures import FOREIGN, told_key
from fdbqueue.operate.verify.partitions import HeldChecks, expect_ready
from fdbqueue.operate.verify.slices import Mend, Suspect, resized
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.disciplines.beside import (
    BUSY,
    COUNTS,
    FLOOR,
    LEVEL,
    ROUND,
    STATE,
    WAITING,
    is_slug,
    parts_of,
    rebuild,
    task_key_in,
)
from fdbqueue.tasks.disciplines.fair import Fair
from fdbqueue.tasks.disciplines.key_counts import Numbers, key_of, level_in
from fdbqueue.tasks.disciplines.key_state import KeyState, readable_state
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import ID_BYTES, Record, id_in, id_text, sound_record
from fdbqueue.tasks.records.statistics import LIVE, unpacked
from fdbqueue.tasks.shape import Shape

NUMBER_BYTES = 8


class BesideChecks:
    def __init__(self, shape: Shape, keyed: Keyed, mending: str) -> None:
        self._shape = shape
        self._keys = shape.keys
        self._keyed = keyed
        self._mending = mending
        self._held = HeldChecks(shape, keyed, mending)
        self.counters: dict[bytes, Numbers] = {}
        """The stored counters of the task keys, in the slices so far."""
        self._asks: dict[int, Callable[[Row, bytes], Iterable[Ask]]] = {
            WAITING: self._ask_waiting,
            STATE: self._ask_state,
            BUSY: self._ask_busy,
            LEVEL: self._ask_level,
        }
        self._judges: dict[int, Callable[[Row, bytes, Seen], Iterable[Suspect]]] = {
            WAITING: self._judge_waiting,
            STATE: self._judge_state,
            ROUND: self._judge_number,
            COUNTS: self._judge_counts,
            BUSY: self._judge_busy,
            LEVEL: self._judge_level,
            FLOOR: self._judge_number,
        }

    def asks(self, row: Row) -> Iterable[Ask]:
        column, rest = parts_of(self._keys.beside, row.key)
        return self._asks[column](row, rest) if column in self._asks else ()

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column, rest = parts_of(self._keys.beside, row.key)
        if column not in self._judges or not self._has_shape(column, rest):
            return [Suspect(Flaw.UNKNOWN, row.key, "No key of a discipline has this shape.", FOREIGN)]
        return self._judges[column](row, rest, seen)

    def note(self, row: Row) -> None:
        column, rest = parts_of(self._keys.beside, row.key)
        if column == COUNTS and is_slug(rest):
            self.counters[key_of(rest)] = unpacked(LIVE, row.value)

    def rebuild(self, tr: Transaction, key: bytes) -> None:
        rebuild(self._keyed, tr, key)
        expect_ready(tr, self._shape)

    def _has_shape(self, column: int, rest: bytes) -> bool:
        if column == WAITING:
            return task_key_in(rest) is not None
        if column == BUSY:
            return is_slug(rest[1:])
        if column == ROUND:
            return not rest and isinstance(self._keyed, Fair)
        if column == FLOOR:
            return not rest and not self._shape.definition.id  # a FairQueue
        return is_slug(rest)

    # The line of a task key: its ready tasks.

    def _ask_waiting(self, _: Row, rest: bytes) -> Iterator[Ask]:
        key = task_key_in(rest)
        if key is not None:
            yield self._keys.task(id_in(rest))
            yield from self.ask_state_of(key)
            yield self._first_of(key)

    def _judge_waiting(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        key, id_ = task_key_in(rest) or b"", id_in(row.key)
        stored = seen.value(self._keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None:
            text = f"The line of a task key has the task {id_text(id_)}, which is missing."
            mend = partial(_mend_lost, self._shape, row)
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, mend)
        elif record is not None and not self._is_filed(record, row.key):
            text = f"The line of a task key has the task {id_text(id_)}, which is {_state(record)} elsewhere."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, self._clearing(row.key, key))
        first = seen.rows(self._first_of(key))[0]
        if first.key == row.key and seen.value(self._keyed.state_key(key)) is None:
            text = f"The task key {told_key(key)} has ready tasks and no state: no take finds them."
            yield Suspect(Flaw.KEY_STATE, row.key, text, self._mending, self._rebuilding(key))

    def _is_filed(self, record: Record, key: bytes) -> bool:
        return record.state == TaskState.READY and self._keyed.filed(record) == key

    # The state of a task key, and its pointer.

    def ask_state_of(self, key: bytes) -> Iterator[Ask]:
        yield self._keyed.state_key(key)

    def judge_taken(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        """Check that the key of a taken task counts it."""
        if self._keyed.counts_taken and seen.value(self._keyed.state_key(row.value)) is None:
            text = f"The task key {told_key(row.value)} has taken tasks and no state that counts them."
            yield Suspect(Flaw.KEY_STATE, row.key, text, self._mending, self._rebuilding(row.value))

    def ask_pointer(self, row: Row) -> Iterator[Ask]:
        record = sound_record(row.value, id_in(row.key))
        if record is not None:
            yield self._keyed.state_key(record.key)

    def judge_pointer(self, row: Row, place: bytes, seen: Seen) -> Iterator[Suspect]:
        record = sound_record(row.value, id_in(row.key))
        if record is None:
            text = f"The pointer to the task {id_text(id_in(row.key))} cannot be read."
            mend = partial(_mend_entry, self._shape, row)
            yield Suspect(Flaw.COPY, row.key, text, self._mending, mend)
            return
        state = readable_state(seen.value(self._keyed.state_key(record.key)))
        if state is not None and state.pointer != place:
            text = f"A pointer to the task {id_text(record.id)} is not the one of its task key."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, self._clearing(row.key, record.key))

    def _ask_state(self, row: Row, rest: bytes) -> Iterator[Ask]:
        state = readable_state(row.value)
        if is_slug(rest) and state is not None:
            yield self._keys.ready_at(state.pointer)
            yield self._first_of(key_of(rest))
            yield self._keyed.counts.counts_key(rest)
            if state.held:
                yield from self._held.asks()

    def _judge_state(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        key = key_of(rest)
        state = readable_state(row.value)
        wrong = (
            "cannot be read"
            if state is None
            else self._wrong_pointer(key, state, seen) or self._wrong_count(rest, state, seen)
        )
        if wrong:
            text = f"The state of the task key {told_key(key)} {wrong}."
            yield Suspect(Flaw.KEY_STATE, row.key, text, self._mending, self._rebuilding(key))
        elif state is not None and state.held:
            yield from self._held.judge(row, key, told_key(key), seen)

    def _wrong_pointer(self, key: bytes, state: KeyState, seen: Seen) -> str | None:
        first = next(iter(seen.rows(self._first_of(key))), None)
        if not state.pointer:
            waits = first is not None and self._keyed.is_open(state)
            return "has no pointer, and its tasks wait for ever" if waits else None
        if first is None:
            return "has a pointer, and the key has no ready task"
        if not self._keyed.is_open(state):
            return "has a pointer, and no task of the key may be taken"
        if seen.value(self._keys.ready_at(state.pointer)) is None:
            return "has a pointer that takes do not find"
        place = first.key[len(self._keyed.fifo(key).start) :]
        if len(place) >= ID_BYTES and place != state.head:
            return "has a pointer to another task than the first"
        return None

    def _wrong_count(self, slug: bytes, state: KeyState, seen: Seen) -> str | None:
        if not self._keyed.counts_taken:
            return None
        taken = unpacked(LIVE, seen.value(self._keyed.counts.counts_key(slug)))["taken"]
        return None if state.taken == taken else f"counts {state.taken} taken tasks, its counter {taken}"

    def _first_of(self, key: bytes) -> Under:
        return under(self._keyed.fifo(key), limit=1)

    # Counters and levels.

    def _judge_counts(self, row: Row, rest: bytes, _: Seen) -> Iterator[Suspect]:
        if len(row.value) != len(LIVE) * NUMBER_BYTES or not any(row.value):
            text = f"The counters of the task key {told_key(key_of(rest))} are damaged: {row.value.hex()}."
            mend = resized(row, len(LIVE) * NUMBER_BYTES)
            yield Suspect(Flaw.KEY_COUNTER, row.key, text, self._mending, mend)

    def _ask_busy(self, _: Row, rest: bytes) -> Iterator[Ask]:
        if is_slug(rest[1:]):
            yield self._keyed.counts.level_key(rest[1:])

    def _judge_busy(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if seen.value(self._keyed.counts.level_key(rest[1:])) != bytes([level_in(rest)]):
            told = told_key(key_of(rest[1:]))
            text = f"The index of busy keys has the task key {told} at a level that it has left."
            yield Suspect(Flaw.KEY_COUNTER, row.key, text, self._mending, _clear(row.key))

    def _ask_level(self, row: Row, rest: bytes) -> Iterator[Ask]:
        if is_slug(rest) and len(row.value) == 1:
            yield self._keyed.counts.busy_key(row.value[0], rest)

    def _judge_level(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        if len(row.value) != 1 or seen.value(self._keyed.counts.busy_key(row.value[0], rest)) is None:
            text = (
                f"The task key {told_key(key_of(rest))} has a level, and no entry in the index of busy keys."
            )
            yield Suspect(Flaw.KEY_COUNTER, row.key, text, self._mending, _clear(row.key))

    def _judge_number(self, row: Row, _: bytes, __: Seen) -> Iterator[Suspect]:
        if len(row.value) != NUMBER_BYTES:
            text = f"A number of the discipline is damaged: {row.value.hex()}."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, _clear(row.key))

    # Mending.

    def _rebuilding(self, key: bytes) -> Mend:
        return lambda tr: self.rebuild(tr, key)

    def _clearing(self, wrong: bytes, key: bytes) -> Mend:
        def mend(tr: Transaction) -> None:
            tr.clear(wrong)
            self.rebuild(tr, key)

        return mend


def _clear(key: bytes) -> Mend:
    return lambda tr: tr.clear(key)


def _mend_lost(shape: Shape, row: Row, tr: Transaction) -> None:
    shape.mender.lost(tr, row.key, row.value)


def _mend_entry(shape: Shape, row: Row, tr: Transaction) -> None:
    shape.mender.entry(tr, row.key, row.value)


def _state(record: Record) -> str:
    return TaskState(record.state).name
