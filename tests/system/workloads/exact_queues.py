"""Queues without tasks in one process: elements with locks, and items with costs in rounds.

Items have costs, keys have weights, and the queue may be full. So each take tells whether its round is right.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import (
    CannotLock,
    ElementNotFound,
    ElementNotLocked,
    FairQueueFull,
    LockLost,
    QueueLockError,
)
from fdbqueue.core.page import every_page
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.fair import FairQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import sound
from tests.system.workloads.common import SPACE, cramped, draw_limits
from tests.system.workloads.exact_model import Caller, earliest, require_equal, right, step_by_step
from tests.system.workloads.task_model import Turns

ELEMENTS = "exact_elements"
SCHEMA = {"body": "string"}
VERBS = (*("add",) * 3, *("acquire",) * 4, *("of_a_lock",) * 6, "touch", "dequeue", "peek", *("purge",) * 2)
LOCK_S = 5.0
GONE = "there is no such element"
FAIR = "exact_fair"
KEYS = ("gold", "silver", "a", "b", "c")
WEIGHTS = {"gold": 3, "silver": 2}
FAIR_VERBS = (*("put",) * 6, *("get",) * 5, "give_back")
LOOKED, PAGES = 0.4, (2, 9)


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_elements(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """An element queue in one process with a clock that stands still in each call: its elements, their locks,
    the answers and the errors equal those of a plain model. Locks are purged at the microsecond of their
    age.
    """
    random = Random(f"{simulation.seed} exact elements")
    simulation.limit(PAYLOAD_PIECE_BYTES_MAX=random.choice((8, 90_000)))
    is_named, batch = random.random() < 0.5, random.choice((1, 2, 100))

    def made(client: Client) -> ElementProcess:
        caller, own = Caller(client), ElementQueue(SPACE[ELEMENTS], SCHEMA, maxelts=batch)
        return ElementProcess(caller, ElementQueue.named(client.db, ELEMENTS, SCHEMA) if is_named else own)

    step_by_step(simulation, size, made)
    return [no_watch_left_behind, *([] if is_named else [sound(ElementQueue(SPACE[ELEMENTS], SCHEMA))])]


# Calls.


class Deeds:
    def __init__(self, caller: Caller, q: ElementQueue) -> None:
        self._caller, self._q, self._random = caller, q, caller.random
        self._now = caller.clock.now
        self._elements: dict[str, str] = {}
        self._locks: dict[str, tuple[int, Any]] = {}
        """The times of locks, and their tokens."""
        self._tokens: list[tuple[str, Any]] = [("00000000/00000000000000", None)]

    def _call(self, what: str, verb: Callable[[Any], Any], answer: Callable[[], Any]) -> Any:
        found = self._caller.answer(verb)
        require_equal(what, found, right(answer))
        return found

    def add(self) -> None:
        body = "x" * self._random.choice((0, 3, 30))
        name = self._caller.answer(lambda tr: self._q.add(tr, {"body": body}))
        assert name not in self._elements, f"add: {name!r} is there"
        self._elements[name] = body
        self._tokens.append((name, None))

    def _name(self) -> str:
        return self._random.choice(self._tokens[-9:])[0]

    def acquire(self) -> None:
        name, permissive = self._name(), self._random.choice((True, True, False))
        found = self._caller.answer(lambda tr: self._q.acquire(tr, name, permissive))
        refused = self._refusal(name)
        if not refused:
            assert isinstance(found, str), f"acquire {name}: {found!r}, and right is a token"
            self._locks[name] = (self._now, found)
            self._tokens.append((name, found))
        else:
            wanted = None if permissive else CannotLock(name=name, reason=refused)
            require_equal(f"acquire {name}", found, wanted)

    def _refusal(self, name: str) -> str:
        if name not in self._elements:
            return GONE
        return "it is locked" if name in self._locks else ""

    def of_a_lock(self) -> None:
        """Get, unlock or remove an element, under any lock or under that of a token."""
        (name, token), verb = (
            self._random.choice(self._tokens[-9:]),
            self._random.choice(("get", "get", "unlock", "remove")),
        )
        call = partial(getattr(self._q, verb), name=name, token=token)
        self._call(f"{verb} {name} by {token}", call, partial(self._under_lock, verb, name, token))

    def _under_lock(self, verb: str, name: str, token: Any) -> Any:
        if name not in self._locks:
            reason = "" if name in self._elements else f": {GONE}"
            raise ElementNotLocked(action=verb, name=name, reason=reason)
        if token is not None and self._locks[name][1] != token:
            raise LockLost(action=verb, name=name)
        if verb == "get":
            return {"body": self._elements[name]}
        del self._locks[name]
        if verb == "unlock":
            return True
        del self._elements[name]
        return None

    def touch(self) -> None:
        name = self._name()
        self._call(f"touch {name}", lambda tr: self._q.touch(tr, name), lambda: self._touched(name))

    def _touched(self, name: str) -> None:
        if name not in self._elements:
            raise ElementNotFound(action="touch", name=name)
        if name in self._locks:
            self._locks[name] = (self._now, self._locks[name][1])

    def dequeue(self) -> None:
        name = self._name()
        self._call(
            f"dequeue {name}", lambda tr: self._q.dequeue(tr, name), lambda: self._unlocked(name, True)
        )

    def peek(self) -> None:
        name = self._name()
        look = partial(self._q.get_element, name=name)
        self._call(f"get_element {name}", look, lambda: self._unlocked(name, False))

    def _unlocked(self, name: str, is_removed: bool) -> Any:
        refused = self._refusal(name)
        if refused:
            raise QueueLockError(name=name, reason=refused)
        body = self._elements.pop(name) if is_removed else self._elements[name]
        return {"body": body}

    def purge(self) -> None:
        span_s = self._random.choice((LOCK_S, LOCK_S, 0))
        self._caller.answer(lambda tr: self._q.purge(tr, maxlock=span_s))
        before = self._now - round(span_s * 1_000_000)
        if span_s:
            self._locks = {name: lock for name, lock in self._locks.items() if lock[0] >= before}


class ElementProcess(Deeds):
    def step(self) -> None:
        self._move()
        verb = self._random.choice(VERBS)
        self._caller.client.call(ELEMENTS, f"to {verb}", self._now, getattr(self, verb))
        db, names = self._caller.client.db, sorted(self._elements)
        require_equal("count", self._caller.answer(self._q.count), len(names))
        require_equal("names", list(self._q.names(db)), names)

    def _move(self) -> None:
        ends = [since + round(LOCK_S * 1_000_000) for since, _ in self._locks.values()]
        following = earliest(*(end for end in ends if end >= self._now))
        if following is not None and self._random.random() < 0.3:
            self._now = max(self._now, following + self._random.choice((-1, 0, 1)))
        else:
            self._now += self._random.choice((0, 0, 1, 400_000))
        self._caller.clock.move_to(self._now)


class Entry(NamedTuple):
    """An item. The text of its number is its place among all."""

    id: str
    key: str
    cost: int


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_fair(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """A FairQueue in one process: each item, each answer and each look equal those of a plain model."""
    cramped(simulation)
    random = Random(f"{simulation.seed} exact fair")
    draw_limits(
        simulation,
        random,
        KEY_LEVEL_MIN=(1, limits.KEY_LEVEL_MIN),
        PLAIN_ATTEMPTS_MAX=(1, limits.PLAIN_ATTEMPTS_MAX),
        BATCH_BYTES_MAX=(50, limits.BATCH_BYTES_MAX),
    )
    capacity = random.choice((None, 6))
    q = FairQueue(SPACE[FAIR], key=key_of, capacity=capacity, weights=WEIGHTS)
    step_by_step(simulation, size, lambda client: FairProcess(Caller(client), q, capacity), FAIR)
    return [no_watch_left_behind, sound(q)]


def key_of(item: Any) -> str:
    return str(item[0])


class FairProcess:
    def __init__(self, caller: Caller, q: FairQueue, capacity: int | None) -> None:
        self._caller, self._q, self._capacity, self._random = caller, q, capacity, caller.random
        self._entries: list[Entry] = []
        self._turns = Turns(WEIGHTS)
        self._number = 0

    def step(self) -> None:
        getattr(self, f"_{self._random.choice(FAIR_VERBS)}")()
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
