"""A FairQueue in one process: each item, each answer and each look equal those of a plain model.

Items have costs, keys have weights, and the queue may be full. So each take tells whether its round is right.
"""

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import FairQueueFull
from fdbqueue.core.page import every_page
from fdbqueue.queues.fair.queue import FairQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from tests.system.workloads.common import SPACE, cramped
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.task_model import Turns

NAME = "exact_fair"
KEYS = ("gold", "silver", "a", "b", "c")
WEIGHTS = {"gold": 3, "silver": 2}
VERBS = (*("put",) * 6, *("get",) * 5, "give_back")
LOOKED, PAGES = 0.4, (2, 9)


class Entry(NamedTuple):
    """An item. The text of its number is its place among all."""

    id: str
    key: str
    cost: int


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_fair(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} exact fair")
    simulation.limit(
        KEY_LEVEL_MIN=random.choice((1, limits.KEY_LEVEL_MIN)),
        PLAIN_ATTEMPTS_MAX=random.choice((1, limits.PLAIN_ATTEMPTS_MAX)),
        BATCH_BYTES_MAX=random.choice((50, limits.BATCH_BYTES_MAX)),
    )
    capacity = random.choice((None, 6))
    q = FairQueue(SPACE[NAME], key=key_of, capacity=capacity, weights=WEIGHTS)

    def use(client: Client) -> None:
        process = Process(Caller(client), q, capacity)
        for _ in range(size.steps):
            client.call(NAME, "step", None, process.step)

    simulation.client(use, "user-0")
    return [no_watch_left_behind, sound(q)]


def key_of(item: Any) -> str:
    return str(item[0])


class Process:
    def __init__(self, caller: Caller, q: FairQueue, capacity: int | None) -> None:
        self._caller, self._q, self._capacity, self._random = caller, q, capacity, caller.random
        self._entries: list[Entry] = []
        self._turns = Turns(WEIGHTS)
        self._number = 0

    def step(self) -> None:
        getattr(self, f"_{self._random.choice(VERBS)}")()
        if self._random.random() < LOOKED:
            run(self._caller.client.db, self._look)

    # Calls.

    def _put(self) -> None:
        self._add(self._q.put, self._capacity)

    def _give_back(self) -> None:
        self._add(self._q.give_back, None)

    def _add(self, put: Any, capacity: int | None) -> None:
        self._number += 1
        entry = Entry(f"{self._number:05}", self._random.choice(KEYS), self._random.choice((1, 1, 1, 2, 5)))
        item, size = [entry.key, entry.id * self._random.choice((1, 4))], len(self._entries)
        found = self._caller.answer(lambda tr: put(tr, item, cost=entry.cost))
        if capacity is not None and size >= capacity:
            full = FairQueueFull(item=item, current_size=size, capacity=capacity)
            require_equal("put", (type(found), str(found)), (type(full), str(full)))
            return
        require_equal("put", found, None)
        self._entries.append(entry)
        self._turns.meet(self._entries)

    def _get(self) -> None:
        found = self._caller.answer(self._q.take_item)
        firsts = {entry.key: entry for entry in reversed(self._entries)}
        if not firsts:
            require_equal("take", found, (False, None))
            return
        entry = min(firsts.values(), key=self._turns.place)
        assert found[0], f"take: nothing, and right is {entry}"
        require_equal("take", [found[1][0], found[1][1][:5]], [entry.key, entry.id])
        self._turns.take_next(entry)
        self._entries.remove(entry)
        self._turns.meet(self._entries)

    # Looks.

    def _look(self, tr: Any) -> None:
        require_equal("size", self._q.size(tr), len(self._entries))
        keys = Counter(entry.key for entry in self._entries)
        told = {one.key: one.ready for one in self._q.key_statistics(tr, len(KEYS))}
        require_equal("keys", told, dict(keys))
        require_equal("snapshot", self._listed(tr), sorted(entry.id for entry in self._entries))

    def _listed(self, tr: Any) -> list[str]:
        """The items of all pages, which go by arrival."""
        found = list[str]()
        for page in every_page(lambda after: self._q.snapshot(tr, self._random.choice(PAGES), after=after)):
            items = [*page.round, *(item for _, items in page.lines for item in items)]
            found += sorted(item[1][:5] for item in items)
        return found
