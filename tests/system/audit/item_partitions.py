"""The rules of a named queue of items: those of each partition, and those of the line that all share.

A queue without partitions is its own partition 0. The rules live as long as the queue: a change of its plan
leaves each item in its place.
"""

from collections.abc import Iterator
from dataclasses import replace

from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import Plan
from fdbqueue.operate.verify.partitions import Partitioned, RecipeChecks
from fdbqueue.operate.verify.verify import Subject
from tests.system.audit.agreement import Agreement
from tests.system.audit.commit import Step, Values
from tests.system.audit.counters import Counters
from tests.system.audit.ends import Ended
from tests.system.audit.items import Items
from tests.system.audit.line import LineStep, Requests, in_partition
from tests.system.audit.liveness import Liveness
from tests.system.audit.losses import lost_items
from tests.system.audit.mirror import Mirror
from tests.system.audit.unseen import changed_unseen, changed_unseen_in_line


class _Part:
    """One partition, as of the last commit."""

    def __init__(self, subject: Subject, liveness: Liveness, wide: Requests) -> None:
        assert isinstance(subject.checks, RecipeChecks)
        self.items = Items(subject.checks.recipe, liveness, wide)
        self.counters = Counters(subject.counts)
        self.follow(subject)

    def follow(self, subject: Subject) -> None:
        """Go by another plan."""
        assert isinstance(subject.checks, RecipeChecks)
        self._checks = subject.checks
        self._agreement = Agreement(subject.checks, subject.keys.start)

    def judge(self, step: Step, mirror: Mirror, of_wide: LineStep) -> Iterator[str]:
        yield from self._agreement.judge(step, mirror)
        yield from self.counters.judge(step, mirror)
        yield from changed_unseen(self._checks, step)
        yield from self.items.judge(step, mirror, of_wide)

    def holds_items(self, mirror: Mirror) -> bool:
        under = self._checks.recipe.keys.items
        return next(mirror.keys_in(under.start, under.stop), None) is not None


class PartitionedItems:
    ended = Ended()

    def __init__(self, subject: Subject, queue: Partitioned, liveness: Liveness) -> None:
        self.prefix = subject.keys.start
        self._name = subject.name
        self._keys = queue.keys
        self._line = LineKeys(queue.keys.line)
        self._liveness = liveness
        self._wide = Requests(self._line, liveness)
        self._parts: dict[int, _Part] = {}
        self._high, self._has_flags = 1, False

    def follow(self, subject: Subject, plan: Plan | None) -> None:
        """Go by this plan from now on. The present commit has stored it."""
        self._high, self._has_flags = (1, False) if plan is None else (plan.high, True)
        assert subject.partition is not None
        for number in range(self._high):
            part = subject.partition(number)
            if number in self._parts:
                self._parts[number].follow(part)
            else:
                self._parts[number] = _Part(part, self._liveness, self._wide)

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        for text in self._of_all(step, mirror):
            yield f"{self._name}: {text}"

    def _of_all(self, step: Step, mirror: Mirror) -> Iterator[str]:
        errors: list[str] = []
        wide = self._wide.follow(step, mirror, errors)
        yield from errors
        yield from changed_unseen_in_line(self._line, step)
        yield from lost_items(step)
        for number, few in self._by_partition(step).items():
            if number in self._parts:
                for text in self._parts[number].judge(few, mirror, in_partition(wide, number)):
                    yield f"partition {number}: {text}"
        yield from self.beyond_the_plan(step)
        yield from self.unflagged_items(mirror)

    def _by_partition(self, step: Step) -> dict[int, Step]:
        """The part of the step that belongs to each partition, which may have a part in the line of all."""
        changes: dict[int, dict[bytes, Values]] = {number: {} for number in self._parts}
        for key, values in step.changes.items():
            changes.setdefault(self._partition_of(key), {})[key] = values
        return {
            number: replace(
                step, changes=few, unseen=[key for key in step.unseen if self._partition_of(key) == number]
            )
            for number, few in changes.items()
        }

    def _partition_of(self, key: bytes) -> int:
        apart = self._keys.partitions
        return key[len(apart.start)] if apart.start < key < apart.stop else 0

    def beyond_the_plan(self, step: Step) -> Iterator[str]:
        """A partition beyond those of the plan has no key."""
        for key, values in step.changes.items():
            number = self._partition_of(key)
            if values.after is not None and number >= self._high:
                yield f"a key lies in the partition {number} of {self._high} (key {key.hex()})"

    def unflagged_items(self, mirror: Mirror) -> Iterator[str]:
        """A partition with an item has a flag."""
        for number, part in self._parts.items() if self._has_flags else ():
            if mirror.value(self._keys.flag(number)) is None and part.holds_items(mirror):
                yield f"the partition {number} has items, and no flag"
