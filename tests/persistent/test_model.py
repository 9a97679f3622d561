"""Any call of any proxy at any time, against a plain model: lists, and nothing else."""

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Empty, Full
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import fdbqueue
from fdbqueue import PersistentQueue, Proxy
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import end_the_dead
from tests.conftest import SLOW
from tests.tasks.support import StillClock, keeper

TTR_S = 10
Place = tuple[int, Any]
"""An item with the place in the queue that it keeps for life."""

items = st.sampled_from([1, 2, None, "a", ["l"]])
which = st.integers(0, 3)
steps = st.lists(st.tuples(st.sampled_from(["put", "get", "ack", "task_done"]), items), max_size=6)


class Crash(Exception):
    pass


@dataclass
class Model:
    """What waits, in order, and what each proxy has fetched, in the order of fetching."""

    maxsize: int
    waiting: list[Place] = field(default_factory=list)
    unacked: list[list[Place]] = field(default_factory=lambda: [[]])
    last: int = 0

    def put(self, item: Any) -> None:
        if 0 < self.maxsize <= len(self.waiting):
            raise Full
        self.last += 1
        self.waiting.append((self.last, item))

    def get(self, proxy: int) -> Any:
        if not self.waiting:
            raise Empty
        self.unacked[proxy].append(self.waiting.pop(0))
        return self.unacked[proxy][-1][1]

    def ack(self, proxy: int, item: Any) -> None:
        found = next((place for place in self.unacked[proxy] if place[1] == item), None)
        if found is None:
            raise KeyError(item)
        self.unacked[proxy].remove(found)

    def task_done(self, proxy: int) -> None:
        if not self.unacked[proxy]:
            raise ValueError
        self.unacked[proxy].pop(0)

    def give_back(self, proxy: int) -> None:
        for place in self.unacked[proxy]:
            insort(self.waiting, place, key=lambda place: place[0])
        self.unacked[proxy] = []


class Life(RuleBasedStateMachine):
    @initialize(maxsize=st.sampled_from([0, 0, 3]), owner=st.sampled_from([None, "me"]))
    def create(self, maxsize: int, owner: str | None) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.maxsize, self.owner = maxsize, owner
        self.model = Model(maxsize)
        self.proxies: list[Proxy] = [self._open()]

    def _open(self) -> PersistentQueue:
        return PersistentQueue(self.db, "model", self.maxsize, self.owner, ttr=TTR_S)

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()

    def _same(self, real: Callable[[], Any], modelled: Callable[[], Any]) -> None:
        """Both give the same, or refuse alike."""
        try:
            expected = modelled()
        except (Empty, Full, KeyError, ValueError) as refused:
            with pytest.raises(type(refused)):
                real()
        else:
            assert real() == expected

    def _pick(self, number: int) -> int:
        return number % len(self.proxies)

    @rule(number=which, item=items)
    def put(self, number: int, item: Any) -> None:
        proxy = self.proxies[self._pick(number)]
        self._same(lambda: proxy.put_nowait(item), lambda: self.model.put(item))

    @rule(number=which)
    def get(self, number: int) -> None:
        n = self._pick(number)
        self._same(self.proxies[n].get_nowait, lambda: self.model.get(n))

    @rule(number=which, item=items)
    def ack(self, number: int, item: Any) -> None:
        # Of equal ones an ack by identity means another: the model knows only equality.
        n, item = self._pick(number), list(item) if isinstance(item, list) else item
        self._same(lambda: self.proxies[n].ack(item), lambda: self.model.ack(n, item))

    @rule(number=which)
    def task_done(self, number: int) -> None:
        n = self._pick(number)
        self._same(self.proxies[n].task_done, lambda: self.model.task_done(n))

    @precondition(lambda self: len(self.proxies) < 4)
    @rule()
    def connect(self) -> None:
        root = self.proxies[0]
        assert isinstance(root, PersistentQueue)
        self.proxies.append(root.connect())
        self.model.unacked.append([])

    @precondition(lambda self: len(self.proxies) > 1)
    @rule(number=which, closed=st.booleans())
    def end(self, number: int, closed: bool) -> None:
        """Closed, or dropped, which the next look of another proxy notices."""
        n = 1 + number % (len(self.proxies) - 1)
        ended = self.proxies.pop(n)
        if closed:
            ended.close()
        self.model.give_back(n)
        self.model.unacked.pop(n)

    @rule()
    def lapse(self) -> None:
        """The process stalls for longer than its grace, is taken for dead, and goes on."""
        self.clock.advance(TTR_S)
        end_the_dead(self.db, RootKeys(DEFAULT_ROOT))
        keeper(self.db).tick()
        for n in range(len(self.proxies)):
            self.model.give_back(n)

    @precondition(lambda self: self.owner is not None)
    @rule()
    def reopen(self) -> None:
        self.proxies = [self._open()]
        for n in range(len(self.model.unacked)):
            self.model.give_back(n)
        self.model.unacked = [[]]

    @rule(number=which, does=steps, crash=st.booleans())
    def transaction(self, number: int, does: list[tuple[str, Any]], crash: bool) -> None:
        n = self._pick(number)
        after, puts = self._copy(), []
        try:
            with self.proxies[n].transaction() as proxy:
                for what, item in does:
                    if what == "put":
                        proxy.put_nowait(item)
                        puts.append(item)
                    elif what == "get":
                        self._same(proxy.get_nowait, lambda: after.get(n))
                    elif what == "ack":
                        self._same(lambda item=item: proxy.ack(item), lambda item=item: after.ack(n, item))  # type: ignore[misc]
                    else:
                        self._same(proxy.task_done, lambda: after.task_done(n))
                if crash:
                    raise Crash
        except Crash:
            return
        except Full:
            assert 0 < self.maxsize < len(after.waiting) + len(puts)
            return
        for item in puts:
            after.put(item)
        self.model = after

    def _copy(self) -> Model:
        model = self.model
        return Model(model.maxsize, list(model.waiting), [list(of) for of in model.unacked], model.last)

    @invariant()
    def everything_is_where_it_should_be(self) -> None:
        if not hasattr(self, "proxies"):
            return
        for proxy, unacked in zip(self.proxies, self.model.unacked, strict=True):
            assert proxy.unacked == [item for _, item in unacked]
            assert proxy.qsize() == len(self.model.waiting)
            assert proxy.full() == (0 < self.maxsize <= len(self.model.waiting))


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=600 if SLOW else 60, stateful_step_count=40, deadline=None, print_blob=True
)
