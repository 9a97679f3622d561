"""Batches: the commands of all connections in shared transactions, one after the other.

While one transaction commits, commands of other connections arrive: they are the next batch. So a commit, and
its sync to the disk, is shared by as many commands as connections wait. A command is answered after the
commit. The commands of one connection are never in the same batch, so a batch has an order of its own: that
of `Kind`.

If a batch fails, each of its commands is tried again alone, and only the one at fault is refused.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from itertools import count, groupby
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct

from fdbqueue.aio.hub import Hub, Unheard
from fdbqueue.core import limits
from fdbqueue.core.errors import TooMuchToSweep, heals
from fdbqueue.core.once import run_once
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd.jobs import Attempt, Jobs

BLOCK = 1_000
"""Numbers that a server reserves at a time."""


class Kind(IntEnum):
    """The work of a command, in its order within a batch. Its argument is one of the verb in `Batches`."""

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
    answer: "asyncio.Future[Any] | None" = None


class _Outcome(NamedTuple):
    answers: list[Any]
    numbers: int
    """New ones that it has used."""
    wrote: bool


_kind_and_tubes = attrgetter("kind", "tubes")


class Batches:
    """The commands that wait, and the new numbers of this process."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._waiting: deque[Item] = deque()
        self._arrival = asyncio.Event()
        self._next_number = self._stop = 0
        self._verbs: dict[Kind, Callable[[Attempt, Sequence[str], Sequence[Any]], list[Any]]] = {
            Kind.PUT: jobs.put,
            Kind.DELETE: jobs.delete_held,
            Kind.CHANGE: _each,
            Kind.LOOK: _each,
            Kind.NUMBER: jobs.numbered,
            Kind.TAKE: jobs.take,
        }

    async def ask(self, kind: Kind, argument: Any, *tubes: str) -> Any:
        """The answer of a command. Raises: its error."""
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(Item(kind, tubes, argument, answer))
        self._arrival.set()
        return await answer

    async def run(self, hub: Hub) -> None:
        """Answer commands, until this is cancelled."""
        while True:
            self._arrival.clear()
            while self._waiting:
                items = self._next()
                answers = await hub.call(partial(self.perform, items), Unheard())
                for item, answer in zip(items, answers, strict=True):
                    _resolve(item, answer)
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

    # In blocking code.

    def perform(self, items: Sequence[Item], again: bool = True) -> list[Any]:
        """The answers of commands that are sorted; in place of one that fails, its error.

        The second attempt opens another queue in place of one that was dropped, and another session.
        """
        try:
            return self._once(items)
        except SURVIVED as error:
            if not heals(error):
                raise
            if isinstance(error, TooMuchToSweep) and len(items) == 1:
                return [None]  # a reserve that waits will find the jobs
            for tube in _tubes_of(items):
                self._jobs.forget(tube)
            return [answer for item in items for answer in self.perform([item], False)] if again else [error]

    def _once(self, items: Sequence[Item]) -> list[Any]:
        jobs, session, first = self._jobs, self._jobs.session(), self._first_number(len(items))
        for tube in _tubes_of(items):
            jobs.calls(tube)  # outside of the transaction, which may have to make the queue
        outcome: _Outcome = run_once(
            jobs.database,
            jobs.root_keys,
            partial(self._body, items, session, first),
            wrote=attrgetter("wrote"),
            # A power cut ends the leases of reserves in any case.
            may_be_lost=lambda _: items[0].kind >= Kind.LOOK,
        )
        self._next_number += outcome.numbers
        return outcome.answers

    def _body(self, items: Sequence[Item], session: Session, first: int, tr: Transaction) -> _Outcome:
        numbers, answers = count(first), list[Any]()
        attempt = Attempt(tr, session, numbers)
        for (kind, tubes), few in groupby(items, _kind_and_tubes):
            answers += self._verbs[kind](attempt, tubes, [item.argument for item in few])
        used = next(numbers) - first
        took = items[-1].kind is Kind.TAKE and any(answer is not None for answer in answers)
        return _Outcome(answers, used, items[0].kind < Kind.LOOK or took or used > 0)

    def _first_number(self, wanted: int) -> int:
        """The first of `wanted` new numbers of this process."""
        if self._stop - self._next_number < wanted:
            jobs, more = self._jobs, max(BLOCK, wanted)
            first = run_once(jobs.database, jobs.root_keys, lambda tr: jobs.keys.new_numbers(tr, more))
            if first != self._stop:  # another server has those behind ours
                self._next_number = first
            self._stop = first + more
        return self._next_number


def _tubes_of(items: Iterable[Item]) -> set[str]:
    return {tube for item in items for tube in item.tubes}


def _each(attempt: Attempt, _: Sequence[str], verbs: Sequence[Any]) -> list[Any]:
    return [verb(attempt) for verb in verbs]


def _resolve(item: Item, answer: Any) -> None:
    if item.answer is None or item.answer.done():
        return
    if isinstance(answer, BaseException):
        item.answer.set_exception(answer)
    else:
        item.answer.set_result(answer)
