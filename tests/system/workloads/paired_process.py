"""The process of the workload `paired`: it draws pairs of calls, lets them meet, and judges their outcome.

A commit that has seen a key without a conflict, by snapshot or under another key, goes on when another call
changes that key. Of all pairs of calls, only those can have an outcome that no serial order has.

Calls of one kind combine: one thread makes those of others in its transaction. Some are interrupted, some
commits have unknown results, and some leases are stale. From the same rows, the calls then happen one after
the other, in one order after another, until one of them has the same outcome. So an answer that goes to the
wrong thread, and an error of one call that another one gets, is found for sure.

Commits of `Doubts` are in doubt: their results are unknown, and they are done at once, late or never. From
the same rows, each call happens without any of that, too, with the same answer and the same store. So an
effect that is lost, happens twice or is told wrong at a second attempt is found for sure.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import combinations, permutations
from math import inf
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core.database import run
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.core.seam import FDBError, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.embedded.writes import KeySet
from fdbqueue.testing.scheduler import POINT_S
from fdbqueue.testing.scheduler import Task as Fiber
from fdbqueue.testing.simulation import Client
from tests.system.workloads.paired_items import Elements, FairItems, Items
from tests.system.workloads.paired_tasks import BY_HOLDER, KEYED, KINDS, ROOT, TASK_KEYS, Moves, Seen, Tasks
from tests.system.workloads.paired_world import (
    NO_CALL,
    Call,
    Commit,
    Look,
    Outcome,
    Rows,
    Trouble,
    Twins,
    When,
    World,
    data_of,
    in_order,
    named,
    shown,
    told,
    unlikeness,
)

ORDERS = (When.BEGIN, When.AFTER)
UNNOTICED = 0.5
"""In this share of the steps, one call changes what the other one sees."""
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
        texts = {"answer of the one": [shown(answers[0])], "answer of the other": [shown(answers[1])], **seen}
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


STALE = 0.25
ALIKE, OF_ONE, DOUBTED, INTERRUPTED = 0.8, 0.4, 0.3, 0.5
COMMIT_S = 20 * POINT_S
VERIFIED = 0.3
SWEPT = 0.4
IN_PARTS = ("kick", "many", "redrive", "repartition", "clear", "purge")
"""Calls that are made in several transactions: others may come between these."""
TAKES = ("take", "dequeue", "get")
"""Calls that are not interrupted: the task that one has got comes back, and others may miss it meanwhile."""
Order = Sequence[int]
"""Numbers of calls that happen, one after the other."""
WAYS: Sequence[Sequence[Trouble]] = (
    (Trouble.DONE,),
    (Trouble.DONE,),
    (Trouble.CHANGED,),
    (Trouble.LATE,),
    (Trouble.LATE,),
    (Trouble.LOST,),
    (Trouble.CONFLICT, Trouble.DONE),
    (Trouble.LOST, Trouble.DONE),
    (Trouble.LOST, Trouble.CONFLICT),
)
COMMITS_MAX = 4


class Held(Tasks):
    """Tasks. Their verbs come under stale leases, too. No memory of a process changes an answer."""

    kinds = tuple(kind for kind in KINDS if kind[0] != "bag")
    by_holder = (*BY_HOLDER, *("ack",) * 12)
    counts = (1,)
    """A take of several may give fewer: it shares the bytes of a transaction with others."""

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        # A take of nothing for an overdue session may tell that it has ended, or not.
        self.sessions = [Session(twins.own, ttr=inf) for _ in self.sessions]

    def settle(self, count: int) -> None:
        if count > 1:
            self.own.q.paused(self.twins.own)
            keeper_of(self.twins.own, ROOT).tick()

    def _drawn_options(self) -> dict[str, Any]:
        return {name: value for name, value in super()._drawn_options().items() if name != "partitions"}

    def is_loose(self, one: Call, other: Call) -> bool:
        """Two steps of one name at once are refused: one of them is told so."""
        return (one.text[:5] == other.text[:5] == "step ") or super().is_loose(one, other)

    def _lease(self, id_: str) -> Task:
        held = super()._lease(id_)
        if self.random.random() > STALE or held.token is None:
            return held
        return replace(held, token=bytes(reversed(held.token)))


class Spread(Held, Moves):
    """Tasks in partitions. A process may know an old plan. Takes begin at any partition."""

    kinds = tuple(kind for kind in Moves.kinds if kind[0] != "bag")
    verbs: Sequence[str] = (*("put", "use_a_lease") * 3, "by_id", "kick", "tick", "repartition", "many")
    at_once = (1, 1, 4, 5)
    _is_alone = False

    def _drawn_options(self) -> dict[str, Any]:
        return Moves._drawn_options(self)

    def may_vary(self, one: Call) -> bool:
        return one.name in TAKES

    def top_up(self) -> None:
        super().top_up()
        self.learn(self.own.q.take_many(self.twins.own, 3, session=self.sessions[0]))
        if self._is_alone:  # the delay of a task is over
            self.twins.move_to(self.twins.now + 1_000_000)

    def _key(self) -> str:
        return str(self.random.choice((self._moved, *TASK_KEYS)))

    def settle(self, count: int) -> None:
        self._is_alone = count == 1
        super().settle(count)

    def draw(self) -> Call:
        if not self._is_alone:
            return super().draw()
        call = self._sweep() if self.random.random() < SWEPT else super().draw()
        # A tick of the keeper that meets an error goes on at the next one: alone, it has no order to equal.
        return self._sweep() if call.name == "tick" else call

    def _sweep(self) -> Call:
        """All transactions of the keeper, which has looked at the queue before a repartition. One in doubt
        happens again, so the number of those that sweep something tells nothing.
        """

        def verb(at: Any, db: Any) -> None:
            while run(db, at.q._calls(db).parts.tidy):
                pass

        return Call("sweep", "sweep", verb, alone=True)

    def seen(self, tr: Transaction) -> Seen:
        """The number of ready tasks in each partition, too, if their task keys tell it."""
        parts = self.opened(self.twins.own).q.partitions(tr) if self.kind in KEYED else ()
        return {**super().seen(tr), "places": [f"{part.number}: {part.ready}" for part in parts]}


class InOnePart(Items):
    partitions = (0, 1)


AT_ONCE: Sequence[type[World]] = (*(Held,) * 6, InOnePart, InOnePart, FairItems, Elements)


class Met(NamedTuple):
    """`answers`: by the number of the call, without those that are unknown. `ended`: the numbers, in time."""

    answers: dict[int, Any]
    ended: Order


class Strike:
    """An interrupt of one thread, near a commit of any thread. Commits take time, so that calls combine."""

    def __init__(self, client: Client, random: Random, calls: Sequence[Call]) -> None:
        self._scheduler, self._runtime = client.runtime.scheduler, client.runtime
        self._commit_s = random.choice((0, POINT_S, COMMIT_S, COMMIT_S))
        may_be_struck = [number for number, call in enumerate(calls) if call.name not in TAKES]
        is_struck = may_be_struck and random.random() < INTERRUPTED
        self._struck = random.choice(may_be_struck) if is_struck else None
        self._commits_before = random.choice((0, 1, 1, 2))
        self._after_s = random.choice((0, random.uniform(0, 2 * COMMIT_S)))
        self._task: Fiber | None = None

    def commits(self) -> None:
        """A commit begins."""
        self._commits_before -= 1
        if self._commits_before == -1:
            self._scheduler.call_at(self._scheduler.now + self._after_s, self._strike)
        if self._commit_s:
            self._runtime.sleep(self._commit_s)

    def _strike(self) -> None:
        if self._task is not None:
            self._scheduler.interrupt(self._task, KeyboardInterrupt())

    def met_by(self, number: int, call: Callable[[], None]) -> None:
        """Make the call of a thread, which the interrupt may end."""
        if number != self._struck:
            call()
            return
        self._task = task = self._scheduler.current
        assert task is not None, "only a thread is struck"
        with suppress(KeyboardInterrupt):
            call()
        self._task, task.interrupt = None, None


class Together(Process):
    _older: Rows = {}
    """The rows before the last step."""

    def step(self) -> None:
        self._move(0.4)
        count = self._random.choice(self._world.at_once)
        self._world.settle(count)
        self._world.refresh()
        self._older, self._before = self._before, self._twins.rows()
        calls = self._drawn_calls(count)
        if calls:
            met = self._at_once(calls)
            self._require_an_order(calls, met)
            self._world.learn([met.answers[number] for number in met.ended])

    def _drawn_calls(self, count: int) -> list[Call]:
        """Calls of different threads, mostly of one kind, about one task or several. None if no call fits."""
        calls = list[Call]()
        alike, of_one = self._random.random() < ALIKE, self._random.random() < OF_ONE
        self._world.forget_focus()
        for _ in range(20 * count):
            if not of_one:
                self._world.forget_focus()
            call = self._drawn()
            if self._fits(call, calls, alike) or (count == 1 and self._is_clear(call)):
                calls.append(call)
            if len(calls) == count:
                break
        return calls

    def _fits(self, call: Call, others: Sequence[Call], alike: bool) -> bool:
        if call.alone or len(call.adds) > 1 or call.name in IN_PARTS or not self._is_clear(call):
            return False
        if alike and others and call.text.split()[0] != others[0].text.split()[0]:
            return False
        loose = self._world.is_loose
        return not any(loose(call, other) or loose(other, call) for other in others)

    def _is_clear(self, call: Call) -> bool:
        return not call.within and not self._world.may_vary(call)

    # Threads.

    def _at_once(self, calls: Sequence[Call]) -> Met:
        self._begin(self._older)
        trap, random, answers = self._twins.trap, self._random, dict[int, Any]()
        if random.random() < DOUBTED:
            trap.doubt(random.randrange(2), random.choice(WAYS))
        strike = Strike(self._twins.client, random, calls)
        if calls[0].name != "sweep":  # half of its transactions equal no order
            trap.before_commit = strike.commits
        threads = [
            self._twins.client.thread(partial(self._in_thread, call, number, strike, answers), f"{number}")
            for number, call in enumerate(calls)
        ]
        for thread in threads:
            thread.join()
        trap.before_commit = None
        trap.doubt(0, ())
        return Met(answers, [*answers])

    def _begin(self, known: Rows | None = None) -> None:
        """Let the process remember nothing, or the queue as it was in the rows `known`."""
        twins = self._twins
        twins.restart()
        if known and self._world.forgets:
            twins.set_back(known)
        self._open()
        twins.set_back(self._before)
        twins.trap.set(When.AFTER, twins.trap.forget)
        twins.runtime.draw_from(f"{self._seed} together")

    def _in_thread(
        self, call: Call, number: int, strike: "Strike", answers: dict[int, Any], _: Client
    ) -> None:
        """Make a call. Its answer is unknown if it is interrupted, or the leader of its batch was."""
        try:
            strike.met_by(
                number, lambda: answers.update({number: call.answer(self._handles[0], self._twins.first)})
            )
        except FDBError as error:
            if error.code not in MAYBE_COMMITTED:
                raise

    # Orders.

    def _require_an_order(self, calls: Sequence[Call], met: Met) -> None:
        """Raises: AssertionError, which ends the run as a violation, if no order has this outcome."""
        told = f"{self._world}: at once {'; '.join(map(str, calls))}"
        flaws = self._world.flaws(self._twins.own) if self._random.random() < VERIFIED else ""
        assert not flaws, f"{told}: {flaws}"
        found, unlike = self._look_at(met.answers), dict[str, str]()
        for order in orders(met.ended, len(calls)):
            self._twins.set_back(self._before)
            answers = self._one_by_one(calls, order)
            known = {number: answer for number, answer in answers.items() if number in met.answers}
            difference = unlikeness(found, self._look_at(known), NO_CALL, NO_CALL)
            if difference is None:
                return
            unlike[", ".join(str(calls[number]) for number in order)] = difference
        raise AssertionError(f"{told}, is none of {unlike}; the answers are {met.answers}")

    def _one_by_one(self, calls: Sequence[Call], order: Order) -> dict[int, Any]:
        self._begin()
        return {number: calls[number].answer(self._handles[0], self._twins.first) for number in order}

    def _look_at(self, answers: dict[int, Any]) -> Look:
        """The answers and all that the store shows, with the names of tasks."""
        seen, names = self._world.look(self._twins.own)
        ordered = sorted(answers.items())
        names = {**names, **dict(data_of(one for _, one in ordered))}
        texts = {**{f"answer {number}": [shown(one)] for number, one in ordered}, **seen}
        return {name: in_order(name, [named(text, names) for text in lines]) for name, lines in texts.items()}


def orders(ended: Order, count: int) -> Iterator[Order]:
    """The orders of the calls that have ended, perhaps with some of the others; the likeliest ones first."""
    unknown = [number for number in range(count) if number not in ended]
    for size in range(len(unknown) + 1):
        for more in combinations(unknown, size):
            yield from permutations((*ended, *more))


class Doubts(Process):
    def step(self) -> None:
        self._move(0.4)
        self._world.refresh()
        self._before = self._twins.rows()
        call = self._drawn_alone()
        found, wanted = self._alone(call, 0, ()), None
        for clean in range(min(COMMITS_MAX, len(self._twins.trap.commits_made))):
            wanted = wanted or self._look(found.answers)
            self._twins.set_back(self._before)
            way = self._random.choice(WAYS)
            found = self._alone(call, clean, way)
            self._require_the_same(call, clean, way, found, wanted)
        self._world.learn(found.answers)

    def _drawn_alone(self) -> Call:
        """A call that is given a database: its effect happens once."""
        while True:
            self._world.forget_focus()
            call = self._drawn()
            if call.name != "both":
                return replace(call, within=False)

    def _alone(self, call: Call, clean: int, way: Sequence[Trouble]) -> Outcome:
        """Make the call in a process that remembers nothing. `clean`: the commits that end well first."""
        twins = self._twins
        twins.restart()
        self._open()
        twins.trap.set(When.AFTER, twins.trap.forget)
        twins.trap.doubt(clean, way)
        twins.runtime.draw_from(f"{self._seed} one")
        answer = call.answer(self._handles[0], twins.first)
        twins.trap.doubt(0, ())
        return Outcome((answer, None), twins.rows())

    def _require_the_same(
        self, call: Call, clean: int, way: Sequence[Trouble], found: Outcome, wanted: Look
    ) -> None:
        """Raises: AssertionError, which ends the run as a violation."""
        told = f"{self._world}: {call}, with {' and '.join(one.name for one in way)} after {clean} commits"
        flaws = self._world.flaws(self._twins.own)
        assert not flaws, f"{told}: {flaws}"
        if self._world.may_vary(call):
            return
        difference = unlikeness(self._look(found.answers), wanted, call, NO_CALL)
        assert difference is None, f"{told}: {difference} without"
