"""The keys of jobs: the only file that builds or parses them (root_keys.py knows their shapes).

Keys are below R["beanstalkd"]. Values are tuples. The comment of a column has its parts and its value, and
behind the semicolon its readers. `number` is the id of a job, as clients know it; `task` is that of its task.

A number is never used twice. The two rows of a job are written with its task, and cleared with it. A task
that a program has put into a tube gets its rows when a client first meets it. A program may also end a job:
then its rows stay until `clear_stale` finds them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fdb import tuple as layer

from fdbqueue.core.columns import UNPACKING, Table
from fdbqueue.core.root_keys import BEANSTALKD, RootKeys
from fdbqueue.core.seam import ReadTransaction, Transaction

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
    """The time of its burial; a program may have ended that since."""


class JobKeys:
    """The keys of one root."""

    def __init__(self, root: RootKeys) -> None:
        prefix = root.prefix + layer.pack((BEANSTALKD,))
        self._next, self._job, self._number = NEXT.start(prefix), JOB.key(prefix), NUMBER.key(prefix)
        self._jobs, self._number_in = JOB.all(prefix), JOB.last(prefix)
        self._burial, self.burials = BURIAL.key(prefix), BURIALS.under(prefix)
        self.buried_in = BURIAL.last(prefix)

    def new_numbers(self, tr: Transaction, count: int) -> int:
        """Give `count` numbers to this process. Return the first."""
        first = _number_of(tr.get(self._next).value) or 1
        tr.set(self._next, layer.pack((first + count,)))
        return first

    def add(self, tr: Transaction, number: int, row: Row) -> None:
        """Write the rows of a new job."""
        tr.set(self._job(number), layer.pack(row))
        tr.set(self._number(row.task), layer.pack((number,)))

    def change(self, tr: Transaction, number: int, old: Row, **changes: Any) -> None:
        """Write the row of a job. Its burial is over unless the changes have the time of another one."""
        row = old._replace(**{"buried_us": 0, **changes})
        self._end_burial(tr, old)
        if row.buried_us:
            tr.set(self._burial(row.tube, row.buried_us, row.task), b"")
        tr.set(self._job(number), layer.pack(row))

    def clear(self, tr: Transaction, number: int, row: Row) -> None:
        """Clear the rows of a job."""
        self._end_burial(tr, row)
        tr.clear(self._job(number))
        tr.clear(self._number(row.task))

    def _end_burial(self, tr: Transaction, row: Row) -> None:
        if row.buried_us:
            tr.clear(self._burial(row.tube, row.buried_us, row.task))

    def rows(self, tr: ReadTransaction, numbers: Iterable[int]) -> list[Row | None]:
        """The rows of jobs, read together."""
        asked = [tr.get(self._job(number)) for number in numbers]
        return [_row_of(value.value) for value in asked]

    def numbers(self, tr: ReadTransaction, tasks: Iterable[bytes]) -> list[int | None]:
        """The numbers of tasks, read together."""
        asked = [tr.get(self._number(task)) for task in tasks]
        return [_number_of(value.value) for value in asked]

    def clear_stale(
        self, tr: Transaction, after: int, count: int, has_task: Callable[[Row], bool]
    ) -> Sequence[int]:
        """Clear the rows of jobs without a task, among the `count` behind the number `after`. Return the
        numbers of those that were looked at.

        Reads: the rows by snapshot; those that it clears serialisably, as `has_task` reads their tasks.
        """
        begin = self._job(after) + b"\0"
        found = tr.snapshot.get_range(begin, self._jobs.stop, limit=count).to_list()
        numbers = [self._number_in(entry.key) for entry in found]
        for number, entry in zip(numbers, found, strict=True):
            row = _row_of(entry.value)
            if row is None or not has_task(row):
                tr.add_read_conflict_key(entry.key)
                tr.clear(entry.key)
                if row is not None:
                    self.clear(tr, number, row)
        return numbers


def _row_of(value: bytes | None) -> Row | None:
    try:
        return None if value is None else Row(*layer.unpack(value)[: len(Row._fields)])
    except (*UNPACKING, TypeError):
        return None


def _number_of(value: bytes | None) -> int | None:
    try:
        return None if value is None else int(layer.unpack(value)[0])
    except (*UNPACKING, TypeError):
        return None
