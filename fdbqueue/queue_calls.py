"""What one process keeps for one queue of one database: its combined calls and its place in the line."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fdbqueue import limits
from fdbqueue.combine import Call, CallState, Combiner
from fdbqueue.database import Database, run
from fdbqueue.receipts import LostConflict, run_once
from fdbqueue.recipe import Recipe, Taken
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Future, Transaction
from fdbqueue.staging import Outcome
from fdbqueue.waiting import Hint, Place


class Calls(Protocol):
    """How a queue given a database works; an instance per process and database, shared by its threads."""

    def append(self, payloads: Sequence[bytes]) -> None: ...
    def take(self, count: int) -> Sequence[Any]:
        """Up to `count` items that are there now."""

    def wait(self, timeout_s: float) -> Sequence[Any]:
        """One item, waiting for it; nothing only if at the end there is none."""

    def close(self) -> None: ...


class QueueCalls:
    """Calls given a database: each has its effect once (receipts), those of several threads combine."""

    def __init__(self, database: Database, recipe: Recipe, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._recipe = recipe
        self._root = root
        self._hint = Hint(database)
        self._place: Place | None = None
        self._appends = Combiner(database.runtime, self._append_for)
        self._takes = Combiner(database.runtime, self._take_for)
        self._waits = Combiner(database.runtime, self._wait_for)

    def close(self) -> None:
        """Nothing to end: callers that wait in the line meet DatabaseClosed."""

    def append(self, payloads: Sequence[bytes]) -> None:
        self._appends.call(payloads, len(payloads), sum(map(len, payloads)))

    def take(self, count: int) -> Sequence[Any]:
        answer: Sequence[Any] = self._takes.call(None, count).answer
        return answer

    def wait(self, timeout_s: float) -> Sequence[Any]:
        call = self._waits.call(None, until=self._runtime.monotonic() + timeout_s)
        return call.answer if call.state is CallState.SETTLED else self.take(1)

    # The work of a leader, one round each.

    def _append_for(self, crew: Combiner, _: Call) -> None:
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        payloads = [payload for call in calls for payload in call.payload]
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run_once(
            self._database,
            self._root,
            lambda tr: self._recipe.append(tr, payloads, random),
            keep=lambda _: crew.deal(payloads, to_all=True),
        )

    def _take_for(self, crew: Combiner, leader: Call) -> None:
        if not self._take_in_turn(crew, to_all=True):
            place = self._new_place(crew)
            place.stand(crew, leader)
            self._hint.served_among(place.crowd)

    def _wait_for(self, crew: Combiner, leader: Call) -> bool:
        """Whether a request is left in the line: if nobody stood there any more, its item would lie."""
        if self._place is None:
            if self._take_in_turn(crew, to_all=False):
                return False
            self._place = self._new_place(crew)
        if self._place.stand(crew, leader) is Outcome.WAIT:
            return True
        self._hint.served_among(self._place.crowd)
        self._place = None
        return False

    def _take_in_turn(self, crew: Combiner, to_all: bool) -> bool:
        """Take for all callers in one transaction, without a request; False if they have to register."""
        for _ in range(0 if self._hint.is_fresh() else limits.PLAIN_ATTEMPTS_MAX):
            taken = self._attempt(crew, to_all)
            if taken is not None:
                return to_all or bool(taken.values)
        return False

    def _attempt(self, crew: Combiner, to_all: bool) -> Taken | None:
        """None if others won the race, or were served first: worth another attempt."""
        try:
            taken = run_once(
                self._database,
                self._root,
                lambda tr: self._take(tr, crew),
                wrote=lambda taken: taken.wrote,
                keep=lambda taken: _answer(crew, taken, to_all),
                yield_to_conflict=True,
            )
        except LostConflict:
            crew.release()
            return None
        if taken.served is not None and taken.served.duty:
            run(self._database, self._recipe.line.tell_the_head)
            self._hint.served_among(taken.served.crowd)
        return taken if taken.values or not taken.wrote else None

    def _take(self, tr: Transaction, crew: Combiner) -> Taken:
        # Claimed before anything is read: what is not there now may be told only to these.
        calls = crew.claim(limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX)
        return self._recipe.take_in_turn(tr, sum(call.count for call in calls), self._now_us())

    def _new_place(self, crew: Combiner) -> Place:
        calls = crew.claim(limits.SERVE_MAX, limits.BATCH_BYTES_MAX)
        count = min(sum(call.count for call in calls), limits.SERVE_MAX)
        return Place(self._database, self._root, self._recipe.line, count)

    def _now_us(self) -> int:
        return round(self._runtime.now() * 1_000_000)


def _answer(crew: Combiner, taken: Taken, to_all: bool) -> None:
    if taken.wrote and not taken.values:  # it served others, and has to look again
        crew.release()
    else:
        crew.deal(taken.values, to_all=to_all and not taken.cut_short)


class SimpleCalls:
    """The recipe as FoundationDB's documentation has it: plain takes, retried on conflict; for comparison."""

    def __init__(self, database: Database, recipe: Recipe, root: RootKeys) -> None:
        self._database = database
        self._runtime = database.runtime
        self._recipe = recipe
        self._root = root

    def close(self) -> None:
        """Nothing to end."""

    def append(self, payloads: Sequence[bytes]) -> None:
        random = self._runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run_once(self._database, self._root, lambda tr: self._recipe.append(tr, payloads, random))

    def take(self, count: int) -> Sequence[Any]:
        return self._take(count, watch=False).values

    def wait(self, timeout_s: float) -> Sequence[Any]:
        """One item; every waiter wakes at every change, and they race."""
        until = self._runtime.monotonic() + timeout_s
        while True:
            look = self._take(1, watch=True)
            left = until - self._runtime.monotonic()
            if look.watch is None:
                return look.values
            if left > 0:
                self._runtime.wait_any([look.watch], min(left, limits.LOOK_EVERY_S))
            look.watch.cancel()
            if left <= 0:
                return ()

    def _take(self, count: int, watch: bool) -> "SimpleLook":
        def body(tr: Transaction) -> SimpleLook:
            taken = self._recipe.take(tr, count, round(self._runtime.now() * 1_000_000))
            # Of a transaction that writes nothing: beside a write, a watch is a read that conflicts.
            unseen = watch and not taken.wrote
            return SimpleLook(taken.values, tr.watch(self._recipe.doorbell) if unseen else None)

        return run_once(self._database, self._root, body, wrote=lambda look: bool(look.values))


@dataclass(frozen=True)
class SimpleLook:
    """What a simple take got, or the watch that tells when to take again."""

    values: Sequence[Any]
    watch: Future | None
