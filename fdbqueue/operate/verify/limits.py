"""The checks of limits: rules, slots and the tasks that hold them.

Each slot that a task holds is in three places: in its record, in a holder, and in the number of a cell. The
record and the holder name each other. The numbers of all cells are compared with the holders in one
transaction for each limit.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial

from fdbqueue.core import root_keys as columns
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import IMPORTING
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen
from fdbqueue.operate.verify.limit_keys import KeyChecks, miscounted_total, slots_of, task_key
from fdbqueue.operate.verify.slices import Mend, Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.disciplines.lanes import keyed_limit
from fdbqueue.tasks.limiting.keys import (
    CELLS,
    CELLS_MAX,
    HOLDER,
    KEYED,
    WALK,
    Held,
    LimitKeys,
    cells_bytes,
    encode_held,
    held_of,
)
from fdbqueue.tasks.limiting.rule import rule_of
from fdbqueue.tasks.limiting.state import ask_by_snapshot, give_slots
from fdbqueue.tasks.parking.settling import Settling
from fdbqueue.tasks.parking.under import Limits
from fdbqueue.tasks.records.keys import Record, id_text, sound_record
from fdbqueue.tasks.shape import Shape


class LimitChecks:
    """The keys of limits under a root."""

    def __init__(self, keys: RootKeys, mending: str) -> None:
        self._keys = keys
        self._keys_of = KeyChecks(keys, mending)
        self.mending = mending
        self.names: list[str] = []
        """The limits in the slices so far."""
        self.walks: list[str] = []
        """The limits with a walk under way, in the slices so far; some may be gone."""

    def asks(self, column: int, row: Row, rest: list[object]) -> Iterator[Ask]:
        if column == columns.LIMITED:
            yield self._limit(rest).row
            if rest[1] == HOLDER and (held := held_of(row.value)) is not None:
                yield self._task(held, rest[2:])
            yield from self._keys_of.asks(row, rest)

    def judge(self, column: int, row: Row, rest: list[object], seen: Seen) -> Iterator[Suspect]:
        if column == columns.LIMIT:
            if rule_of(row.value) is None:
                text = f"The limit {rest[0]!r} cannot be read, and limits nothing."
                yield Suspect(Flaw.VALUE, row.key, text, f"fdbqueue limit set {rest[0]} sets it anew.")
        elif seen.value(self._limit(rest).row) is None and rest[1] == CELLS:
            text = f"A key belongs to the limit {rest[0]!r}, which does not exist."
            yield Suspect(Flaw.STRAY, row.key, text, self.mending, lambda tr: tr.clear(row.key))
        elif rest[1] == HOLDER:
            yield from self._judge_holder(row, rest, seen)
        else:
            yield from self._keys_of.judge(row, rest, seen)

    def note(self, column: int, rest: list[object]) -> None:
        if column == columns.LIMIT:
            self.names.append(str(rest[0]))
        elif column == columns.LIMITED and rest[1] == WALK:
            self.walks.append(str(rest[0]))

    def _judge_holder(self, row: Row, rest: list[object], seen: Seen) -> Iterator[Suspect]:
        keys, held, id_ = self._limit(rest), held_of(row.value), rest[3]
        assert isinstance(id_, bytes)
        if held is None or not 0 <= held.cell < CELLS_MAX:
            text = f"A holder of the limit {keys.name!r} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self.mending, lambda tr: tr.clear(row.key))
            return
        stored = seen.value(self._task(held, rest[2:]))
        record = sound_record(stored, id_)
        if stored is None or (record is not None and slots_of(record).get(keys.name) != held.cell):
            text = f"The task {id_text(id_)} should hold a slot of the limit {keys.name!r}, and does not."
            yield Suspect(Flaw.STRAY, row.key, text, self.mending, _taking_back(keys, row, held.cell))

    def _limit(self, rest: list[object]) -> LimitKeys:
        return LimitKeys(self._keys.prefix, str(rest[0]))

    def _task(self, held: Held, rest: list[object]) -> bytes:
        return task_key(self._keys, held, rest)


def _taking_back(keys: LimitKeys, row: Row, cell: int) -> Mend:
    def mend(tr: Transaction) -> None:
        tr.clear(row.key)
        give_slots(tr, keys, [cell])

    return mend


class SlotChecks:
    """The slots in the records of one queue."""

    def __init__(self, shape: Shape, mending: str) -> None:
        self._shape = shape
        self._mending = mending

    def ask_task(self, record: Record) -> Iterator[Ask]:
        yield from (key for _, _, key in self._holders(record))

    def judge_task(self, row: Row, record: Record, seen: Seen) -> Iterator[Suspect]:
        for name, cell, key in self._holders(record):
            if seen.value(key) is None:
                text = f"The task {id_text(record.id)} holds a slot of the limit {name!r}, and is no holder."
                held = encode_held(Held(cell, self._shape.name, self._shape.keys.partition, record.session))
                yield Suspect(Flaw.STATE, row.key, text, self._mending, partial(_set, key, held))

    def _holders(self, record: Record) -> Iterator[tuple[str, int, bytes]]:
        found: Limits | None = self._shape.limits
        for name, cell in slots_of(record).items():
            keyed = keyed_limit(record) if cell == KEYED else None
            of_key = None if keyed is None or keyed[0] != name else keyed[1]
            key = None if found is None else found.holder(name, record.id, of_key)
            if key is not None:
                yield name, cell, key


def miscounted_in_all(database: Database, keys: RootKeys, name: str, mending: str) -> Iterator[Suspect]:
    """The contradictions of the counters of a limit."""
    for found in (
        miscounted(database, keys, name, mending),
        miscounted_total(database, LimitKeys(keys.prefix, name), mending),
    ):
        if found is not None:
            yield found


def unwalked(keys: RootKeys, name: str, mending: str, tr: Transaction) -> Suspect | None:
    """The contradiction of a walk that no sweep goes on with, at one version. The mending is its next step.

    Reads: by snapshot; of a walk, all definitions.
    """
    limit = LimitKeys(keys.prefix, name)
    if not tr.snapshot.get(limit.walk).present() or _may_be_named(keys, name, tr):
        return None
    text = f"A sweep is to look at the keys of a limit, and no queue names the limit {name!r}."
    mend = partial(_step, Settling(keys.prefix, limit))
    return Suspect(Flaw.TIMER, limit.walk, text, mending, mend)


def _step(settling: Settling, tr: Transaction) -> None:
    settling.walk(tr, runtime_of(tr).now_us())


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
    return [found[cell] for cell in range(CELLS_MAX)], list(state.numbers) if is_of_slots else None


def _recount(keys: LimitKeys, tr: Transaction) -> None:
    """Add the differences: a start or an end that commits meanwhile keeps them."""
    claim = keys.gate_of_all
    tr.add_read_conflict_key(claim)
    tr.add_write_conflict_key(claim)
    counted, stored = _counted(keys, tr)
    if stored is not None:
        missing = {cell: counted[cell] - number for cell, number in enumerate(stored)}
        tr.add(keys.cells, cells_bytes(missing))


def _set(key: bytes, value: bytes, tr: Transaction) -> None:
    tr.set(key, value)
