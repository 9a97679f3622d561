"""The checks of the keys that the partitions of any queue share: flags, the bell and the line of all.

They also find the partitions that have keys, whatever the plan says.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue.core.aside import Aside
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DefinitionUnreadable
from fdbqueue.core.line.keys import LineKeys
from fdbqueue.core.partitions.current import plan_of
from fdbqueue.core.partitions.keys import FLAG, WIDE_LINE, SharedKeys, ring
from fdbqueue.core.partitions.plan import Plan
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.checks import Check, Checks, Row, Suspect, resized, under
from fdbqueue.operate.verify.line import LineChecks
from fdbqueue.operate.verify.slices import first_key
from fdbqueue.operate.verify.values import FOREIGN, Cures, Flaw, command

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


class SharedChecks(Checks):
    def __init__(self, queue: Partitioned, prefix: bytes, cures: Cures) -> None:
        """`prefix` is that of the queue."""
        super().__init__(cures.mending)
        self._queue = queue
        self._line = LineChecks(LineKeys(queue.keys.line), Aside(prefix, queue.keys.line), cures)

    def is_key(self, key: bytes) -> bool:
        return self._queue.keys.column_of(key) is not None

    def check(self, row: Row) -> Check:
        column = self._queue.keys.column_of(row.key)
        if column == WIDE_LINE:
            return self._line.check(row)
        return self._flag(row) if column == FLAG else self._bell(row)

    def _flag(self, row: Row) -> Check:
        number, definition = self._queue.keys.flagged(row.key), self._queue.definition
        plan = self._queue.plan_in((yield [definition]).value(definition))
        if plan is None or number >= plan.high:
            text = f"A flag names the partition {number}, which the queue does not have."
            yield self.found(Flaw.STRAY, row, text)

    def _bell(self, row: Row) -> Check:
        if len(row.value) != _BELL_BYTES:
            text = f"The bell of the partitions is damaged: {row.value.hex()}."
            yield self.found(Flaw.VALUE, row, text, resized(row, _BELL_BYTES))


def flagged(row: Row, rows: slice, keys: SharedKeys, partition: int, told: str, mending: str) -> Check:
    """The first of the rows that a take may find needs the flag of its partition."""
    flag, first = keys.flag(partition), under(rows, limit=1)
    seen = yield [flag, first]
    if seen.rows(first)[0].key == row.key and not seen.has(flag):
        text = f"The partition {partition} has {told} and no flag: few takes look there."
        yield Suspect(Flaw.STATE, flag, text, mending, partial(raise_flag, keys, partition))


def raise_flag(keys: SharedKeys, partition: int, tr: Transaction) -> None:
    tr.set(keys.flag(partition), b"")
    ring(tr, keys)


def stored_partitions(database: Database, queue: Partitioned) -> Iterator[int]:
    """The numbers behind S[28] that have keys, whatever the plan says. Reads: one key each."""
    keys = queue.keys.partitions
    start = keys.start
    while (first := run(database, partial(first_key, start, keys.stop))) is not None:
        number = first[len(keys.start)]
        yield number
        if number == _NUMBER_MAX:
            return
        start = keys.start + bytes((number + 1,))


def strays(queue: Partitioned, number: int, tr: Transaction) -> Sequence[Suspect]:
    """A contradiction if keys lie behind that number, and the queue does not have the partition."""
    keys = queue.keys.under(number)
    stored, first = tr.snapshot.get(queue.definition), first_key(keys.start, keys.stop, tr)
    plan = queue.plan_in(bytes(stored.value) if stored.present() else None)
    if first is None or (plan is not None and 0 < number < plan.high):
        return ()
    if not number:
        return [Suspect(Flaw.UNKNOWN, first, "No partition has a key of this shape.", FOREIGN)]
    text = f"Keys lie in the partition {number}, which the queue does not have."
    return [Suspect(Flaw.STRAY, first, text, command("repartition", queue.name, str(number + 1)))]
