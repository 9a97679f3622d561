"""The legal steps of the items of a plain queue.

An item is enqueued once, behind all items that its enqueue has seen, in the queue or ready for a request.
It is in one place. It comes back to its old place, and only from a request. It leaves the queue once (I2).
A take passes over an item only if that belongs to a request which waited when the take looked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.line.decision import LineKeys
from fdbqueue.queues.recipe.items import ITEM, Recipe, floor_of
from fdbqueue.testing.trace import Commit
from tests.system.audit.commit import Step
from tests.system.audit.line import LineStep, Requests, joined
from tests.system.audit.liveness import Liveness
from tests.system.audit.mirror import Mirror


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
        if len(passed) > asked - min(line.served, len(taken)):
            yield f"the item {last.hex()} is taken before the item {min(passed).hex()}"

    def below_the_floor(self, mirror: Mirror) -> Iterator[str]:
        """The floor is above each item that lies ready: those enqueued meanwhile stand behind it."""
        floor = floor_of(mirror.value(self._keys.floor))
        for suffix in self._laid:
            if (self._keys.index_in(suffix) or 0) >= floor:
                yield f"the item {suffix.hex()} lies ready, and the floor of the indexes is {floor}"
