"""The stored half of a persistent queue, shared by all its proxies: puts with a bound, acks, counts.

maxsize belongs to the opener, not to the queue. A put waits until fewer than maxsize items wait. Puts never
exceed it if all of them give one; if these differ, the largest counts. Items that come back to the queue
never wait.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue import limits
from fdbqueue.arguments import checked_payload
from fdbqueue.calls.once import run_once
from fdbqueue.database import Database, run
from fdbqueue.persistent.work import Work, do, live_counters, release, unfinished_in, waiting_in
from fdbqueue.runtime import Stop
from fdbqueue.seam import Future, Transaction
from fdbqueue.sessions.keeper import Keeper, keeper_of
from fdbqueue.task import Task
from fdbqueue.tasks.calls import TaskCalls, calls_of, require_alone
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.room import Room
from fdbqueue.tasks.shape import Shape


class Stored:
    def __init__(self, database: Database, shape: Shape, maxsize: int) -> None:
        self.database = database
        self.runtime = database.runtime
        self.shape = shape
        self.maxsize = maxsize

    @property
    def calls(self) -> TaskCalls:
        # Looked up each time: a forked child has services of its own.
        return calls_of(self.database, self.shape)

    @property
    def _keeper(self) -> Keeper:
        return keeper_of(self.database, self.shape.root)

    def draft(self, item: Any) -> Draft:
        """Raises: TypeError for an item that the codec cannot carry; PayloadTooLarge."""
        payload = checked_payload(self.shape.codec.encode(item))
        return self.shape.draft(item, payload, {})

    def put(self, draft: Draft, until: float | None, stop: Stop | None) -> bool:
        """False if there was no room `until` then, None for ever. Raises: WaitStopped once `stop` is set;
        UnsupportedOption if the queue has got partitions.
        """
        if self.maxsize > 0:
            return self.do(Work(puts=[draft]), until, [] if stop is None else [stop])
        self.calls.put_alone(draft, stop)
        return True

    def do(
        self,
        work: Work,
        until: float | None,
        stops: Sequence[Stop] = (),
        keep: Callable[[bool], None] = lambda _: None,
    ) -> bool:
        """Do the work. False if there was no room for the puts `until` then, None for ever; then nothing is
        done.

        `keep` hears of the result as soon as it is known, even if this thread is interrupted.
        Raises: NotTaken, TooMuchForOneTransaction; WaitStopped once one of `stops` is set.
        """
        work.require_bounded()
        room = Room(self.database, self.calls.parts.holding, waiting_in, lambda: self.maxsize, len(work.puts))
        attempt = partial(self._do, work, keep)
        with self.database.waiter(*stops) as waiter:
            return room.put(attempt, float("inf") if until is None else until, waiter) is None

    def release(self, tasks: Sequence[Task]) -> None:
        """Give tasks back to their old places, limits.VERB_BATCH at a time; not those lost since."""
        for start in range(0, len(tasks), limits.VERB_BATCH):
            self.calls.once(partial(release, tasks=tasks[start : start + limits.VERB_BATCH]))

    def waiting(self) -> int:
        """The number of items that wait. Overdue sessions are ended before the answer is zero.

        Reads: one key, by snapshot; the definition.
        Conflicts: none.
        """
        return self._waiting_now() or self._keeper.try_again(self._waiting_now, self._ask_any) or 0

    def _waiting_now(self) -> int | None:
        """As `waiting`, with None for zero."""
        return run(self.database, lambda tr: waiting_in(self._live(tr))) or None

    def _ask_any(self, tr: Transaction) -> Callable[[], bool]:
        return lambda: waiting_in(self._live(tr)) > 0

    def wait_until_finished(self, stop: Stop | None) -> None:
        """Wait until every task is gone or buried. A task that cannot be read is buried.

        Raises: WaitStopped once `stop` is set.
        """
        with self.database.waiter(stop) as waiter:
            while (changed := run(self.database, self._watch_unless_finished)) is not None:
                waiter.sleep([changed], limits.LOOK_EVERY_S)
                # The counters of a busy queue change a thousand times for each time that it runs empty.
                self.runtime.sleep(limits.JOIN_PAUSE_S)

    def _do(self, work: Work, keep: Callable[[bool], None]) -> NoRoom | None:
        calls = self.calls
        random = self.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        body = partial(do, work=work, maxsize=self.maxsize, random=random, ask_owner=calls.ask_owner)
        return run_once(
            self.database,
            self.shape.root,
            partial(calls.alone, verb=body),
            wrote=lambda full: full is None,
            keep=lambda full: keep(full is None),
        )

    def _live(self, tr: Transaction) -> bytes | None:
        calls = self.calls
        require_alone(calls.shape)
        return calls.source.look(tr, live_counters)

    def _watch_unless_finished(self, tr: Transaction) -> Future | None:
        return tr.watch(self.shape.keys.live) if unfinished_in(self._live(tr)) else None
