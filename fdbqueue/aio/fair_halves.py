"""The verbs of producers and of consumers of a fair queue, awaited."""

from typing import Any, TypeVar

from fdbqueue.aio.verbs import Face, Verb, awaited
from fdbqueue.core.database import Database as BlockingDatabase
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.queues.fair.items import Handed
from fdbqueue.queues.fair.putting import FairPutting as BlockingPutting
from fdbqueue.queues.fair.taking import FairTaking as BlockingTaking

P = TypeVar("P", bound=BlockingPutting)
T = TypeVar("T", bound=BlockingTaking)


def _put_again(
    queue: BlockingTaking, db: BlockingDatabase, handed: Handed | None, *_: Any, **__: Any
) -> None:
    if handed is not None:
        queue.give_back(db, handed.item, cost=handed.cost)


class FairPutting(Face[P]):
    """The verb that puts items."""

    __slots__ = ()

    put = awaited(BlockingPutting.put)


class FairTaking(Face[T]):
    """Verbs that take items."""

    __slots__ = ()

    async def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """As `fdbqueue.FairQueue.get`."""
        return (await self.take_item(tr, timeout, stop=stop))[1]

    _taken = Verb[Any, Handed | None](BlockingTaking._take_handed, None, _put_again, name="_take_handed")

    async def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """As `fdbqueue.FairQueue.take_item`."""
        handed = await self._taken(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    give_back = awaited(BlockingTaking.give_back)
    size = awaited(BlockingTaking.size)
