"""The stored half of a persistent queue, which all its proxies share: puts with a bound, acks, counts.

maxsize is the opener's, not the queue's: a put waits until fewer than so many items wait. It is not exceeded
by puts, if all who put give one (the largest, if they differ). What comes back to the queue never waits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.errors import PayloadTooLarge
from fdbqueue.persistent.settling import Work, release, settle, waiting_in
from fdbqueue.receipts import run_once
from fdbqueue.seam import Future, Transaction
from fdbqueue.task import Task
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.statistics import count_of


class Stored:
    def __init__(self, database: Database, shape: Shape, maxsize: int) -> None:
        self.database = database
        self.runtime = database.runtime
        self.shape = shape
        self.maxsize = maxsize

    @property
    def calls(self) -> TaskCalls:
        # Asked for each time: a forked child has its own.
        return calls_of(self.database, self.shape)

    def draft(self, item: Any) -> Draft:
        """Raises TypeError for what the codec cannot carry, PayloadTooLarge."""
        payload = self.shape.codec.encode(item)
        if len(payload) > limits.PAYLOAD_BYTES_MAX:
            raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
        return self.shape.draft(item, payload, {})

    def put(self, draft: Draft, until: float | None) -> bool:
        """False if there was no room `until` then, None for ever."""
        if self.maxsize > 0:
            return self.settle(Work(puts=[draft]), until)
        self.calls.put([draft], 0)
        return True

    def settle(self, work: Work, until: float | None, keep: Callable[[bool], None] = lambda _: None) -> bool:
        """False, and nothing is done, if there was no room for the puts `until` then, None for ever.

        `keep` is told as soon as it is known, even if this thread is interrupted. Raises NotTaken,
        TooMuchForOneTransaction.
        """
        work.require_bounded()
        while not self._settle(work, keep):
            # What can never fit is not waited for.
            patient = len(work.puts) <= self.maxsize
            if not patient or (until is not None and self.runtime.monotonic() >= until):
                return False
            self._wait_for_room(len(work.puts), until)
        return True

    def release(self, tasks: Sequence[Task]) -> None:
        """Give tasks back to their old places, in transactions of limits.VERB_BATCH; not those lost since."""
        for start in range(0, len(tasks), limits.VERB_BATCH):
            self.calls.once(partial(release, tasks=tasks[start : start + limits.VERB_BATCH]))

    def waiting(self) -> int:
        """How many items wait. Reads one key by snapshot, and the definition; conflicts with nothing."""
        return run(self.database, lambda tr: waiting_in(self._live(tr)))

    def wait_until_finished(self) -> None:
        """Until there is no task in any state."""
        while (changed := run(self.database, self._watch_unless_finished)) is not None:
            self._sleep(changed, limits.LOOK_EVERY_S)
            # The counters of a busy queue change a thousand times for each time that it runs empty.
            self.runtime.sleep(limits.JOIN_PAUSE_S)

    def _settle(self, work: Work, keep: Callable[[bool], None]) -> bool:
        calls = self.calls
        random = self.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        body = partial(settle, work=work, maxsize=self.maxsize, random=random, ask_owner=calls.ask_owner)
        return run_once(
            self.database,
            self.shape.root,
            lambda tr: calls.within(tr, body),
            wrote=lambda roomy: roomy,
            keep=keep,
        )

    def _live(self, tr: Transaction) -> bytes | None:
        check, live = self.shape.guard(tr), tr.snapshot.get(self.shape.keys.live)
        check()
        found: bytes | None = live.value
        return found

    def _wait_for_room(self, wanted: int, until: float | None) -> None:
        changed = run(self.database, lambda tr: self._watch_if_full(tr, wanted))
        if changed is not None:
            left = limits.LOOK_EVERY_S if until is None else until - self.runtime.monotonic()
            self._sleep(changed, min(limits.LOOK_EVERY_S, max(0.0, left)))

    def _watch_if_full(self, tr: Transaction, wanted: int) -> Future | None:
        full = waiting_in(self._live(tr)) + wanted > self.maxsize
        return tr.watch(self.shape.keys.live) if full else None

    def _watch_unless_finished(self, tr: Transaction) -> Future | None:
        return tr.watch(self.shape.keys.live) if count_of(self._live(tr)) else None

    def _sleep(self, changed: Future, seconds: float) -> None:
        self.runtime.wait_any([changed], seconds)
        changed.cancel()
