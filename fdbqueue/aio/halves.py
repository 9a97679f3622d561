"""The verbs of producers and of consumers, awaited: the halves of a queue, and what a queue is made of."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from fdbqueue.aio.consuming import Consumption
from fdbqueue.aio.database import Database
from fdbqueue.aio.handle import HandleFace
from fdbqueue.aio.threads import in_fiber
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import Face, Verb, awaited, database_of, plain, target_of
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnySession, DatabaseOrTransaction
from fdbqueue.core.task import Task
from fdbqueue.queues.fair import FairPutting as BlockingFairPutting
from fdbqueue.queues.fair import FairTaking as BlockingFairTaking
from fdbqueue.queues.fair import Handed
from fdbqueue.queues.recipe.queue import Dequeuing as BlockingDequeuing
from fdbqueue.queues.recipe.queue import Enqueuing as BlockingEnqueuing
from fdbqueue.tasks.handle import Putting as BlockingPutting
from fdbqueue.tasks.handle import Taking as BlockingTaking

D = TypeVar("D")
E = TypeVar("E", bound=BlockingEnqueuing)
Q = TypeVar("Q", bound=BlockingDequeuing)
P = TypeVar("P", bound=BlockingPutting)
T = TypeVar("T", bound=BlockingTaking)
FP = TypeVar("FP", bound=BlockingFairPutting)
FT = TypeVar("FT", bound=BlockingFairTaking)

_NOTHING: Any = object()  # an item may be equal to any default, and be None


def _release(
    queue: BlockingTaking, db: BlockingDatabase, taken: Task | Sequence[Task] | None, *_: Any, **__: Any
) -> None:
    """The tasks of a cancelled take are ready again, and no attempt has ended."""
    for task in [taken] if isinstance(taken, Task) else taken or ():
        queue.give_back(db, task)


def _prepend(queue: BlockingDequeuing, db: BlockingDatabase, value: Any, *_: Any, **__: Any) -> None:
    if value is not _NOTHING:
        queue.give_back(db, [value])


def _prepend_all(
    queue: BlockingDequeuing, db: BlockingDatabase, values: list[Any], *_: Any, **__: Any
) -> None:
    if values:
        queue.give_back(db, values)


class Enqueuing(Face[E]):
    """Verbs that add items."""

    __slots__ = ()

    enqueue = awaited(BlockingEnqueuing.enqueue)
    enqueue_many = awaited(BlockingEnqueuing.enqueue_many)


class Dequeuing(Face[Q]):
    """Verbs that take items."""

    __slots__ = ()

    _taken = Verb[Any, Any](BlockingDequeuing.dequeue, None, _prepend, name="dequeue")

    async def dequeue(
        self,
        tr: DatabaseOrTransaction,
        default: D | None = None,
        timeout: float = 0,
        *,
        stop: Stop | None = None,
    ) -> Any | D | None:
        """As `fdbqueue.Queue.dequeue`."""
        found = await self._taken(tr, _NOTHING, timeout, stop=stop)
        return default if found is _NOTHING else found

    dequeue_many = awaited(BlockingDequeuing.dequeue_many, undo=_prepend_all)
    give_back = awaited(BlockingDequeuing.give_back)
    peek = awaited(BlockingDequeuing.peek)
    empty = awaited(BlockingDequeuing.empty)
    size = awaited(BlockingDequeuing.size)


class Putting(HandleFace[P]):
    """Verbs that put tasks."""

    __slots__ = ()

    put = awaited(BlockingPutting.put)
    put_many = awaited(BlockingPutting.put_many)


class Taking(HandleFace[T]):
    """Verbs that take tasks, and end their leases."""

    __slots__ = ()

    take = awaited(BlockingTaking.take, undo=_release)
    take_many = awaited(BlockingTaking.take_many, undo=_release)
    end_waits = awaited(BlockingTaking.end_waits)

    def consume(
        self,
        db: Database,
        timeout: float | None = None,
        *,
        session: AnySession | None = None,
        stop: Stop | None = None,
    ) -> Consumption:
        """The tasks as they come: `async for task in emails.consume(db)`.

        A task is acked when the body has run to its end, before the next one is taken. It is released after
        an exception, a break, a return or a cancellation: then another consumer gets it. If the body has
        ended the lease itself (ack, release, bury ...), nothing more is done.

        While the body runs, the lease is renewed, and the `aio.HeldTask` tells if it was `lost` all the same.
        Then the next step of the loop raises NotTaken.

        The other arguments are those of `take`. The loop ends when a take has waited for `timeout` seconds
        in vain; without a timeout, it has no end. Each loop needs a call of its own.
        Raises: WrongFace, NotADatabase; InvalidArgument for a transaction.
        """
        options = {"timeout": timeout, "session": session, "stop": stop}
        return Consumption(self, self.take, self.ack, database_of(db), options)

    ack = awaited(BlockingTaking.ack)
    release = awaited(BlockingTaking.release)
    defer = awaited(BlockingTaking.defer)
    touch = awaited(BlockingTaking.touch)
    bury = awaited(BlockingTaking.bury)

    give_back = awaited(BlockingTaking.give_back)
    renew = awaited(BlockingTaking.renew)
    progress = awaited(BlockingTaking.progress)

    async def step(
        self,
        tr: DatabaseOrTransaction,
        task: Task | str,
        name: str,
        function: Callable[..., Any],
        *,
        session: AnySession | None = None,
    ) -> Any:
        """As `fdbqueue.TaskQueue.step`; `function` may be a coroutine function."""
        target, hub = target_of(tr), target_of(tr).hub
        given = (target,) if isinstance(target, Transaction) else ()
        step = partial(self._blocking.step, plain(target), task, name, in_fiber(hub, function, *given))
        return await hub.call(partial(step, session=plain(session)))

    exhaust = awaited(BlockingTaking.exhaust)
    excuse = awaited(BlockingTaking.excuse)


def _put_again(
    queue: BlockingFairTaking, db: BlockingDatabase, handed: Handed | None, *_: Any, **__: Any
) -> None:
    if handed is not None:
        queue.give_back(db, handed.item, cost=handed.cost)


class FairPutting(Face[FP]):
    """The verb that puts items."""

    __slots__ = ()

    put = awaited(BlockingFairPutting.put)


class FairTaking(Face[FT]):
    """Verbs that take items."""

    __slots__ = ()

    async def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """As `fdbqueue.FairQueue.get`."""
        return (await self.take_item(tr, timeout, stop=stop))[1]

    _taken = Verb[Any, Handed | None](BlockingFairTaking._take_handed, None, _put_again, name="_take_handed")

    async def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """As `fdbqueue.FairQueue.take_item`."""
        handed = await self._taken(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    give_back = awaited(BlockingFairTaking.give_back)
    size = awaited(BlockingFairTaking.size)
