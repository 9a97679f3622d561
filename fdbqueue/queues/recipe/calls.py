"""The services of one process for one recipe queue of one database: combined calls, and takes in line."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.calls.once import run_once
from fdbqueue.core.calls.writes import writes
from fdbqueue.core.database import Database, run
from fdbqueue.core.line.taking import Takes
from fdbqueue.core.partitions.current import PartitionGone
from fdbqueue.core.partitions.parts import WIDE, Process, TakesOfParts
from fdbqueue.core.partitions.wide import Homes
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.queues.recipe.parts import RecipeParts, visited


class QueueCalls:
    """Calls that have their effect once (calls/once.py); those of several threads combine."""

    def __init__(self, database: Database, recipe: RecipeParts, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._root = root
        self.recipe = recipe
        """The items, by the plan of this database."""
        self._homes = Homes(database, root)
        self._process = b""
        """The name of this process among the homes, made when it is needed."""
        self._appends = writes(database, root, self._append)
        self._takes = TakesOfParts[Process](database.runtime, recipe, self._new_takes)
        self._all = Process()
        self._narrow = self._takes.of(self._all, 0)

    def close(self) -> None:
        """Does nothing: the database has ended the waits."""

    def is_needed(self) -> bool:
        return False

    def append(self, payloads: Sequence[bytes]) -> None:
        self._appends.call(payloads, len(payloads), sum(map(len, payloads)))

    def take(self, count: int, stop: Stop | None = None) -> Sequence[Any]:
        """Take up to `count` items that are there now.

        Raises: WaitStopped if `stop` is set; DatabaseClosed.
        """
        while True:
            plan = self.recipe.plan
            found = self._narrow.take(count, stop) if plan is None else self._first(count, stop)
            if found or (plan is None) == (self.recipe.plan is None):
                return found or self._none()

    def _first(self, count: int, stop: Stop | None) -> Sequence[Any]:
        """Take from the home, and then from all partitions."""
        for one in self._order():
            with suppress(PartitionGone):  # since its home was chosen
                if found := self._takes_of(one).take(count, stop):
                    return found
                self._homes.found_nothing(one)
        return ()

    def _order(self) -> Sequence[int]:
        plan = self.recipe.plan
        if plan is None:
            return (0,)
        self._process = self._process or self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        home = self._homes.next(plan.count, visited(plan), self._process)
        return (home, WIDE) if home < plan.high else (WIDE,)

    def wait(self, timeout_s: float, stop: Stop | None = None) -> Sequence[Any]:
        """Take one item, and wait for it. Empty only if there is none at the end.

        Raises: WaitStopped as soon as `stop` is set, DatabaseClosed as soon as the database closes.
        """
        until = self._runtime.monotonic() + timeout_s
        while True:
            plan = self.recipe.plan
            found = () if plan is None else self._first(1, stop)
            left_s = max(0.0, until - self._runtime.monotonic())
            found = found or self._takes_of(0 if plan is None else WIDE).wait(left_s, stop=stop)
            if found or (plan is None) == (self.recipe.plan is None):
                return found or self._none()

    def _takes_of(self, number: int) -> Takes:
        """The takes from a partition, or from all."""
        return self._takes.of(self._all, number)

    def _new_takes(self, _: Process, number: int, has_ended: Callable[[], bool]) -> Takes:
        if number == WIDE:
            line, taker = self.recipe.wide.line, self.recipe.wide.taker()
        else:
            line, taker = self.recipe.part(number).line, self.recipe.part(number).taker
        return Takes(self._database, self._root, line, taker.take_in_turn, has_ended=has_ended)

    def _none(self) -> Sequence[Any]:
        """An empty answer. Raises: the error of an item that was passed over, if one is left."""
        if self.recipe.has_passed():
            run(self._database, self.recipe.require_none_passed)
        return ()

    def _append(self, tr: Transaction, items: list[bytes], random: bytes) -> Sequence[bytes]:
        self.recipe.append(tr, items, random)
        return items


class SimpleCalls:
    """The recipe of FoundationDB's documentation: plain takes, retried after a conflict. For comparison."""

    def __init__(self, database: Database, recipe: RecipeParts, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self.recipe = recipe
        self._root = root

    def close(self) -> None:
        """Does nothing."""

    def is_needed(self) -> bool:
        return False

    def append(self, payloads: Sequence[bytes]) -> None:
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run_once(self._database, self._root, lambda tr: self.recipe.append(tr, payloads, random))

    def take(self, count: int, stop: Stop | None = None) -> Sequence[Any]:
        with self._database.waiter(stop):
            return self._take(count, watch=False).values

    def wait(self, timeout_s: float, stop: Stop | None = None) -> Sequence[Any]:
        """Take one item. Every waiter wakes at every change, and all of them race."""
        until = self._runtime.monotonic() + timeout_s
        with self._database.waiter(stop) as waiter:
            while True:
                look = self._take(1, watch=True)
                left = until - self._runtime.monotonic()
                if look.values:
                    return look.values
                if look.watch is not None:
                    waiter.sleep([look.watch], min(left, limits.LOOK_EVERY_S))
                if left <= 0:
                    return ()

    def _take(self, count: int, watch: bool) -> "SimpleLook":
        def body(tr: Transaction) -> SimpleLook:
            taken = self.recipe.take(tr, count, self._runtime.now_us())
            # Only without a write: beside a write, a watch is a read that conflicts.
            unseen = watch and not taken.wrote
            return SimpleLook(taken.values, tr.watch(self.recipe.doorbell) if unseen else None)

        return run_once(self._database, self._root, body, wrote=lambda look: bool(look.values))


@dataclass(frozen=True)
class SimpleLook:
    """The items of a simple take, or the watch that fires when it is time to take again."""

    values: Sequence[Any]
    watch: Future | None
    """None also for a take without an item that has set a damaged one aside: take again at once."""
