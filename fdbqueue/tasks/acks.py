"""Acks of one process combine, while one is under way: it runs by itself, and the leader (core/calls.py) acks
the tasks of all that have begun meanwhile, in one transaction. Each caller gets its own result: a stale lease
fails its own caller only. Those of a worker of one queue take tasks along (`Refill`).

A batch that fails as a whole is taken apart, and each ack gets a transaction of its own. This happens after
limits.ATTEMPTS_TOGETHER_MAX lost conflicts, or after an error that one of the acks causes. So an ack that
always conflicts (with a sweep, a heartbeat, another process at the same task key) does not hold up the
others.

Only acks join. The other verbs that end a lease are rarer, and have arguments of their own: a delay, a
failure. Heartbeats are batches already (`TaskQueue.renew`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Protocol

from msgspec import Struct

from fdbqueue.core import limits
from fdbqueue.core.calls import Call, Combiner
from fdbqueue.core.database import Database, conflict_in
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.once import LostConflict, Short, run_once, write_claimed
from fdbqueue.core.seam import TRIED_AGAIN, Transaction, engine_errors
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks import verbs
from fdbqueue.tasks.events import Callbacks
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.verbs import UNKNOWN, Target

_payload = attrgetter("payload")

Ended = Task | NotTaken | None
"""The result of an ack in a batch: the task, an error, or None if the ack needs a transaction of its own."""


def _noted() -> None:
    """A strict take notes no win."""


def _rests() -> bool:
    return True


class TakeAlong(Struct, frozen=True):
    take: Callable[[Transaction], Sequence[Task]]
    is_long: bool = False
    """True if it reads many tasks."""
    won: Callable[[], None] = _noted
    lost: Callable[[], bool] = _rests
    """Another taker was faster. True if the next take would lose, too."""


class Refill(Protocol):
    """Tasks that the acks of a worker take along for the threads that they free."""

    overtake: int
    """The number of older ready tasks that such a take may leave behind."""

    def begin(self, acks: int) -> tuple[Session, int] | None:
        """The session and the number of tasks to take with so many acks; None to take nothing now."""

    def add(self, tasks: Sequence[Task]) -> None:
        """These were taken."""

    def over(self, rests: bool) -> None:
        """The take that has begun is over. `rests`: it has failed, or others were faster: take none for a
        while.
        """


class Acks:
    def __init__(
        self,
        database: Database,
        parts: Parts,
        callbacks: Callbacks,
        taking: Callable[[Session, int, int], TakeAlong],
        refill: Refill | None = None,
    ) -> None:
        self._database = database
        self._parts = parts
        self._root = parts.shape.root
        self._callbacks = callbacks
        self._taking = taking
        self._refill = refill
        self._crew = Combiner(database.runtime, self._ack_for)
        self._short = Short()

    def ack(self, target: Target) -> Task:
        """Ack the task, alone or in a batch. Raises: NotTaken."""
        body = partial(self._parts.within, verb=partial(verbs.ack, target=target), id_=target.id)
        # A batch is bounded in tasks, but not in bytes: a payload that has to be read joins none.
        if target.data is UNKNOWN or self._callbacks.callback is not None:
            return run_once(self._database, self._root, body)
        apart = partial(run_once, self._database, self._root, body, short=self._short)
        try:
            lead = partial(apart, yield_to_conflict=True)
            ended = None if self._refill is not None else self._crew.alone(lead)
        except LostConflict:  # it may conflict again and again, and must hold up no other
            return apart()
        if ended is None:
            [ended] = self._crew.call([target]).answer
        if isinstance(ended, NotTaken):
            raise ended
        return apart() if ended is None else ended

    def is_led(self) -> bool:
        """True while acks are under way."""
        return self._crew.is_led

    def _ack_for(self, crew: Combiner, leader: Call) -> None:
        rides = self._refill is not None
        for _attempt in range(limits.ATTEMPTS_TOGETHER_MAX):
            try:
                if not (rides and self._ack_and_take(crew)):
                    self._ack_all(crew, leader)
            except LostConflict:
                rides = False
            except engine_errors():
                raise  # the result of the last commit may be unknown: another attempt could ack twice
            except Exception:
                break  # the call that causes it meets it again alone
            else:
                return
        crew.deal([None] * limits.VERB_BATCH, to_all=True)

    def _ack_and_take(self, crew: Combiner) -> bool:
        """As `_ack_all`, with a take behind the acks. False if the worker takes nothing now.

        Raises: LostConflict, also for a take that fails: it fails no ack.
        """
        refill = self._refill
        assert refill is not None
        calls = crew.claim(limits.VERB_BATCH, limits.BATCH_BYTES_MAX)
        targets = list(chain.from_iterable(map(_payload, calls)))
        wanted = refill.begin(len(targets))
        if wanted is None:
            return False
        along, rests = list[TakeAlong](), True

        def body(tr: Transaction) -> tuple[Sequence[Ended], Sequence[Task]]:
            ended = self._parts.each(tr, targets, verbs.ack_each)
            return ended, _taken_along(tr, along)

        def keep(answer: tuple[Sequence[Ended], Sequence[Task]]) -> None:
            ended, taken = answer
            refill.add(taken)
            if taken:
                along[0].won()
            crew.deal(ended, to_all=True)

        try:
            try:
                along.append(self._taking(*wanted, refill.overtake))  # with partitions, it may read
            except Exception as error:
                raise LostConflict from error
            is_short = not along[0].is_long and self._is_short(len(targets) + wanted[1])
            run_once(
                self._database,
                self._root,
                body,
                keep=keep,
                doubt=crew.fail,
                yield_to_conflict=True,
                short=self._short if is_short else None,
            )
            rests = not along
        except LostConflict:
            rests = not along or along[0].lost()
            raise
        finally:
            refill.over(rests)
        return True

    def _is_short(self, tasks: int) -> bool:
        return tasks <= limits.DIRECT_ITEMS_MAX and self._parts.shape.codec.is_plain

    def _ack_all(self, crew: Combiner, leader: Call) -> None:
        """Ack the tasks of all claimed calls, or raise LostConflict and change nothing."""

        def ack_each(tr: Transaction, items: list[Target], random: bytes) -> Sequence[Ended]:  # noqa: ARG001
            return self._parts.each(tr, items, verbs.ack_each)

        write_claimed(
            self._database,
            self._root,
            ack_each,
            crew,
            leader,
            count_max=limits.VERB_BATCH,
            wrote=lambda ended: any(isinstance(one, Task) for one in ended),
            yield_to_conflict=True,
            short=self._short,
        )


def _taken_along(tr: Transaction, along: list[TakeAlong]) -> Sequence[Task]:
    """The tasks of the take in `along`, if it has not failed. If it fails now, the next attempt does without,
    and still knows the results of those before it. Raises: the engine's errors that are tried again; for
    others, a conflict.
    """
    if not along:
        return ()
    try:
        return along[0].take(tr)
    except Exception as error:
        along.clear()
        if isinstance(error, engine_errors()) and error.code in TRIED_AGAIN:
            raise
        raise conflict_in(tr) from None
