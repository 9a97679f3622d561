"""Counters: after each commit each counter equals the number of the keys that it counts (I7)."""

from collections import Counter
from collections.abc import Iterable, Iterator

from fdbqueue.core.rows import Count, Counted, Tally
from fdbqueue.core.unreadable import count_in
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.tasks.stored.records import LIVE_NAMES, LIVE_OF, TaskKeys, unpacked
from tests.system.audit.commit import Step
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import TaskStep


class Counters:
    """The counters of one queue, and the numbers of the keys that they count as of the last commit."""

    def __init__(self, counts: Iterable[Count]) -> None:
        self._counts = [(count, next(iter(count.tally.ranges.items()))) for count in counts]
        self._numbers = [0] * len(self._counts)

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        """Compare the counters that the commit has changed, and those with keys that it has changed."""
        come = [key for key, (before, _) in step.changes.items() if before is None]
        gone = [key for key, (_, after) in step.changes.items() if after is None]
        for at, (count, (name, under)) in enumerate(self._counts):
            grown = _number(count.tally, under, come) - _number(count.tally, under, gone)
            self._numbers[at] += grown
            if grown or count.tally.counter in step.changes:
                values = {count.tally.counter: mirror.value(count.tally.counter)}
                suspect = count.compare(Counted({name: self._numbers[at]}, values, None), "")
                if suspect is not None:
                    yield suspect.text


def counted(counts: Iterable[Count], mirror: Mirror) -> Iterator[str]:
    """Compare counters with all that they count."""
    for count in counts:
        [(name, under)] = count.tally.ranges.items()
        number = sum(count.tally.counts(key) for key in mirror.keys_in(under.start, under.stop))
        values = {count.tally.counter: mirror.value(count.tally.counter)}
        suspect = count.compare(Counted({name: number}, values, None), "")
        if suspect is not None:
            yield suspect.text


def _number(tally: Tally, under: slice, keys: Iterable[bytes]) -> int:
    return sum(tally.counts(key) for key in keys if under.start <= key < under.stop)


class ClassCounters:
    """The counters of the classes of failure."""

    def __init__(self, keys: TaskKeys) -> None:
        self._keys = keys

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        keys = self._keys
        start, stop = keys.classed.start, keys.class_counts.stop
        for error in {self._class_of(key) for key in step.changes if start <= key < stop}:
            under = keys.classed_under(error)
            found = len(list(mirror.keys_in(under.start, under.stop)))
            counted = count_in(mirror.value(keys.class_count(error)))
            if found != counted:
                yield f"{found} buried tasks have the class {error!r}, and {counted} are counted"

    def _class_of(self, key: bytes) -> str:
        _, rest = self._keys.parts_of(key)
        return self._keys.class_at(rest)


def key_counters(keyed: Keyed, step: TaskStep, mirror: Mirror) -> Iterator[str]:
    """Compare the counters of the task keys of the tasks that the commit has changed."""
    for key in {record.key for record in step.records()}:
        found = Counter(LIVE_OF[record.state] for record in step.after.values() if record.key == key)
        stored = unpacked(LIVE_NAMES, mirror.value(keyed.counts.counts_key(slug_of(key))))
        if +Counter(stored) != found:
            yield f"the task key {key!r} counts {stored}, and has {dict(found)}"
