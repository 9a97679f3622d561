"""Rows: the stored keys of a feature, as verify, exports and imports meet them.

Each of these asks the table of features (feature.py), and names none of them. By default a feature has no
keys of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fdbqueue.core.columns import Column
from fdbqueue.core.rows import (
    Check,
    ContentLine,
    Count,
    Excuse,
    Finder,
    NotOurs,
    OfColumn,
    Row,
    Section,
    Under,
)
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.task import Reason
from fdbqueue.tasks.feature import OF_TASKS, all_features, feature_of_tasks
from fdbqueue.tasks.records.keys import Record, partition_of
from fdbqueue.tasks.records.statistics import Statistics
from fdbqueue.tasks.shape import Shape


class OfShape(Finder):
    """Tells the contradictions of one queue of tasks, or of one partition."""

    def __init__(self, shape: Shape, mending: str) -> None:
        super().__init__(mending)
        self._shape = shape
        self._keys = shape.keys
        self._shared = shape.shared


class Told(NamedTuple):
    """What a feature tells of a task that is not running."""

    fields: Mapping[str, Any] = {}
    """Fields of the explanation."""
    reasons: Sequence[Reason] = ()


class FeatureRows(OfShape):
    """The rows of a feature in one queue, or in one partition."""

    name = ""
    """That of rows beside a task, in an export."""
    copied: Sequence[Column[*tuple[Any, ...]]] = ()
    """Columns of each partition that an export copies as they are."""
    lines: Sequence[type[ContentLine]] = ()
    """The lines that it adds to an export; `place` takes them back."""

    # Verify.

    def columns(self) -> dict[int, OfColumn]:
        """The checks of its columns in each partition."""
        return {}

    def shared(self) -> dict[int, OfColumn]:
        """The checks of its columns among the keys that all partitions share."""
        return {}

    def task(self, row: Row, record: Record) -> Check:
        """The check of a task with extra parts."""
        return self.nothing(row, record)

    def weight(self, column: int, row: Row, rest: bytes) -> int:  # noqa: ARG002
        """The bytes of the keys that a row of its columns names, as far as they may be many."""
        return 0

    def weight_of_task(self, record: Record) -> int:  # noqa: ARG002
        """The bytes of the keys that a task with extra parts names."""
        return 0

    def note(self, column: int, row: Row, rest: bytes) -> None:
        """Count a row of its columns, which was judged."""

    def counts(self) -> Iterator[Count]:
        """Its counters in a partition, known after the scan of that."""
        yield from ()

    def shared_counts(self) -> Iterator[Count]:
        """Its counters of the queue, known after the scan of all partitions."""
        yield from ()

    # Looks.

    def ask_statistics(self, tr: ReadTransaction) -> Callable[[], Statistics]:  # noqa: ARG002
        """Ask for its numbers in a partition, which stand among those of the queue."""
        return dict

    def ask_told(self, tr: ReadTransaction, record: Record, now_us: int) -> Callable[[], Told]:  # noqa: ARG002
        """Ask why it keeps a task from running. Round trips: 1."""
        return Told

    # Exports and imports.

    def part(self, number: int) -> Shape:
        """A partition that a line names. Raises: NotOurs if the queue has none of that number."""
        plan = self._shape.plan
        if not 0 <= number < (1 if plan is None else plan.high):
            raise NotOurs(f"partition {number}")
        return self._shape.partition(number)

    def shared_sections(self) -> Iterator[Section]:
        """Its sections of a queue. They come before the tasks: a task that ends meanwhile is in the file, or
        its end, and never both.
        """
        yield from ()

    def sections(self) -> Iterator[Section]:
        """Its sections of a partition, before the tasks."""
        yield from ()

    def beside(self, record: Record) -> slice | None:  # noqa: ARG002
        """The rows that a task has beside its record; None for a task without any."""
        return None

    def leaving(self, record: Record, leave_out: bool) -> Record:  # noqa: ARG002
        """A task as an export has it. Raises: ExportRefused, unless the caller wants to `leave_out` much."""
        return record

    def place(self, tr: Transaction, lines: Sequence[ContentLine]) -> None:
        """Write the contents of its lines, before the tasks of a batch. Raises: NotOurs."""

    def arriving(self, tr: Transaction, records: Sequence[Record], now_us: int) -> Sequence[Record]:  # noqa: ARG002
        """Tasks of an import, as they are to be stored."""
        return records


def task_in(shape: Shape, id_: bytes, partition: int | None = None) -> bytes:
    """The record of a task in a partition, by default in that of its put."""
    return shape.partition(partition_of(id_) if partition is None else partition).keys.task(id_)


def unless_elsewhere(shape: Shape, id_: bytes, is_it: Callable[[bytes], bool]) -> list[Excuse]:
    """It is no contradiction if the task has moved, and its record in another partition is the right one."""
    plan = shape.plan
    if plan is None or not plan.may_have_moved:
        return []

    def is_there(rows: Sequence[Row]) -> bool:
        return any(is_it(row.value) for row in rows)

    tasks = [task_in(shape, id_, number) for number in range(plan.high)]
    return [Excuse(Under(task, task + b"\x00"), is_there) for task in tasks]


def rows_in_use(shape: Shape) -> list[FeatureRows]:
    """Those of the features that the queue, or some of its tasks, may have."""
    features = (*map(feature_of_tasks, OF_TASKS), *shape.features)
    return [feature.rows(shape, "") for feature in features if feature.rows is not None]


def rows_of_features(shape: Shape, mending: str = "") -> list[FeatureRows]:
    """Those of all features: a key of a feature that the queue does not have is a contradiction, too."""
    return [feature.rows(shape, mending) for feature in all_features() if feature.rows is not None]
