"""Partitioning: what a change of one partition does beside its own keys, in a queue with partitions.

It sets the flag of its partition if a task may be ready (partitions/flags.py).

While a repartition is under way, a task key that has moved is *held* in its new partition as long as it has
ready or taken tasks in the old one. A put reads their number serialisably. The change that removes the last
one reads the number, too, and then lets go of the key. Whichever of the two commits later has seen the other.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial

from fdbqueue.disciplines.key_counts import slug_of
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.partitions.flags import Flag, ring
from fdbqueue.partitions.plan import Plan, home_of
from fdbqueue.records.keys import Record
from fdbqueue.records.statistics import LIVE, unpacked
from fdbqueue.seam import Transaction, Value
from fdbqueue.task import TaskState
from fdbqueue.tasks.shape import Shape

_ORDERED = (TaskState.READY, TaskState.TAKEN)
"""The states in which the order of a task key depends on a task."""


class Partitioning:
    def __init__(
        self, tr: Transaction, shape: Shape, plan: Plan, let_go: Callable[[int, bytes], None]
    ) -> None:
        """`let_go`: lets go of a task key in a partition of that number."""
        self._tr = tr
        self._shape = shape
        self._plan = plan
        self._let_go_in = let_go
        self._here = shape.keys.partition
        self._keyed = shape.discipline if isinstance(shape.discipline, Keyed) else None
        self._flag = Flag(tr, shape.shared, shape.keys.partition)
        self._may_be_ready = False
        self._ordered: Counter[bytes] = Counter()
        """Changes of the number of ready and taken tasks, by task key, while keys move."""

    def ask_flag(self) -> None:
        """Ask early for the flag."""
        self._flag.ask()

    def ask_put(self, keys: Collection[bytes]) -> Callable[[Sequence[Record]], None]:
        """`ask_put` of the discipline."""
        self.ask_flag()
        discipline = self._shape.discipline
        if self._keyed is None or not self._plan.before:
            return discipline.ask_put(self._tr, keys)
        return self._keyed.ask_put(self._tr, keys, self._ask_behind(keys))

    def shift(self, olds: Sequence[Record], news: Sequence[Record]) -> None:
        """`shift` of the discipline."""
        self.note(olds, news)
        if self._keyed is None or not self._plan.before:
            self._shape.discipline.shift(self._tr, olds, news)
            return
        enter = {record.key for record in news if record.state == TaskState.READY}
        self._keyed.shift(self._tr, olds, news, self._ask_behind(enter))

    def note(self, olds: Sequence[Record], news: Sequence[Record]) -> None:
        """Note a change, for `finish`."""
        if any(record.state == TaskState.READY for record in news) or (
            self._shape.may_free_at_end and any(record.state == TaskState.TAKEN for record in olds)
        ):
            self._may_be_ready = True
        if self._plan.before and self._keyed is not None:
            self._ordered.update(record.key for record in news if record.state in _ORDERED)
            self._ordered.subtract(record.key for record in olds if record.state in _ORDERED)

    def place_of(self, record: Record, now_us: int) -> int:
        """The partition that a task joins now. An expired one stays for its end."""
        count = self._plan.count
        if record.expires_us <= now_us:
            return self._here
        if self._keyed is not None:
            return home_of(record.key, count)
        return self._here if self._here < count else home_of(record.id, count)

    def finish(self) -> None:
        """Set the flag if a task may be ready, and let go of task keys that have left this partition."""
        if self._may_be_ready:
            self._flag.set()
        for key, change in self._ordered.items():
            if change < 0:
                self._let_go(key)
        self._may_be_ready = False
        self._ordered.clear()

    def expect_ready(self) -> None:
        """A task may be ready, by a change that `note` has not met."""
        self._may_be_ready = True

    def ring(self) -> None:
        """Wake the first take that waits for all partitions."""
        ring(self._tr, self._shape.shared)

    def _ask_behind(self, keys: Collection[bytes]) -> dict[bytes, Callable[[], bool]]:
        """Ask which of `keys` still have ready or taken tasks in the partitions that they are leaving."""
        asked: dict[bytes, Callable[[], bool]] = {}
        for key in keys:
            old = home_of(key, self._plan.before)
            # Elsewhere a task becomes ready only on the way to its end, in this transaction.
            if old != self._here and home_of(key, self._plan.count) == self._here:
                asked[key] = partial(_is_leaving, self._tr.get(self._counts_key(old, key)))
        return asked

    def _let_go(self, key: bytes) -> None:
        home = home_of(key, self._plan.count)
        if home == self._here or any_ordered(self._tr.get(self._counts_key(self._here, key)).value):
            return
        self._let_go_in(home, key)

    def _counts_key(self, partition: int, key: bytes) -> bytes:
        discipline = self._shape.partition(partition).discipline
        assert isinstance(discipline, Keyed)
        return discipline.counts.counts_key(slug_of(key))


def _is_leaving(counts: Value) -> bool:
    return any_ordered(counts.value)


def any_ordered(counts: bytes | None) -> bool:
    """True if a task key with these counters has ready or taken tasks."""
    numbers = unpacked(LIVE, counts)
    return numbers["ready"] > 0 or numbers["taken"] > 0
