"""Parted: the change of one partition, in a queue that has several.

It sets the flag of its partition if a task may be ready (core/partitions.py). Tasks that become ready join
the partition that their task key has now.

While a repartition is under way, a task key that has moved is *held* in its new partition as long as it has
ready or taken tasks in the old one. A put reads their number serialisably. The change that removes the last
one reads the number, too, and then lets go of the key. Whichever of the two commits later has seen the other.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.partitions import Flag, Plan, home_of, ring
from fdbqueue.core.seam import Transaction, Value
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.change import Change, ask_stored
from fdbqueue.tasks.failures import ask_entries, keep, moved_bytes
from fdbqueue.tasks.feature import met_by
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import LIVE_NAMES, Record, TaskKeys, partition_of, unpacked

_ORDERED = (TaskState.READY, TaskState.TAKEN)
"""The states in which the order of a task key depends on a task."""


class Parted(Change):
    plan: Plan

    def __init__(self, plan: Plan, tr: Transaction, shape: Shape, *rest: Any) -> None:
        super().__init__(tr, shape, *rest)
        self.plan = plan
        self._here = shape.keys.partition
        self._keyed = shape.discipline if isinstance(shape.discipline, Keyed) else None
        self._flag = Flag(tr, shape.shared, self._here)
        self._may_be_ready = False
        self._ordered: Counter[bytes] = Counter()
        """Changes of the number of ready and taken tasks, by task key, while keys move."""
        self._others: dict[int, Change] = {}
        self._sent: dict[bytes, TaskKeys] = {}
        """The keys of the partitions that tasks have joined, by their ids."""
        self._shift = self._shift_and_note
        self.puts_read = True

    def read(self, ids: Iterable[bytes]) -> list[Record | None]:
        self._flag.ask()
        return super().read(ids)

    def ask_create(self, keys: Collection[bytes]) -> None:
        self._flag.ask()
        if self._keyed is None or not self.plan.before:
            super().ask_create(keys)
        else:
            self._file = self._keyed.ask_put(self.tr, keys, self._ask_behind(keys))

    def restore(self, records: Sequence[Record]) -> None:
        super().restore(records)
        self._note((), records)

    def join(self, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:
        ways = [(old, new, self._place_of(new)) for old, new in zip(olds, news, strict=True)]
        # First: a task that stays only to expire would hold its task key in the other partition.
        gone = [self._send(old, new, place) for old, new, place in ways if place != self._here]
        stay = [(old, new) for old, new, place in ways if place == self._here]
        stored = [*gone, *self.move([old for old, _ in stay], [new for _, new in stay])]
        by_id = {record.id: record for record in stored}
        return [by_id[new.id] for new in news]

    def joinable(self, records: Sequence[Record], besides: int = 0) -> Sequence[Record]:
        """A join writes payload and failures again: limits.MOVED_BYTES_MAX bytes, or one larger task."""
        size_bytes = besides
        for at, record in enumerate(records):
            if self._place_of(record) != self._here:
                size_bytes += moved_bytes(record)
                if size_bytes > limits.MOVED_BYTES_MAX:
                    return records[: at if besides else max(at, 1)]
        return records

    def ring(self) -> None:
        ring(self.tr, self.shape.shared)

    def expect_ready(self) -> None:
        self._may_be_ready = True

    def finish(self) -> None:
        """Set the flag if a task may be ready, and let go of task keys that have left this partition, too."""
        if self._more_tasks < 0:
            self.shape.tell_of_room(self.tr)
        super().finish()
        if self._may_be_ready:
            self._flag.set()
        self._may_be_ready = False
        self._let_keys_go()
        for other in self._others.values():
            other.finish()

    def _shift_and_note(self, tr: Transaction, olds: Sequence[Record], news: Sequence[Record]) -> None:
        self._note(olds, news)
        if self._keyed is None or not self.plan.before:
            self.shape.discipline.shift(tr, olds, news)
            return
        enter = {record.key for record in news if record.state == TaskState.READY}
        self._keyed.shift(tr, olds, news, self._ask_behind(enter))

    def _note(self, olds: Sequence[Record], news: Sequence[Record]) -> None:
        if any(record.state == TaskState.READY for record in news) or (
            self.shape.may_free_at_end and any(record.state == TaskState.TAKEN for record in olds)
        ):
            self._may_be_ready = True
        if self.plan.before and self._keyed is not None:
            self._ordered.update(record.key for record in news if record.state in _ORDERED)
            self._ordered.subtract(record.key for record in olds if record.state in _ORDERED)

    def _place_of(self, record: Record) -> int:
        """The partition that a task joins now. An expired one stays for its end."""
        count = self.plan.count
        if record.expires_us <= self.now_us:
            return self._here
        if self._keyed is not None:
            return home_of(record.key, count)
        return self._here if self._here < count else home_of(record.id, count)

    def _send(self, old: Record, new: Record, place: int) -> Record:
        """Move a task, with its payload, steps and failures, to another partition. Return it as stored."""
        self.moved_bytes += moved_bytes(old)
        payload, entries = (
            ask_stored(self.tr, self.shape.keys, old),
            ask_entries(self.tr, self.shape.keys, old.id),
        )
        features = met_by([old, new], self.shape.moving)
        carried = [feature.carried(self.site, old) for feature in features]
        there, failed = self._elsewhere(place), entries()
        payload(there.shape.keys)
        for carry in carried:
            carry(there.shape.keys)
        for feature in features:
            [new] = feature.moved(self.site, [old], [new])
        self.forget([old])
        keep(self.tr, there.shape.keys, new.id, failed)
        there.restore([new])
        self._sent[new.id] = there.shape.keys
        moved = self.shape.shared.moved(new.id)
        if place == partition_of(new.id):
            self.tr.clear(moved)
        else:
            self.tr.set(moved, bytes((place,)))
        return new

    def _elsewhere(self, partition: int) -> Change:
        """The change of another partition in this transaction; `finish` finishes it, too."""
        found = self._others.get(partition)
        if found is None:
            shape = self.shape.partition(partition)
            found = self._others[partition] = Parted(self.plan, self.tr, shape, self.now_us, self._deliver)
        return found

    def _keys_of(self, record: Record) -> TaskKeys:
        return self._sent.get(record.id, self.shape.keys)

    def _keys_joined(self, record: Record) -> TaskKeys:
        return self.shape.partition(self._place_of(record)).keys

    def _ask_behind(self, keys: Collection[bytes]) -> dict[bytes, Callable[[], bool]]:
        """Ask which of `keys` still have ready or taken tasks in the partitions that they are leaving."""
        asked: dict[bytes, Callable[[], bool]] = {}
        for key in keys:
            old = home_of(key, self.plan.before)
            # Elsewhere a task becomes ready only on the way to its end, in this transaction.
            if old != self._here and home_of(key, self.plan.count) == self._here:
                asked[key] = partial(_is_leaving, self.tr.get(self._counts_key(old, key)))
        return asked

    def _let_keys_go(self) -> None:
        for key, change in self._ordered.items():
            if change < 0:
                self._let_go(key)
        self._ordered.clear()

    def _let_go(self, key: bytes) -> None:
        home = home_of(key, self.plan.count)
        if home != self._here and not any_ordered(self.tr.get(self._counts_key(self._here, key)).value):
            self._elsewhere(home).let_go(key)

    def _counts_key(self, partition: int, key: bytes) -> bytes:
        discipline = self.shape.partition(partition).discipline
        assert isinstance(discipline, Keyed)
        return discipline.counts.counts_key(slug_of(key))


def _is_leaving(counts: Value) -> bool:
    return any_ordered(counts.value)


def any_ordered(counts: bytes | None) -> bool:
    """True if a task key with these counters has ready or taken tasks."""
    numbers = unpacked(LIVE_NAMES, counts)
    return numbers["ready"] > 0 or numbers["taken"] > 0
