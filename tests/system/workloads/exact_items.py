"""As `exact`, with a queue of items, in partitions or not: a plain model has each value in its place.

Before and after each call, a look lists the values of each partition. So a call may choose a partition, and
must leave all else as it was. Readers hold values, show some of them, or let them lie until their deadline.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from random import Random
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.errors import FdbQueueError, TooMuchForOneTransaction, WaitStopped
from fdbqueue.core.partitions import PartitionState
from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import draw_limits, once
from tests.system.workloads.exact_model import caught, require_equal, step_by_step

NAME = "exact items"
WITHIN, LARGE, PARTITIONS_MAX = 0.4, 0.15, 3
AFTER_THE_DEADLINE_S = 12.0
VERBS: Mapping[str, float] = {
    "enqueue": 6,
    "dequeue": 5,
    "give_back": 1.5,
    "peek": 1,
    "page": 1.5,
    "stop": 0.5,
    "hold": 5,
    "repartition": 0.5,
    "clear": 0.2,
}
BESIDE = ("enqueue", "dequeue", "give_back")
"""Calls while a reader holds values."""
Lines = dict[int, list[str]]
"""The values of each partition, in order."""


@workload(clients=1, steps=40, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_items(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact items")
    partitions, contended = random.choice((None, 1, 2, 3, 3)), random.choice(("staged", "simple"))
    draw_limits(
        simulation,
        random,
        SERVE_MAX=(2, 50, 50),
        NOTICE_BYTES_MAX=(0, 40, 8_000),
        PAYLOAD_PIECE_BYTES_MAX=(8, 100_000),
    )

    def made(client: Client) -> ItemsProcess:
        if partitions is None:
            q = Queue(Subspace((NAME,)), contended=contended)
        else:
            q = Queue.named(client.db, NAME, partitions=partitions, contended=contended)
        return ItemsProcess(client, q, is_named=partitions is not None)

    step_by_step(simulation, size, made, end=ItemsProcess.end)
    return []


class ItemsProcess:
    def __init__(self, client: Client, q: Queue, *, is_named: bool) -> None:
        self._client, self._q, self._random, self._is_named = client, q, client.random, is_named
        self._number = 0
        self._lines: Lines = {}

    def step(self) -> None:
        [verb] = self._random.choices([*VERBS], [*VERBS.values()])
        getattr(self, f"_{verb}")()

    def end(self) -> None:
        while any(self._lines.values()):
            self._dequeue()
        assert self._q.empty(self._client.db)

    # Looks.

    def _look(self) -> Lines:
        """The values of each partition: the pages list one partition after the other."""
        db, values = self._client.db, self._listed(None)
        require_equal("size", self._q.size(db), len(values))
        require_equal("empty", self._q.empty(db), not values)
        lines: Lines = {}
        for one in self._q.partitions(db):
            lines[one.number], values = values[: one.ready], values[one.ready :]
        require_equal("values in no partition", values, [])
        return lines

    def _listed(self, after: str | None) -> list[str]:
        """All values behind that place, page by page."""
        limit, values = self._random.choice((1, 3, 100)), list[str]()
        while True:
            page = self._q.items(self._client.db, limit, after=after)
            values += page
            if (after := page.next) is None:
                return values

    def _becomes(self, told: str, after: Lines, wanted: Lines) -> None:
        """Raises: AssertionError, unless the lines are these."""
        self._lines = after
        require_equal(told, {k: v for k, v in after.items() if v}, {k: v for k, v in wanted.items() if v})

    def _without_first(self, told: str, values: Sequence[str]) -> Lines:
        """The lines without these values, which are the first ones of their partitions."""
        if not values:
            assert not any(self._lines.values()), f"{told} gave nothing, and there is {self._lines}"
        rest = {number: [v for v in line if v not in values] for number, line in self._lines.items()}
        for number, line in self._lines.items():
            given = [value for value in values if value in line]
            require_equal(f"{told}, of partition {number}", given, line[: len(line) - len(rest[number])])
        strange = {*values} - {*chain.from_iterable(self._lines.values())}
        assert not strange, f"{told} gave {strange}, and there is {self._lines}"
        return rest

    # Calls.

    def _answer(self, verb: Callable[[Any], Any]) -> tuple[bool, Any]:
        """Call with the database, or in a transaction that happens once; tell which."""
        if self._random.random() < WITHIN:
            return True, once(self._client, partial(caught, verb))
        return False, caught(verb, self._client.db)

    def _drawn(self, most: int) -> list[str]:
        count = self._random.randint(1, most)
        self._number += count
        return [self._one(self._number - count + n) for n in range(count)]

    def _one(self, number: int) -> str:
        return f"{number}".ljust(30 if self._random.random() < LARGE else 0, ".")

    def _enqueue(self) -> None:
        """Values of one call keep their order in each partition, behind those that are there."""
        values = self._drawn(self._random.choice((1, 1, 3, 8)))
        one_by_one = len(values) == 1 and self._random.random() < 0.7
        _, answer = self._answer(
            lambda tr: self._q.enqueue(tr, values[0]) if one_by_one else self._q.enqueue_many(tr, values)
        )
        size_bytes = sum(len(value) + 2 for value in values)  # with its quotes
        if len(values) > 1 and size_bytes > limits.BATCH_BYTES_MAX:
            assert isinstance(answer, TooMuchForOneTransaction), f"enqueue {values}: {answer!r}"
            self._becomes(f"{values}, which were refused", self._look(), self._lines)
            return
        require_equal(f"enqueue {values}", answer, None)
        after, before = self._look(), self._lines
        added = {number: line[len(before.get(number, ())) :] for number, line in after.items()}
        require_equal("enqueued", Counter(chain.from_iterable(added.values())), Counter(values))
        in_order = {number: [value for value in values if value in new] for number, new in added.items()}
        self._becomes(
            f"enqueue {values}",
            after,
            {n: before.get(n, []) + in_order[n] for n in after.keys() | before.keys()},
        )

    def _dequeue(self) -> None:
        count = self._random.choice((1, 1, 2, 4))
        within, found = self._answer(partial(self._take, count))
        self._require_taken(f"dequeue {count}", found, count if within else None)
        assert len(found) <= count

    def _take(self, count: int, tr: Any) -> list[str]:
        if count > 1 or self._random.random() < 0.5:
            return self._q.dequeue_many(tr, count)
        value = self._q.dequeue(tr)
        return [] if value is None else [value]

    def _require_taken(self, told: str, found: list[str], exactly: int | None) -> None:
        """In a transaction, a queue with one partition gives as many values as were asked for."""
        rest = self._without_first(told, found)
        if exactly is not None and len(self._lines) == 1:
            [line] = self._lines.values()
            require_equal(f"values of {told}", len(found), min(exactly, len(line)))
        self._becomes(told, self._look(), rest)

    def _give_back(self) -> None:
        """Take values in a transaction, and give the last ones back, there or later: they are first."""
        at_once, keeps = self._random.random() < 0.5, self._random.randint(0, 2)

        def body(tr: Any) -> list[str]:
            found = self._q.dequeue_many(tr, 3)
            if at_once and found[keeps:]:
                self._q.give_back(tr, found[keeps:])
            return found

        found = once(self._client, body)
        rest = self._without_first("dequeue 3", found)
        if not at_once:
            self._becomes("dequeue 3", self._look(), rest)
            if found[keeps:]:
                self._answer(lambda tr: self._q.give_back(tr, found[keeps:]))
        after, back = self._look(), found[keeps:]
        there = next((n for n, line in after.items() if line[: len(back)] == back), None)
        assert there is not None, f"{back} were given back, and there is {after}"
        self._becomes("give back", after, {**rest, there: back + rest.get(there, [])})

    def _peek(self) -> None:
        _, found = self._answer(self._q.peek)
        self._without_first("peek", [] if found is None else [found])
        self._becomes("peek", self._look(), self._lines)

    def _page(self) -> None:
        """Pages list each value that stays, though others are taken and given back between two of them."""
        page = self._q.items(self._client.db, self._random.choice((1, 2, 4)))
        if page.next is None:
            return
        there = {*chain.from_iterable(self._lines.values())}
        self._dequeue()
        listed = {*page, *self._listed(page.next)}
        missing = (there & {*chain.from_iterable(self._lines.values())}) - listed
        assert not missing, f"pages left out {missing}"

    def _stop(self) -> None:
        """A dequeue with an event that is set takes nothing."""
        stop = self._client.runtime.event()
        stop.set()
        found = caught(lambda db: self._q.dequeue(db, timeout=1, stop=stop), self._client.db)
        assert isinstance(found, WaitStopped), f"a stopped dequeue gave {found!r}"
        self._becomes("a stopped dequeue", self._look(), self._lines)

    def _hold(self) -> None:
        """A reader holds values, and others call meanwhile. Then it has shown some, or its time is over."""
        holder, count = self._q.holder(self._client.db), self._random.choice((1, 4, 6, 6))
        held = holder.hold(count)
        rest = self._without_first(f"hold {count}", held)
        self._becomes(f"hold {count}", self._look(), rest)
        if not held:
            return
        beside = self._random.sample(BESIDE, self._random.randint(0, 2))
        for verb in beside:
            getattr(self, f"_{verb}")()
        if self._random.random() < 0.8:
            self._settle(holder, held, are_first="give_back" not in beside)
        else:
            self._abandon(held)

    def _settle(self, holder: Holder, held: list[str], *, are_first: bool) -> None:
        shown = self._random.randint(0, len(held))
        is_in_time = holder.settle(shown)
        back, after = held[shown:] if is_in_time else held, self._look()
        self._come_back(f"{shown} of {held} were shown", back, after, are_first=are_first)

    def _come_back(self, told: str, back: list[str], after: Lines, *, are_first: bool) -> None:
        """Values come back to their places: before all others, unless some were given back meanwhile."""
        came = {number: [v for v in back if v in line] for number, line in after.items()}
        require_equal(told, Counter(chain.from_iterable(came.values())), Counter(back))
        lines = {number: [v for v in line if v not in back] for number, line in after.items()}
        self._becomes(told, lines, self._lines)
        if are_first:
            require_equal(told, after, {number: came[number] + line for number, line in lines.items()})
        self._lines = after

    def _abandon(self, held: list[str]) -> None:
        """Let the deadline pass. Takes give all values, until there is none."""
        self._client.runtime.sleep(AFTER_THE_DEADLINE_S)
        there, taken = Counter(chain(held, *self._lines.values())), list[str]()
        while found := self._take(4, self._client.db):
            taken += found
        require_equal(f"{held} were held for too long", Counter(taken), there)
        self._becomes("takes of all", self._look(), {})

    def _repartition(self) -> None:
        if not self._is_named:
            return
        count = self._random.randint(1, PARTITIONS_MAX)
        _, answer = self._answer(lambda tr: self._q.repartition(tr, count))
        assert not isinstance(answer, FdbQueueError), f"a repartition raised {answer!r}"
        states = [one.state for one in self._q.partitions(self._client.db)]
        require_equal("open partitions", states.count(PartitionState.OPEN), count)
        after = self._look()
        self._becomes("repartition", after, self._lines)

    def _clear(self) -> None:
        self._answer(self._q.clear)
        self._becomes("clear", self._look(), {})
