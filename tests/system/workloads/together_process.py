"""The process of the workload `together`: its threads make calls at once, and it looks for their order."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import combinations, permutations
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core.fdberror import FDBError
from fdbqueue.core.observing import MAYBE_COMMITTED
from fdbqueue.testing.scheduler import POINT_S, Task
from fdbqueue.testing.simulation import Client
from tests.system.workloads.doubted_process import WAYS
from tests.system.workloads.paired_calls import (
    NO_CALL,
    Call,
    Look,
    data_of,
    in_order,
    named,
    shown,
    unlikeness,
)
from tests.system.workloads.paired_process import Process
from tests.system.workloads.paired_store import When

COUNTS = (2, 3, 3, 4)
ALIKE, OF_ONE, DOUBTED, INTERRUPTED = 0.8, 0.4, 0.3, 0.5
COMMIT_S = 20 * POINT_S
VERIFIED = 0.3
IN_PARTS = ("kick", "many", "redrive", "repartition", "clear", "purge")
"""Calls that are made in several transactions: others may come between these."""
TAKES = ("take", "dequeue", "get")
"""Calls that are not interrupted: the task that one has got comes back, and others may miss it meanwhile."""

Order = Sequence[int]
"""Numbers of calls that happen, one after the other."""


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
        self._task: Task | None = None

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
    def step(self) -> None:
        self._move(0.4)
        self._world.refresh()
        self._before = self._twins.rows()
        calls = self._drawn_calls()
        if calls:
            met = self._at_once(calls)
            self._require_an_order(calls, met)
            self._world.learn([met.answers[number] for number in met.ended])

    def _drawn_calls(self) -> list[Call]:
        """Calls of different threads, mostly of one kind, about one task or several. None if no call fits."""
        calls, count = list[Call](), self._random.choice(COUNTS)
        alike, of_one = self._random.random() < ALIKE, self._random.random() < OF_ONE
        self._world.forget_focus()
        for _ in range(20 * count):
            if not of_one:
                self._world.forget_focus()
            call = self._drawn()
            if self._fits(call, calls, alike):
                calls.append(call)
            if len(calls) == count:
                break
        return calls

    def _fits(self, call: Call, others: Sequence[Call], alike: bool) -> bool:
        if call.within or call.alone or len(call.adds) > 1 or call.name in IN_PARTS:
            return False
        if self._world.may_vary(call):
            return False
        if alike and others and call.text.split()[0] != others[0].text.split()[0]:
            return False
        loose = self._world.is_loose
        return not any(loose(call, other) or loose(other, call) for other in others)

    # Threads.

    def _at_once(self, calls: Sequence[Call]) -> Met:
        self._begin()
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

    def _begin(self) -> None:
        """Let the process remember nothing."""
        twins = self._twins
        twins.restart()
        self._open()
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
