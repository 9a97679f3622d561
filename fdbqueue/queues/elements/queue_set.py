"""QueueSet: several element queues browsed as one, in order of time (elements.md 8)."""

from collections.abc import Iterator, Sequence
from typing import Any

from fdbqueue.core.errors import QueueInSet, WrongType
from fdbqueue.core.handle import Handle
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.keys import by_time
from fdbqueue.queues.elements.null import NullQueue

AnyQueue = ElementBase | NullQueue
Pair = tuple[AnyQueue, str] | tuple[None, None]
_END: Pair = (None, None)


class QueueSet(Handle):
    """`QueueSet(q1, q2)` or `QueueSet([q1, q2])`. It has copies of the queues, with cursors of their own."""

    __slots__ = ("_heads", "_members")

    def __init__(self, *queues: Any) -> None:
        """Raises WrongType unless all are element queues, QueueInSet if one comes twice."""
        self._members: list[AnyQueue] = []
        # The next name of each member, "" at its end. Empty at the begin of a pass, None without a pass.
        self._heads: list[str] | None = None
        self._join(queues)

    def _shown(self) -> dict[str, Any]:
        return {"paths": [member.path for member in self._members]}

    def add(self, *queues: Any) -> None:
        """Add copies of more queues, all or none; a new pass begins. Raises WrongType, QueueInSet."""
        self._join(queues)
        self._rewind()

    def remove(self, queue: AnyQueue) -> None:
        """Take a queue out, also in the middle of a pass; no effect if it is not in. Raises WrongType."""
        self._require_queues([queue])
        for at, member in enumerate(self._members):
            if member.id == queue.id:
                del self._members[at]
                if self._heads:
                    del self._heads[at]
                return

    def count(self, tr: DatabaseOrTransaction) -> int:
        """The number of elements of all queues. Reads one key of each by snapshot."""
        return sum(member.count(tr) for member in self._members)

    def first(self, tr: DatabaseOrTransaction) -> Pair:
        """Start a pass: the first element of all queues, with its queue; (None, None) if there is none.

        Elements are in order of the times in their names. Reads like `first` of each queue.
        """
        self._rewind()
        return self.next(tr)

    def next(self, tr: DatabaseOrTransaction) -> Pair:
        """The next element of the pass; (None, None) at its end, or if there is no pass."""
        if self._heads is None:
            return _END
        heads = self._heads = self._heads or [member.first(tr) for member in self._members]
        waiting = [at for at, name in enumerate(heads) if name]
        if not waiting:
            return _END
        at = min(waiting, key=lambda at: by_time(heads[at]))
        name, heads[at] = heads[at], self._members[at].next(tr)
        return self._members[at], name

    def names(self, tr: DatabaseOrTransaction) -> Iterator[Pair]:
        """Every element: a pass, with the same cursor as `first` and `next`."""
        self._rewind()
        return iter(lambda: self.next(tr), _END)

    def _rewind(self) -> None:
        self._heads = []

    def _join(self, queues: Sequence[Any]) -> None:
        flat = [
            queue for given in queues for queue in (given if isinstance(given, list | tuple) else [given])
        ]
        self._require_queues(flat)
        known = {member.id for member in self._members}
        for queue in flat:
            if queue.id in known:
                raise QueueInSet(path=queue.path)
            known.add(queue.id)
        self._members += [queue.copy() for queue in flat]

    @staticmethod
    def _require_queues(queues: Sequence[Any]) -> None:
        for queue in queues:
            if not isinstance(queue, AnyQueue):
                raise WrongType(name="queue", wanted="an element queue, or a list of them", got=queue)
