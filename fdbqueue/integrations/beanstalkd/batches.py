"""Batches: the commands of all connections in shared transactions, one after the other.

While one transaction commits, commands of other connections arrive: they are the next batch. So a commit, and
its sync to the disk, is shared by as many commands as connections wait. A command is answered after the
commit. The commands of one connection are never in the same batch, so a batch may put them in any order: puts
first, then the ends of jobs, then all else, and reserves last.

If a batch fails, each of its commands is tried again alone, and only the one at fault is refused.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
from fdbqueue.integrations.beanstalkd.jobs import Held, Jobs, New, Numbers, Taken

Done = Callable[[Any], None]
"""Is given the answer of a command, or the reply that tells of its failure."""


class Put(Struct, eq=False):
    """Answered with the number of the job."""

    tube: str
    job: New
    done: Done


class End(Struct, eq=False):
    """Delete a job that the connection holds."""

    tube: str
    held: Held
    done: Done


class Verb(Struct, eq=False):
    """Any other command that changes something. `tubes`: those whose queues it uses."""

    verb: Callable[[Transaction, Numbers, Session], Any]
    done: Done
    tubes: Sequence[str] = ()


class Want(Struct, eq=False):
    """A reserve: answered with a `Taken`, or None if there is no job."""

    tubes: Sequence[str]
    done: Done


Item = Put | End | Verb | Want
Answers = list[tuple[Item, Any]]


class _Outcome(Struct):
    """The answers of one attempt, and the new numbers that it has used."""

    answers: Answers
    numbers: int
    wrote: bool
    is_durable: bool
    """False if it has only reserved: a power cut ends those leases in any case."""


_log = logger(__name__)
_tube = attrgetter("tube")
_STALE = (QueueDropped, QueueNotFound, UnknownSession)
"""A queue that was dropped, or a session that has ended: the second attempt opens another one."""


class Batches:
    def __init__(self, database: Database, jobs: Jobs) -> None:
        self._database = database
        self._jobs = jobs
        self._waiting: deque[Item] = deque()
        self._arrival = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, item: Item) -> None:
        self._waiting.append(item)
        self._idle.clear()
        self._arrival.set()

    async def drained(self) -> None:
        """Wait until all commands are answered."""
        await self._idle.wait()

    async def run(self) -> None:
        """Answer commands, until this is cancelled."""
        while True:
            if not self._waiting:
                self._idle.set()
                self._arrival.clear()
                await self._arrival.wait()
            items = self._next()
            answers = await self._database.hub.call(partial(self._perform, items), Unheard())
            for item, answer in answers:
                item.done(answer)

    def _next(self) -> list[Item]:
        """The first commands, as many as one transaction may carry."""
        items, size_bytes = list[Item](), 0
        while self._waiting and len(items) < limits.BATCH_ITEMS_MAX:
            item = self._waiting[0]
            size_bytes += len(item.job.body) if isinstance(item, Put) else 0
            if items and size_bytes > limits.BATCH_BYTES_MAX:
                break
            items.append(self._waiting.popleft())
        return items

    # In a fiber.

    def _perform(self, items: Sequence[Item]) -> Answers:
        try:
            return self._once(items)
        except SURVIVED as error:
            if not heals(error):
                raise
            if len(items) > 1:
                return [answer for item in items for answer in self._perform([item])]
            return [(items[0], self._alone(items[0], error))]

    def _alone(self, item: Item, error: BaseException) -> Any:
        """The answer of a command that has failed alone: at a second attempt, or a refusal."""
        if isinstance(error, TooMuchToSweep):  # a reserve that waits will find the jobs
            return None
        for tube in item.tubes if isinstance(item, Verb | Want) else (item.tube,):
            self._jobs.forget(tube)
        if isinstance(error, _STALE):
            try:
                return self._once([item])[0][1]
            except SURVIVED as again:
                error = again
        return refusal(error)

    def _once(self, items: Sequence[Item]) -> Answers:
        jobs = self._jobs
        first, session = jobs.require_numbers(len(items)), jobs.session()
        for tube in {tube for item in items for tube in _tubes_of(item)}:
            jobs.calls(tube)  # outside of the transaction, which may have to make the queue
        outcome: _Outcome = run_once(
            jobs.database,
            jobs.root_keys,
            partial(self._body, items=items, session=session, first=first),
            wrote=attrgetter("wrote"),
            may_be_lost=lambda outcome: not outcome.is_durable,
        )
        jobs.use_numbers(outcome.numbers)
        jobs.keep_noted()
        return outcome.answers

    def _body(self, tr: Transaction, items: Sequence[Item], session: Session, first: int) -> _Outcome:
        self._jobs.begin()
        numbers = count(first)
        answers: Answers = []
        for tube, puts in _by_tube(items, Put):
            new = [put.job for put in puts]
            answers += zip(puts, self._jobs.put(tr, tube, new, numbers), strict=True)
        for tube, ends in _by_tube(items, End):
            helds = [end.held for end in ends]
            answers += zip(ends, self._jobs.delete_held(tr, tube, helds), strict=True)
        others = [item for item in items if isinstance(item, Verb)]
        answers += [(item, item.verb(tr, numbers, session)) for item in others]
        is_durable = bool(answers)
        found = self._reserve(tr, [item for item in items if isinstance(item, Want)], session, numbers)
        took = any(answer is not None for _, answer in found)
        return _Outcome(answers + found, next(numbers) - first, is_durable or took, is_durable)

    def _reserve(self, tr: Transaction, wants: Sequence[Want], session: Session, numbers: Numbers) -> Answers:
        """Give jobs to those that asked first."""
        found: Answers = []
        for tubes, few in groupby(sorted(wants, key=_names), _names):
            asking = list(few)
            if len(tubes) == 1:
                taken = self._jobs.take(tr, tubes[0], len(asking), session, numbers)
            else:
                taken = list(self._best(tr, tubes, len(asking), session, numbers))
            found += zip(asking, [*taken, *[None] * (len(asking) - len(taken))], strict=True)
        return found

    def _best(
        self, tr: Transaction, tubes: Sequence[str], wanted: int, session: Session, numbers: Numbers
    ) -> Iterator[Taken]:
        for _ in range(wanted):
            taken = self._jobs.take_best(tr, tubes, session, numbers)
            if not taken:
                return
            yield from taken


def _names(want: Want) -> tuple[str, ...]:
    return tuple(want.tubes)


def _tubes_of(item: Item) -> Sequence[str]:
    return item.tubes if isinstance(item, Verb | Want) else (item.tube,)


def _by_tube(items: Sequence[Item], kind: Any) -> Iterator[tuple[str, list[Any]]]:
    few = [item for item in items if isinstance(item, kind)]
    return ((tube, list(group)) for tube, group in groupby(sorted(few, key=_tube), _tube))


def refusal(error: BaseException) -> bytes:
    """The reply that tells of a failure, which is logged if it is not about room."""
    if isinstance(error, QueueFull | StorageFull | PayloadTooLarge):
        return protocol.OUT_OF_MEMORY
    _log.error("a command has failed: %s", traceback_of(error, error.__traceback__))
    return protocol.INTERNAL_ERROR
