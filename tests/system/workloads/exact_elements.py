"""An element queue in one process with a clock that stands still in each call: its elements, their locks, the
answers and the errors equal those of a plain model. Locks are purged at the microsecond of their age.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.errors import CannotLock, ElementNotFound, ElementNotLocked, LockLost, QueueLockError
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.soundness import sound
from tests.system.workloads.common import SPACE
from tests.system.workloads.exact_calls import Caller, earliest, require_equal, right

NAME = "exact_elements"
SCHEMA = {"body": "string"}
VERBS = (
    *("add",) * 3,
    *("acquire",) * 4,
    *("of_a_lock",) * 6,
    "touch",
    "dequeue",
    "peek",
    *("purge",) * 2,
)
LOCK_S = 5.0
GONE = "there is no such element"


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_elements(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact elements")
    simulation.limit(PAYLOAD_PIECE_BYTES_MAX=random.choice((8, 90_000)))
    is_named, batch = random.random() < 0.5, random.choice((1, 2, 100))

    def use(client: Client) -> None:
        own = ElementQueue(SPACE[NAME], SCHEMA, maxelts=batch)
        process = Process(Caller(client), ElementQueue.named(client.db, NAME, SCHEMA) if is_named else own)
        for _ in range(size.steps):
            process.step()

    simulation.client(use, "user-0")
    return [no_watch_left_behind, *([] if is_named else [sound(ElementQueue(SPACE[NAME], SCHEMA))])]


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


class Process(Deeds):
    def step(self) -> None:
        self._move()
        verb = self._random.choice(VERBS)
        self._caller.client.call(NAME, f"to {verb}", self._now, getattr(self, verb))
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
