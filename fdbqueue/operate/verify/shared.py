"""The checks of the keys that the partitions of any queue share: flags, the bell and the line of all.

They also find the partitions that have keys, whatever the plan says.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core.aside import Aside
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.partitions.current import plan_of
from fdbqueue.core.partitions.keys import BELL, FLAG, WIDE_LINE, SharedKeys
from fdbqueue.core.partitions.plan import Plan
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen
from fdbqueue.operate.verify.cures import FOREIGN, Cures, command
from fdbqueue.operate.verify.line import LineChecks
from fdbqueue.operate.verify.slices import Mend, Suspect, resized
from fdbqueue.operate.verify.values import Flaw

COLUMNS = (FLAG, BELL, WIDE_LINE)
_BELL_BYTES = 8
_NUMBER_MAX = 255


@dataclass(frozen=True)
class Partitioned:
    """A named queue that may have partitions: its name, the key of its definition, and the shared keys."""

    name: str
    definition: bytes
    keys: SharedKeys

    def plan_in(self, stored: bytes | None) -> Plan | None:
        """The plan in a stored definition; None without one."""
        try:
            return None if stored is None else plan_of(Definition.from_bytes(self.name, stored))
        except DefinitionUnreadable:
            return None


class SharedChecks:
    def __init__(self, queue: Partitioned, prefix: bytes, cures: Cures) -> None:
        """`prefix` is that of the queue."""
        self._queue = queue
        self._mending = cures.mending
        self._line = LineChecks(LineKeys(queue.keys.line), Aside(prefix, queue.keys.line), cures)

    def is_key(self, key: bytes) -> bool:
        return self._queue.keys.column_of(key) is not None

    def asks(self, row: Row) -> Iterable[Ask]:
        column = self._queue.keys.column_of(row.key)
        if column == WIDE_LINE:
            return self._line.asks(row)
        return (self._queue.definition,) if column == FLAG else ()

    def judge(self, row: Row, seen: Seen) -> Iterable[Suspect]:
        column = self._queue.keys.column_of(row.key)
        if column == WIDE_LINE:
            return self._line.judge(row, seen)
        return self._judge_flag(row, seen) if column == FLAG else self._judge_bell(row)

    def _judge_flag(self, row: Row, seen: Seen) -> Iterator[Suspect]:
        number = self._queue.keys.flagged(row.key)
        plan = self._queue.plan_in(seen.value(self._queue.definition))
        if plan is None or number >= plan.high:
            text = f"A flag names the partition {number}, which the queue does not have."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, clearing(row.key))

    def _judge_bell(self, row: Row) -> Iterator[Suspect]:
        if len(row.value) != _BELL_BYTES:
            text = f"The bell of the partitions is damaged: {row.value.hex()}."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, resized(row, _BELL_BYTES))


def stored_partitions(database: Database, queue: Partitioned) -> Iterator[int]:
    """The numbers behind S[28] that have keys, whatever the plan says. Reads: one key each."""
    keys = queue.keys.partitions
    start = keys.start
    while (first := run(database, partial(_first_key, start, keys.stop))) is not None:
        number = first[len(keys.start)]
        yield number
        if number == _NUMBER_MAX:
            return
        start = keys.start + bytes((number + 1,))


def strays(queue: Partitioned, number: int, tr: Transaction) -> Sequence[Suspect]:
    """A contradiction if keys lie behind that number, and the queue does not have the partition."""
    keys = queue.keys.under(number)
    stored, first = tr.snapshot.get(queue.definition), _first_key(keys.start, keys.stop, tr)
    plan = queue.plan_in(bytes(stored.value) if stored.present() else None)
    if first is None or (plan is not None and 0 < number < plan.high):
        return ()
    return (_beyond(queue.name, number, first),)


def _first_key(start: bytes, stop: bytes, tr: Transaction) -> bytes | None:
    rows = tr.snapshot.get_range(start, stop, limit=1).to_list()
    return bytes(rows[0].key) if rows else None


def _beyond(name: str, number: int, key: bytes) -> Suspect:
    if not number:
        return Suspect(Flaw.UNKNOWN, key, "No partition has a key of this shape.", FOREIGN)
    text = f"Keys lie in the partition {number}, which the queue does not have."
    return Suspect(Flaw.STRAY, key, text, command("repartition", name, str(number + 1)))


def clearing(key: bytes) -> Mend:
    return lambda tr: tr.clear(key)
