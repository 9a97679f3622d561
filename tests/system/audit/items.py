"""The legal steps of items and of elements (docs/tests.md).

A queue of items without partitions is its own partition 0. The rules live as long as the queue: a change of
its plan leaves each item in its place.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.core.partitions import Plan
from fdbqueue.operate.verify.partitions import Partitioned, RecipeChecks
from fdbqueue.operate.verify.verify import Subject
from fdbqueue.queues.elements.store import ELEMENT, LOCK, PAYLOAD, ElementKeys, Lock
from fdbqueue.queues.recipe.items import ITEM, Recipe, floor_of
from fdbqueue.testing.trace import Commit
from tests.system.audit.agreement import (
    Agreement,
    Counters,
    Ended,
    changed_unseen,
    changed_unseen_in_line,
    lost_items,
)
from tests.system.audit.line import LineStep, Liveness, Requests, in_partition, joined
from tests.system.audit.model import Mirror, Step, Values


class HandedLocks:
    def __init__(self) -> None:
        self._machines: defaultdict[bytes, set[str]] = defaultdict(set)

    def add(self, token: bytes, machine: str) -> None:
        """`machine` gets the lock with this token."""
        self._machines[token].add(machine)

    def has(self, token: bytes, machine: str) -> bool:
        return machine in self._machines.get(token, ())


@dataclass
class _Moves:
    """The items that have come into the queue, and those that were taken out of it, with their values."""

    come: dict[bytes, bytes] = field(default_factory=dict)
    taken: dict[bytes, bytes] = field(default_factory=dict)


class Items:
    """The items of one queue, or of one partition, as of the last commit."""

    def __init__(self, recipe: Recipe, liveness: Liveness, wide: Requests | None = None) -> None:
        """`wide`: the requests that wait for the items of all partitions."""
        self._keys = recipe.keys
        self._requests = Requests(LineKeys(recipe.keys.line), liveness)
        self._overtake = liveness.overtake
        self._lines = [self._requests] if wide is None else [self._requests, wide]
        self._there: dict[bytes, int] = {}
        """The version in which each item of the queue came."""
        self._laid: dict[bytes, tuple[int, bytes]] = {}
        """The items that lie ready for requests, each since a version, and with its value."""
        self._gone: set[bytes] = set()

    def judge(self, step: Step, mirror: Mirror, of_wide: LineStep | None = None) -> Iterator[str]:
        """`of_wide`: the part that items of this partition have in the step of the line of all."""
        errors: list[str] = []
        line = self._requests.follow(step, mirror, errors)
        if of_wide is not None:
            line = joined(line, of_wide)
        moves = self._moved(step, errors)
        yield from errors
        yield from self._came(step.commit, moves)
        yield from self._laid_ready(step.commit, moves, line)
        yield from self.overtaken(step.commit, moves, line)
        yield from self.below_the_floor(mirror)

    def _moved(self, step: Step, errors: list[str]) -> _Moves:
        moves = _Moves()
        for key, (before, after) in step.changes.items():
            column, suffix = self._keys.parts_of(key)
            if column != ITEM:
                continue
            if before is None and after is not None:
                moves.come[suffix] = after
            elif before is not None and after is not None:
                errors.append(f"the item {suffix.hex()} has changed")
            elif before is not None:
                self._there.pop(suffix, None)
                if step.is_cleared(key):
                    self._gone.add(suffix)
                else:
                    moves.taken[suffix] = before
        return moves

    def _came(self, commit: Commit, moves: _Moves) -> Iterator[str]:
        for suffix, value in moves.come.items():
            if suffix in self._gone:
                yield f"the item {suffix.hex()} has left the queue, and is there again"
            elif suffix in self._laid:
                if value != self._laid[suffix][1]:
                    yield f"the item {suffix.hex()} has come back with another value"
            else:
                yield from self.enqueued_behind(commit, suffix)
        self._there |= dict.fromkeys(moves.come, commit.version)

    def enqueued_behind(self, commit: Commit, suffix: bytes) -> Iterator[str]:
        """An enqueued item stands behind the items that its transaction has seen. One that is put back before
        the first one has a longer suffix.
        """
        if len(layer.unpack(suffix)[1]) != limits.RANDOM_SUFFIX_BYTES:
            return
        seen = [other for other, since in self._there.items() if since <= (commit.read_version or 0)]
        seen += [other for other, (since, _) in self._laid.items() if since <= (commit.read_version or 0)]
        last = max(seen, default=b"")
        if suffix <= last:
            yield f"the item {suffix.hex()} is enqueued before the item {last.hex()}"

    def _laid_ready(self, commit: Commit, moves: _Moves, line: LineStep) -> Iterator[str]:
        collected = [item.id for handed in (*line.collected, *line.cleared) for item in handed.items]
        for suffix in collected:
            self._laid.pop(suffix, None)
        for handed in line.laid:
            for item in handed.items:
                if item.id in self._there or item.id in self._laid:
                    yield f"the item {item.id.hex()} is in two places"
                if moves.taken.pop(item.id, item.value) != item.value:
                    yield f"the item {item.id.hex()} lies ready with another value"
                self._laid[item.id] = commit.version, item.value
        self._gone.update({*moves.taken, *collected} - self._there.keys() - self._laid.keys())

    def overtaken(self, commit: Commit, moves: _Moves, line: LineStep) -> Iterator[str]:
        taken = [*moves.taken, *(item.id for handed in line.laid for item in handed.items)]
        if not taken or commit.read_version is None:
            return
        last, seen = max(taken), commit.read_version
        passed = [other for other, since in self._there.items() if other < last and since <= seen]
        asked = sum(requests.items_asked_at(seen) for requests in self._lines)
        if len(passed) > asked - min(line.served, len(taken)) + self._overtake():
            yield f"the item {last.hex()} is taken before the item {min(passed).hex()}"

    def below_the_floor(self, mirror: Mirror) -> Iterator[str]:
        """The floor is above each item that lies ready: those enqueued meanwhile stand behind it."""
        floor = floor_of(mirror.value(self._keys.floor))
        for suffix in self._laid:
            if (self._keys.index_in(suffix) or 0) >= floor:
                yield f"the item {suffix.hex()} lies ready, and the floor of the indexes is {floor}"


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
        for key, values in step.changes.items():
            number = self._partition_of(key)
            if values.after is not None and number >= self._high:
                yield f"a key lies in the partition {number} of {self._high} (key {key.hex()})"

    def unflagged_items(self, mirror: Mirror) -> Iterator[str]:
        for number, part in self._parts.items() if self._has_flags else ():
            if mirror.value(self._keys.flag(number)) is None and part.holds_items(mirror):
                yield f"the partition {number} has items, and no flag"


class Elements:
    def __init__(self, keys: ElementKeys, handed: HandedLocks) -> None:
        self._keys = keys
        self._handed = handed
        self._holders: dict[bytes, tuple[str, bytes]] = {}
        """The machine that has locked each locked element, and the token of the lock."""

    def judge(self, step: Step) -> Iterator[str]:
        parts: dict[int, dict[bytes, Values]] = {ELEMENT: {}, LOCK: {}, PAYLOAD: {}}
        for key, values in step.changes.items():
            column, rest = self._keys.parts_of(key)
            if column in parts:
                parts[column][rest] = values
        for rest, values in parts[PAYLOAD].items():
            if values.before is not None and values.after is not None:
                yield f"the payload of an element has changed: {rest!r}"
        for name, values in parts[ELEMENT].items():
            yield from self.removed_by_its_holder(step.commit, name, values)
        for name, values in parts[LOCK].items():
            yield from self.renewed_by_its_holder(step.commit, name, values)

    def removed_by_its_holder(self, commit: Commit, name: bytes, values: Values) -> Iterator[str]:
        holder = self._other_holder(commit, name)
        if values.after is None and holder is not None:
            yield f"the element {name!r} is locked by {holder}, and removed by {commit.machine}"

    def renewed_by_its_holder(self, commit: Commit, name: bytes, values: Values) -> Iterator[str]:
        holder = self._other_holder(commit, name)
        if values.after is None:
            self._holders.pop(name, None)
            return
        after = Lock.from_bytes(values.after)
        self._holders[name] = commit.machine, after.token
        if values.before is None:
            return
        before = Lock.from_bytes(values.before)
        if before.token != after.token:
            yield f"the locked element {name!r} is locked again: {before} and {after}"
        elif holder is not None or after.since_us < before.since_us:
            yield f"the lock of the element {name!r} of {holder} is renewed by {commit.machine}: {after}"

    def _other_holder(self, commit: Commit, name: bytes) -> str | None:
        """The machine that holds the lock of the element; None if the committing machine may act under it."""
        holder, token = self._holders.get(name, (commit.machine, b""))
        may = holder == commit.machine or self._handed.has(token, commit.machine)
        return None if may else holder
