"""The process of the workload `paired`: it draws pairs of calls, lets them meet, and judges their outcome.

A commit that has seen a key without a conflict, by snapshot or under another key, goes on when another call
changes that key. Of all pairs of calls, only those can have an outcome that no serial order has.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from fdbqueue.embedded.writes import KeySet
from tests.system.workloads.paired_store import Commit, Rows, Twins, When, told
from tests.system.workloads.paired_world import (
    Call,
    Look,
    Outcome,
    World,
    data_of,
    in_order,
    named,
    shown,
    unlikeness,
)

ORDERS = (When.BEGIN, When.AFTER)
UNNOTICED = 0.5
"""The share of steps whose pairs are chosen by what one changes and the other sees."""
PAIRS, MET_AT_ONCE = 4, 3
COLUMN_BYTES = 16
"""The length of a key up to its column, roughly: keys that begin alike are of one kind."""


class Footprint(NamedTuple):
    """`changed`: the keys with other values after the call."""

    call: Call
    commits: Sequence[Commit]
    changed: frozenset[bytes]


class Process:
    def __init__(self, twins: Twins, world: World) -> None:
        self._random, self._twins, self._world = world.random, twins, world
        self._handles: Any = None
        self._seed = self._skip = 0
        self._before: Rows = {}
        self._there: Look | None = None
        self._pair, self._missed = "", False
        self._met = Counter[Any]()

    def prepare(self) -> None:
        """Reach a state by some calls, one after the other."""
        self._open()
        for number in range(self._random.choice(self._world.before)):
            if number % 5 == 0:
                self._world.refresh()
                self._move(0.2)
            self._world.forget_focus()
            side = number % 2
            self._world.learn(self._drawn().answer(self._handles[side], self._twins.sides[side]))

    def _open(self) -> None:
        self._handles = [self._world.opened(db) for db in self._twins.sides]

    def _drawn(self) -> Call:
        self._seed += 1
        self._twins.runtime.draw_from(f"{self._seed} before")
        return self._world.draw()

    def _move(self, chance: float) -> None:
        """Move the clock: mostly to the next change, or to just before it."""
        random, twins = self._random, self._twins
        if random.random() >= chance:
            return
        following = self._world.next_time(twins.now)
        if following is None or random.random() < 0.2:
            following = twins.now + random.choice((1, 250_000, 1_000_000))
        twins.move_to(following - random.choice((0, 0, 0, 1)))

    def step(self) -> None:
        self._move(0.4)
        self._world.refresh()
        self._before = self._twins.rows()
        answers: tuple[Any, ...] = ()
        for one, other, skip in self._chosen() if self._random.random() < UNNOTICED else self._any_pair():
            self._twins.set_back(self._before)
            answers = self._meet(one, other, skip)
        self._world.learn(answers)

    def _any_pair(self) -> Iterator[tuple[Call, Call, int]]:
        self._world.forget_focus()
        one, other = self._drawn(), self._world.lengthened(self._drawn(), self._drawn)
        yield one, other, 0 if one.within else self._random.choice((0, 0, 0, 1))

    def _chosen(self) -> Iterator[tuple[Call, Call, int]]:
        """Of some calls, the pairs in which one changes keys behind the back of the other: new kinds of
        pairs, or the rarest one.
        """
        calls = list[Call]()
        for _ in range(PAIRS):
            self._world.forget_focus()
            calls += (self._drawn(), self._drawn())
        footprints = [*map(self._footprint, calls)]
        self._require_apart(footprints)
        found = {meeting.kind: meeting for meeting in meetings(footprints)}
        rarest = sorted(found, key=self._met.__getitem__)
        for kind in [kind for kind in rarest if not self._met[kind]][:MET_AT_ONCE] or rarest[:1]:
            self._met[kind] += 1
            yield found[kind].one, found[kind].other, found[kind].number

    def _footprint(self, call: Call) -> Footprint:
        """Make the call alone, and take it back."""
        twins = self._twins
        if self._world.must_forget(call, call):
            twins.restart()
            self._open()
        twins.trap.set(When.AFTER, twins.trap.forget)
        twins.runtime.draw_from(f"{self._seed} one")
        call.answer(self._handles[0], twins.first)
        after, before = twins.rows(), self._before
        changed = {key for key in after.keys() | before.keys() if after.get(key) != before.get(key)}
        commits = tuple(twins.trap.commits_made)
        twins.set_back(before)
        return Footprint(call, commits, frozenset(changed))

    def _meet(self, one: Call, other: Call, skip: int) -> tuple[Any, Any]:
        """Let the second call happen just before a commit of the first one."""
        world, self._skip, self._there = self._world, skip, None
        self._pair = f"{one}, overlapped by {other}"
        overlapped = self._happen(one, other, When.BEFORE_COMMIT, None)
        trap = self._twins.trap
        if trap.sprung is not None:
            self._require_promised(one, other, trap.conflicted, overlapped.answers[0])
            is_open = trap.conflicted and world.may_vary(one)
            if not is_open and not world.is_loose(one, other):
                self._require_serial(one, other, overlapped, trap.sprung, trap.conflicted)
        return overlapped.answers

    def _require_promised(self, one: Call, other: Call, conflicted: bool, answer: Any) -> None:
        """Raises: AssertionError for a conflict, or none, against the promise of a docstring."""
        pair = f"{self._world}: {one}, which {other} overlaps"
        refused = conflicted and self._world.promises(one, other)
        assert not refused, f"{pair}, conflicts, and the promise is that it does not"
        missing = not conflicted and self._world.demands(one, other, answer)
        assert not missing, f"{pair}, does not conflict, and the promise is that it does"

    def _require_apart(self, footprints: Sequence[Footprint]) -> None:
        """Raises: AssertionError if a call, made alone, conflicts with another one against the promise."""
        for one, other in permutations(footprints, 2):
            met = any(commit.reads.meets(its.writes) for commit in one.commits for its in other.commits)
            refused = met and self._world.promises(one.call, other.call)
            pair = f"{self._world}: {one.call}, beside {other.call}"
            assert not refused, f"{pair}, would conflict, and the promise is that it does not"

    def _happen(self, one: Call, other: Call, when: When, at: int | None) -> Outcome:
        """Make both calls."""
        twins, world, seed = self._twins, self._world, self._seed
        parts = other.parts or (other,)
        if any(world.must_forget(one, part) for part in parts):
            twins.restart()
            self._open()
        steps = [[part] for part in parts] if when is When.BETWEEN else [parts]
        begun, answers = len(steps), list[Any]()

        def interrupt() -> None:
            random_bytes, random = twins.runtime.random_bytes, twins.runtime.random
            for part in steps.pop(0):
                twins.runtime.draw_from(f"{seed} other{' again' * len(answers)}")
                answers.append(part.answer(self._handles[1], twins.second))
            twins.runtime.random_bytes, twins.runtime.random = random_bytes, random

        twins.trap.set(when, interrupt, self._skip, at)
        twins.trap.seed = f"{seed} one" if one.within else None
        twins.runtime.draw_from(f"{seed} one")
        answer = one.answer(self._handles[0], twins.first)
        twins.trap.forget()
        self._missed = len(steps) == begun
        while steps:
            interrupt()
        return Outcome((answer, answers if other.parts else answers[0]), twins.rows())

    def _require_serial(self, one: Call, other: Call, found: Outcome, at: int, conflicted: bool) -> None:
        """Raises: AssertionError, which ends the run as a violation, if neither order has this outcome."""
        unlike: dict[When, str] = {}
        orders = (*ORDERS, When.BETWEEN) if other.parts else ORDERS
        for when in orders if conflicted else reversed(orders):
            self._twins.set_back(self._before)
            serial = self._in_order(one, other, when, at)
            is_equal = serial.answers == found.answers and told(serial.rows) == told(found.rows)
            there = None if is_equal else self._look(serial.answers)
            self._twins.set_back(found.rows)
            if there is None:
                return
            difference = unlikeness(self._seen(found), there, one, other)
            if difference is None:
                return
            unlike[when] = difference
        self._refuse(one, other, self._seen(found), unlike)

    def _in_order(self, one: Call, other: Call, when: When, at: int) -> Outcome:
        """Make both calls, one after the other."""
        found, trap = self._happen(one, other, when, at), self._twins.trap
        if self._missed and trap.committing not in (None, at):
            # This process knows more than before, and needs fewer transactions.
            self._twins.set_back(self._before)
            found = self._happen(one, other, when, trap.committing)
        return found

    def _seen(self, found: Outcome) -> Look:
        """The look at the store after the overlapping calls; it is looked at once."""
        if self._there is None:
            flaws = self._world.flaws(self._twins.own)
            assert not flaws, f"{self._world}: after {self._pair}: {flaws}"
            self._there = self._look(found.answers)
        return self._there

    def _refuse(self, one: Call, other: Call, seen: Look, unlike: dict[When, str]) -> None:
        raise AssertionError(
            f"{self._world}: {other} overlaps {one}. "
            f"The answers are {seen['answer of the one']} and {seen['answer of the other']}. "
            f"Beside the order in which it comes first: {unlike[When.BEGIN]}. "
            f"Beside that in which it comes last: {unlike[When.AFTER]}"
            + (f". Between its parts: {unlike[When.BETWEEN]}" if When.BETWEEN in unlike else "")
        )

    def _look(self, answers: tuple[Any, Any]) -> Look:
        """The answers and all that the store shows, with the names of tasks."""
        seen, names = self._world.look(self._twins.own)
        names = {**names, **dict(data_of(answers))}
        texts = {
            "answer of the one": [shown(answers[0])],
            "answer of the other": [shown(answers[1])],
            **seen,
        }
        return {name: in_order(name, [named(text, names) for text in lines]) for name, lines in texts.items()}


class Meeting(NamedTuple):
    """Two calls. The second one changes a key that commit `number` of the first one has seen unguarded."""

    one: Call
    other: Call
    number: int
    kind: tuple[str, str, frozenset[bytes]]
    """The names of both calls, and the columns of the keys."""


def meetings(footprints: Sequence[Footprint]) -> Iterator[Meeting]:
    for one in footprints:
        for number, commit in enumerate(one.commits):
            for other in footprints:
                columns = _unnoticed(commit, other)
                if columns and other is not one:
                    kind = (_name(one.call), _name(other.call), columns)
                    yield Meeting(one.call, other.call, number, kind)


def _unnoticed(commit: Commit, other: Footprint) -> frozenset[bytes]:
    """The columns of the keys that the commit has seen, and the other call changes without a conflict."""
    if any(commit.reads.meets(its.writes) for its in other.commits):
        return frozenset()
    return frozenset(key[:COLUMN_BYTES] for key in _both(other.changed, commit.seen))


def _both(keys: Iterable[bytes], seen: KeySet) -> Iterator[bytes]:
    return (key for key in keys if key in seen)


def _name(call: Call) -> str:
    return call.text.split()[0]
