"""Batches: the commands of all connections in shared transactions, one after the other.

While one transaction commits, commands of other connections arrive: they are the next batch. So a commit, and
its sync to the disk, is shared by as many commands as connections wait. A command is answered after the
commit. The commands of one connection are never in the same batch, so a batch has an order of its own: that
of `Kind`.

If a batch fails, each of its commands is tried again alone, and only the one at fault is refused.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import count, groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct

from fdbqueue.aio.database import Database
from fdbqueue.aio.hub import Unheard
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    PayloadTooLarge,
    QueueDropped,
    QueueFull,
    QueueNotFound,
    StorageFull,
    TooMuchToSweep,
    UnknownSession,
    heals,
)
from fdbqueue.core.logger import logger, traceback_of
from fdbqueue.core.once import run_once
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.jobs import Attempt, Jobs

BLOCK = 1_000
"""Numbers that a server reserves at a time."""


class Kind(IntEnum):
    """What a command does, in the order within a batch. Its argument is that of the verb in `_Batch`."""

    PUT = 0
    DELETE = 1
    CHANGE = 2
    LOOK = 3
    NUMBER = 4
    TAKE = 5


class Item(Struct, eq=False):
    """A command. Those of a batch with one kind and equal tubes share a call. It uses at most 1 number."""

    kind: Kind
    tubes: tuple[str, ...]
    argument: Any
    done: Callable[[Any], None]
    """Is given the answer, or the reply that tells of a failure."""


class _Outcome(Struct):
    """The answers of one attempt, in the order of its items, and the new numbers that it has used."""

    answers: list[Any]
    attempt: Attempt
    numbers: int
    wrote: bool
    is_durable: bool
    """False if it has only reserved: a power cut ends those leases in any case."""


_log = logger(__name__)
_kind_and_tubes = attrgetter("kind", "tubes")
_STALE = (QueueDropped, QueueNotFound, UnknownSession)
"""A queue that was dropped, or a session that has ended: the second attempt opens another one."""


class Batches:
    """The commands that wait, and those that run."""

    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._performer = Performer(jobs)
        self._waiting: deque[Item] = deque()
        self._arrival = asyncio.Event()

    def add(self, item: Item) -> None:
        self._waiting.append(item)
        self._arrival.set()

    async def run(self) -> None:
        """Answer commands, until this is cancelled."""
        while True:
            self._arrival.clear()
            while self._waiting:
                items = self._next()
                answers = await self._database.hub.call(partial(self._performer.perform, items), Unheard())
                for item, answer in zip(items, answers, strict=True):
                    item.done(answer)
            await self._arrival.wait()

    def _next(self) -> list[Item]:
        """The first commands, as many as one transaction can carry in its time, sorted."""
        items, size_bytes = list[Item](), 0
        while self._waiting and len(items) < limits.VERB_BATCH:
            item = self._waiting[0]
            size_bytes += len(item.argument.body) if item.kind is Kind.PUT else 0
            if items and size_bytes > limits.BATCH_BYTES_MAX:
                break
            items.append(self._waiting.popleft())
        return sorted(items, key=_kind_and_tubes)


class Performer:
    """Performs batches, in blocking code. It has the new numbers of this process."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._next = self._stop = 0
        self._verbs: dict[Kind, Callable[[Attempt, tuple[str, ...], Sequence[Any]], Sequence[Any]]] = {
            Kind.PUT: jobs.put,
            Kind.DELETE: jobs.delete_held,
            Kind.CHANGE: _each,
            Kind.LOOK: _each,
            Kind.NUMBER: jobs.numbered,
            Kind.TAKE: jobs.take,
        }

    def perform(self, items: Sequence[Item]) -> list[Any]:
        """The answers of commands that are sorted; in place of one that fails, the reply that tells of it."""
        try:
            return self._once(items)
        except SURVIVED as error:
            if not heals(error):
                raise
            if len(items) > 1:
                return [answer for item in items for answer in self.perform([item])]
            return [self._again(items[0], error)]

    def _again(self, item: Item, error: BaseException) -> Any:
        """The answer of a command that has failed alone: at a second attempt, or a refusal."""
        if isinstance(error, TooMuchToSweep):  # a reserve that waits will find the jobs
            return None
        for tube in item.tubes:
            self._jobs.forget(tube)
        if isinstance(error, _STALE):
            try:
                return self._once([item])[0]
            except SURVIVED as again:
                error = again
        return refusal(error)

    def _once(self, items: Sequence[Item]) -> list[Any]:
        jobs, session = self._jobs, self._jobs.session()
        self._require_numbers(len(items))
        for tube in {tube for item in items for tube in item.tubes}:
            jobs.calls(tube)  # outside of the transaction, which may have to make the queue
        outcome: _Outcome = run_once(
            jobs.database,
            jobs.root_keys,
            partial(self._body, items, session, self._next),
            wrote=attrgetter("wrote"),
            may_be_lost=lambda outcome: not outcome.is_durable,
        )
        self._next += outcome.numbers
        jobs.remember(outcome.attempt.noted)
        return outcome.answers

    def _body(self, items: Sequence[Item], session: Session, first: int, tr: Transaction) -> _Outcome:
        numbers, answers = count(first), list[Any]()
        attempt = Attempt(tr, session, numbers)
        for kind, tubes, few in _groups(items):
            answers += self._verbs[kind](attempt, tubes, [item.argument for item in few])
        used, is_durable = next(numbers) - first, items[0].kind < Kind.LOOK
        took = items[-1].kind is Kind.TAKE and any(answer is not None for answer in answers)
        return _Outcome(answers, attempt, used, is_durable or took or used > 0, is_durable)

    def _require_numbers(self, count: int) -> None:
        """Have at least `count` new numbers."""
        if self._stop - self._next < count:
            jobs, more = self._jobs, max(BLOCK, count)
            first = run_once(jobs.database, jobs.root_keys, lambda tr: jobs.keys.new_numbers(tr, more))
            if first != self._stop:  # another server has those behind ours
                self._next = first
            self._stop = first + more


def _groups(items: Sequence[Item]) -> Iterator[tuple[Kind, tuple[str, ...], list[Item]]]:
    for (kind, tubes), few in groupby(items, _kind_and_tubes):
        yield kind, tubes, list(few)


def _each(attempt: Attempt, _: tuple[str, ...], verbs: Sequence[Callable[[Attempt], Any]]) -> list[Any]:
    return [verb(attempt) for verb in verbs]


def refusal(error: BaseException) -> bytes:
    """The reply that tells of a failure, which is logged if it is not about room."""
    if isinstance(error, QueueFull | StorageFull | PayloadTooLarge):
        return protocol.OUT_OF_MEMORY
    _log.error("a command has failed: %s", traceback_of(error, error.__traceback__))
    return protocol.INTERNAL_ERROR
