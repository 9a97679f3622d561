"""Calls of several threads of one process at once: answers and store equal those of one serial order.

Calls of one kind combine: one thread makes those of others in its transaction. Some are interrupted, some
commits have unknown results, and some leases are stale. From the same rows, the calls then happen one after
the other, in one order after another, until one of them has the same outcome. So an answer that goes to the
wrong thread, and an error of one call that another one gets, is found for sure.

Commits of `Doubts` are in doubt: their results are unknown, and they are done at once, late or never. From
the same rows, each call happens without any of that, too, with the same answer and the same store. So an
effect that is lost, happens twice or is told wrong at a second attempt is found for sure.
"""

from collections.abc import Callable, Iterator, Sequence
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
from fdbqueue.testing.scheduler import POINT_S
from fdbqueue.testing.scheduler import Task as Fiber
from fdbqueue.testing.simulation import Client
from tests.system.workloads.paired_items import Elements, FairItems, Items
from tests.system.workloads.paired_process import Process
from tests.system.workloads.paired_store import Rows, Trouble, Twins, When
from tests.system.workloads.paired_task_calls import BY_HOLDER, KEYED, ROOT
from tests.system.workloads.paired_tasks import KINDS, TASK_KEYS, Moves, Seen, Tasks
from tests.system.workloads.paired_world import (
    NO_CALL,
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
    """Tasks whose verbs come under stale leases, too. No memory of a process changes an answer."""

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
        return self._sweep() if self._is_alone and self.random.random() < SWEPT else super().draw()

    def _sweep(self) -> Call:
        """A transaction of the keeper, which has looked at the queue before a repartition. A commit in doubt
        happens again, so its answer tells nothing.
        """

        def verb(at: Any, db: Any) -> None:
            run(db, at.q._calls(db).parts.tidy)

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
