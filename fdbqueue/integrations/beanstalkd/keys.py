"""The keys of jobs: the only file that builds or parses them (root_keys.py knows their shapes).

Keys are below R["beanstalkd"]. Values are tuples. The comment of a column has its parts and its value, and
behind the semicolon its readers. `number` is the id of a job, as clients know it; `task` is that of its task.

A number is never used twice. The two rows of a job are written with its task, and cleared with it. A task
that a program has put into a tube gets its rows when a client first meets it. A program may also end a job:
then its rows stay until `stale` finds them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fdb import tuple as layer

from fdbqueue.core.columns import UNPACKING, Table
from fdbqueue.core.root_keys import BEANSTALKD, RootKeys
from fdbqueue.core.seam import Transaction

B = Table()
NEXT = B.packed(0)  # (number,), the first one that no server has; servers, for a block of numbers
JOB = B.packed(1, int)  # number: see Row; every verb about a job that its connection does not hold
NUMBER = B.packed(2, bytes)  # task: (number,); reserve, peek, kick
BURIALS = B.packed(3, str)
BURIAL = B.packed(3, str, int, bytes)  # tube, time_us, task: empty; buried jobs in the order of their burials


class Row(NamedTuple):
    """What is stored of a job beside its task. Append fields with a default; never reorder."""

    tube: str
    task: bytes
    delay_s: int
    """That of its put, or of its last release."""
    releases: int = 0
    buries: int = 0
    kicks: int = 0
    buried_us: int = 0
    """The time of its burial, while it is buried."""


class JobKeys:
    """The keys of one root."""

    def __init__(self, root: RootKeys) -> None:
        prefix = root.prefix + layer.pack((BEANSTALKD,))
        self._next, self._job, self._number = NEXT.start(prefix), JOB.key(prefix), NUMBER.key(prefix)
        self._jobs, self._number_in = JOB.all(prefix), JOB.last(prefix)
        self._burial, self.burials, self.buried_in = (
            BURIAL.key(prefix),
            BURIALS.under(prefix),
            BURIAL.last(prefix),
        )

    def reserve_numbers(self, tr: Transaction, count: int) -> int:
        """Give `count` numbers to this process. Return the first."""
        first = _number_of(tr.get(self._next).value) or 1
        tr.set(self._next, layer.pack((first + count,)))
        return first

    def set(self, tr: Transaction, number: int, row: Row, old: Row | None = None) -> None:
        """Write the row of a job, in place of `old`."""
        if old is not None and old.buried_us:
            tr.clear(self._burial(old.tube, old.buried_us, old.task))
        if row.buried_us:
            tr.set(self._burial(row.tube, row.buried_us, row.task), b"")
        tr.set(self._job(number), layer.pack(row))

    def add(self, tr: Transaction, number: int, row: Row) -> None:
        """Write both rows of a job."""
        self.set(tr, number, row)
        tr.set(self._number(row.task), layer.pack((number,)))

    def clear(self, tr: Transaction, number: int, task: bytes, row: Row | None = None) -> None:
        """Clear the rows of a job. `row`: that of a job that may be buried."""
        if row is not None and row.buried_us:
            tr.clear(self._burial(row.tube, row.buried_us, task))
        tr.clear(self._job(number))
        tr.clear(self._number(task))

    def row(self, tr: Any, number: int) -> Row | None:
        """Reads: the row, serialisably unless `tr` is a snapshot."""
        return _row_of(tr.get(self._job(number)).value)

    def rows(self, tr: Any, numbers: Iterable[int]) -> list[Row | None]:
        """Several rows, read together."""
        asked = [tr.get(self._job(number)) for number in numbers]
        return [_row_of(value.value) for value in asked]

    def numbers(self, tr: Any, tasks: Iterable[bytes]) -> list[int | None]:
        """The numbers of these tasks, read together."""
        asked = [tr.get(self._number(task)) for task in tasks]
        return [_number_of(value.value) for value in asked]

    def stale(
        self, tr: Transaction, after: int, count: int, is_there: Callable[[Row], bool]
    ) -> Sequence[int]:
        """Clear the rows of jobs without a task, among the `count` behind the number `after`. Return the
        numbers of those that were looked at.

        Reads: the rows by snapshot; those that it clears serialisably, as `is_there` reads their tasks.
        """
        begin = self._job(after) + b"\0"
        found = tr.snapshot.get_range(begin, self._jobs.stop, limit=count).to_list()
        for entry in found:
            row = _row_of(entry.value)
            if row is None or not is_there(row):
                tr.add_read_conflict_key(entry.key)
                tr.clear(entry.key)
                if row is not None:
                    self.clear(tr, self._number_in(entry.key), row.task, row)
        return [self._number_in(entry.key) for entry in found]


def _row_of(value: bytes | None) -> Row | None:
    try:
        return None if value is None else Row(*layer.unpack(value)[:7])
    except (*UNPACKING, TypeError):
        return None


def _number_of(value: bytes | None) -> int | None:
    try:
        return None if value is None else int(layer.unpack(value)[0])
    except (*UNPACKING, TypeError):
        return None
