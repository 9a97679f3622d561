"""A persistent queue and its proxies in one process: each answer and each item equal those of a plain model.

Proxies fetch items, ack them in any order, and close; transactions commit, fail, or lose an item to an
operator; the next client of the same owner begins with the items that the one before it has not acked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, Full
from random import Random
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import NothingToAck, NotUnacked, OwnerReplaced
from fdbqueue.queues.persistent import PersistentQueue, Proxy
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.exact_model import require_equal, step_by_step

NAME, OWNER = "exact_persistent", "owner"
VERBS = (*("put",) * 5, *("get",) * 5, *("ack",) * 3, "task_done", *("together",) * 3, "connect", "close")
PROXIES_MAX, REOPENED, LOOKED, LOST = 4, 0.04, 0.4, 0.15
TTR_S = 1_000.0  # no session dies: the workload `proxies` has those that do
ERRORS = (Empty, Full, NotUnacked, NothingToAck, OwnerReplaced)


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_persistent(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact persistent")
    simulation.limit(VERB_BATCH=random.choice((1, 2, 8)), TAKEN_READ_MAX=random.choice((1, 2, 50)))
    maxsize = random.choice((0, 3))

    def made(client: Client) -> Process:
        return Process(client, maxsize, Random(f"{simulation.seed} lost items"))

    step_by_step(simulation, size, made, NAME, Process.close_all)
    return [no_watch_left_behind]


# Calls.


class Crash(Exception):
    """Raised in a transaction that is not to commit."""


@dataclass
class Known:
    """A proxy, and the items that it has fetched and not acked, in order."""

    proxy: Proxy
    unacked: list[int] = field(default_factory=list)


class Process:
    def __init__(self, client: Client, maxsize: int, losses: Random) -> None:
        """`losses`: dice of their own, for the transactions that lose an item."""
        self._client, self._random, self._maxsize = client, client.random, maxsize
        self._losses = losses
        self._waiting: list[int] = []
        """The items that wait. An item is its number, so they lie in this order."""
        self._number = 0
        self._queue = self._opened()
        self._proxies = [Known(self._queue)]
        self._tasks = TaskQueue.open(client.db, NAME)

    def _opened(self) -> PersistentQueue:
        return PersistentQueue(self._client.db, NAME, self._maxsize, OWNER, ttr=TTR_S)

    def close_all(self) -> None:
        self._queue.close()

    def step(self) -> None:
        rarely = self._random.random() < REOPENED
        self._reopen() if rarely else getattr(self, f"_{self._random.choice(VERBS)}")(self._one())
        if self._random.random() < LOOKED:
            self._look()

    def _one(self) -> Known:
        return self._random.choice(self._proxies)

    def _new(self) -> int:
        self._number += 1
        return self._number

    def _has_room(self, more: int) -> bool:
        return not self._maxsize or not more or len(self._waiting) + more <= self._maxsize

    def _back(self, items: list[int]) -> None:
        self._waiting = sorted([*self._waiting, *items])

    # Calls.

    def _put(self, known: Known) -> None:
        item, has_room = self._new(), self._has_room(1)
        require_equal("put", caught(known.proxy.put_nowait, item), None if has_room else Full)
        self._waiting += [item] if has_room else []

    def _get(self, known: Known) -> None:
        require_equal("get", caught(known.proxy.get_nowait), self._fetched(known))

    def _fetched(self, known: Known) -> Any:
        if not self._waiting:
            return Empty
        known.unacked.append(self._waiting.pop(0))
        return known.unacked[-1]

    def _ack(self, known: Known) -> None:
        item = self._random.choice([*known.unacked, *self._one().unacked, self._number])
        is_here = item in known.unacked
        require_equal("ack", caught(known.proxy.ack, item), None if is_here else NotUnacked)
        known.unacked = [one for one in known.unacked if one != item]

    def _task_done(self, known: Known) -> None:
        require_equal("task_done", caught(known.proxy.task_done), None if known.unacked else NothingToAck)
        known.unacked = known.unacked[1:]

    def _together(self, known: Known) -> None:
        """A transaction of a get, puts and acks, which may fail at its end."""
        puts, acks = self._random.choice((0, 1, 2)), self._random.choice((0, 1, 2))
        items, crashes = [self._new() for _ in range(puts)], self._random.random() < 0.3
        before, held, fetched, lost = list(known.unacked), len(known.unacked), list[Any](), list[int]()

        def body() -> None:
            with known.proxy.transaction():
                fetched.append(caught(known.proxy.get_nowait))
                for item in items:
                    known.proxy.put_nowait(item)
                for _ in range(acks):
                    caught(known.proxy.task_done)
                if crashes:
                    raise Crash
                lost.extend(self._lose(fetched[0]))

        found = caught(body, more=(Crash,))
        require_equal("get in a transaction", fetched, [self._fetched(known)])
        has_room = self._has_room(puts)
        right = Crash if crashes else NotUnacked if lost else None if has_room else Full
        require_equal("transaction", found, right)
        known.unacked = [item for item in known.unacked if item not in lost]
        if found is None:
            known.unacked = known.unacked[acks:]
            self._waiting += items
        else:
            self._back(known.unacked[held:])
            known.unacked = before

    def _lose(self, item: Any) -> list[int]:
        """Mostly nothing; else an operator deletes the item that the transaction has fetched."""
        if item is Empty or self._losses.random() >= LOST:
            return []
        taken = run(self._client.db, lambda tr: self._tasks.tasks(tr, "t", 100))
        self._tasks.delete(self._client.db, next(task.id for task in taken if task.data == item))
        return [item]

    def _connect(self, _: Known) -> None:
        if len(self._proxies) < PROXIES_MAX:
            self._proxies.append(Known(self._queue.connect()))

    def _close(self, known: Known) -> None:
        if known.proxy is not self._queue:
            known.proxy.close()
            self._back(known.unacked)
            self._proxies.remove(known)

    def _reopen(self) -> None:
        """The next client of the owner. The one before it fetches nothing more."""
        old, self._queue = self._queue, self._opened()
        for known in self._proxies:
            self._back(known.unacked)
        self._proxies = [Known(self._queue)]
        require_equal("get of the client before", caught(old.get_nowait), OwnerReplaced)
        old.close()

    # Looks.

    def _look(self) -> None:
        few, most = len(self._waiting), self._maxsize
        told = (self._queue.qsize(), self._queue.empty(), self._queue.full())
        require_equal("sizes", told, (few, not few, 0 < most <= few))
        for known in self._proxies:
            require_equal("unacked", known.proxy.unacked, known.unacked)
        page = run(self._client.db, lambda tr: self._tasks.tasks(tr, "r", 100))
        require_equal("the items that wait", [task.data for task in page], self._waiting)


def caught(call: Any, *arguments: Any, more: tuple[type[Exception], ...] = ()) -> Any:
    """The answer of a call, or the class of its error."""
    errors: tuple[type[Exception], ...] = (*ERRORS, *more)
    try:
        return call(*arguments)
    except errors as error:
        return type(error)
