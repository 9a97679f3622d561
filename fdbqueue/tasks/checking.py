"""The checks of features: what `verify` asks of the keys that only some tasks, or some queues, have."""

from collections.abc import Callable, Iterator, Sequence

from fdbqueue.core.checking import Check, Excuse, Finder, OfColumn, Row, Under
from fdbqueue.core.counting import Count
from fdbqueue.tasks.feature import all_features
from fdbqueue.tasks.records.keys import Record, partition_of
from fdbqueue.tasks.shape import Shape


class OfShape(Finder):
    """Tells the contradictions of one queue of tasks, or of one partition."""

    def __init__(self, shape: Shape, mending: str) -> None:
        super().__init__(mending)
        self._shape = shape
        self._keys = shape.keys
        self._shared = shape.shared


class FeatureChecks(OfShape):
    """The checks of a feature in one queue, or in one partition."""

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


def checks_of(shape: Shape, mending: str) -> list[FeatureChecks]:
    """Those of all features: a key of a feature that the queue does not have is a contradiction, too."""
    return [feature.checks(shape, mending) for feature in all_features() if feature.checks is not None]
