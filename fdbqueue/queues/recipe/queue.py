"""Queue: FoundationDB's recipe, first in first out, with a waiting line for contended takes.

    -        enqueue, enqueue_many   ->  an item, last
    first    dequeue, dequeue_many   ->  gone
    gone     give_back               ->  first again
    first    peek, items             ->  still there
    all      clear                   ->  gone

Given a *transaction*, a call composes: it happens if and only if that transaction commits. The caller's retry
loop deals with an unknown result (1021). Given a *database*, a call is retried until it has happened exactly
once (calls/once.py), and it may wait. Calls of several threads share transactions (calls/combine.py).
"""

from typing import Any

import msgspec

from fdbqueue.core.arguments import writable
from fdbqueue.core.codec import checked_codec
from fdbqueue.core.database import run
from fdbqueue.core.errors import UnsupportedOption
from fdbqueue.core.page import Page, checked_limit, place_bytes
from fdbqueue.core.partitions import OPTION, Current, Partition, Repartition, checked_partitions, first_plan
from fdbqueue.core.registry import PLAIN, Registry, codec_of, exists_already
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.queues.recipe.handle import (
    Dequeuing,
    Enqueuing,
    QueueConsumer,
    QueueProducer,
    require_contended,
)
from fdbqueue.queues.recipe.parts import begin, partitions_of


class Queue(Enqueuing, Dequeuing, KeepsAside):
    """A queue in a subspace (anything with `.key()`: a `Subspace`, a `DirectorySubspace`).

    `codec`: "json", "bytes", "msgpack", or a name given to `register_codec`; the same for every user of the
    subspace. `type`: type of the values, None for the codec's own types. `contended`: how a dequeue given a
    database meets other takers: "staged" stands in the line, "simple" retries. `root`: where receipts are
    kept. A Queue is a value without a connection: threads may share it.

    Every method takes a database or a transaction first, ours or the binding's.
    Raises: NotADatabase for any other first argument; DatabaseClosed for a closed one; the engine's FDBError;
    SubspaceInUse if the first or the last key of the subspace has another shape. Calls check that until they
    have seen a key of ours.
    """

    __slots__ = ()

    @classmethod
    def named(
        cls,
        target: DatabaseOrTransaction,
        name: str,
        *,
        codec: str | None = None,
        type: Any = None,
        contended: str = "staged",
        create: bool = True,
        partitions: int | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> "Queue":
        """The queue registered as `name`. With `create`, it is registered now if there is none.

        Its codec is chosen when it is created, "json" by default. Its `type` belongs to this handle and is
        not stored. If this process has not registered the codec, a call on a value raises UnknownCodec and
        changes nothing. After a drop, a call raises QueueDropped.

        `partitions`: number of partitions, 1 by default (docs/partitions.md). Order holds within one. A take
        gives the values of one partition, so `dequeue_many` may give fewer than there are.
        Raises: QueueNotFound without `create`; QueueKindMismatch for a name of another kind; QueueExists for
        one with another codec, or another number of partitions; InvalidArgument.
        """
        registry = Registry(root)
        require_contended(contended)
        count = 1 if partitions is None else checked_partitions(partitions)
        options = stored_options(checked_codec("json" if codec is None else codec, type), count)
        found = (
            registry.find_or_create(target, name, PLAIN, options)
            if create
            else registry.find(target, name, PLAIN)
        )
        stored, current = codec_of(found), Current(registry, found)
        asked = {"codec": codec or stored, OPTION: partitions or (current.plan.count if current.plan else 1)}
        error = exists_already(name, found.kind, found.options, asked)
        if error.differing:
            raise error
        return cls(
            registry.contents(found),
            codec=stored,
            type=type,
            contended=contended,
            root=root,
            guard=current.guard,
            name=name,
            current=current,
        )

    def producer(self) -> QueueProducer:
        """A handle that only adds: `enqueue` and `enqueue_many`."""
        return QueueProducer._half_of(self)

    def consumer(self) -> QueueConsumer:
        """A handle that only takes, and looks at the first value."""
        return QueueConsumer._half_of(self)

    def items(self, tr: DatabaseOrTransaction, limit: int, *, after: str | None = None) -> Page[Any]:
        """A page of the values, in order, which stay: at most `limit` and limits.BATCH_ITEMS_MAX values, and
        limits.BATCH_BYTES_MAX bytes, or one larger value.

        The page's `next` is the `after` of the following page, None at the end.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument, PayloadUnreadable.
        """
        most, place, recipe = checked_limit(limit), place_bytes(after), self._recipe_of(tr)
        return run(tr, lambda tr: recipe.page(writable(tr), most, place))

    def clear(self, tr: DatabaseOrTransaction) -> None:
        """Remove every value.

        Writes: clears the ranges of the queue.
        Conflicts: every taker.
        Raises: SubspaceInUse if the subspace holds keys of something else; then nothing is cleared.
        """
        recipe = self._recipe_of(tr)
        run(tr, lambda tr: recipe.clear(writable(tr)))

    def partitions(self, tr: DatabaseOrTransaction) -> list[Partition]:
        """The partitions that may hold a value, by number. A queue without partitions is its own only one.

        Reads: the size and the flag of each, by snapshot.
        Conflicts: none.
        Round trips: 1.
        """
        recipe = self._recipe_of(tr)
        return run(tr, lambda tr: partitions_of(writable(tr), recipe))

    def repartition(self, tr: DatabaseOrTransaction, partitions: int) -> Repartition:
        """Change the number of partitions of a named queue, while it is used.

        New values go to the new partitions at once. Takes drain the partitions that close. Given a
        transaction, a later call on the queue in that transaction raises RepartitionNotCommitted.
        Reads: the definition.
        Writes: the definition.
        Conflicts: every call on the queue.
        Raises: InvalidArgument; UnsupportedOption for a queue without a name.
        """
        count, recipe = checked_partitions(partitions), self._recipe_of(tr)
        current, registry = recipe.current, self._registry()
        if current is None:
            raise UnsupportedOption(kind=PLAIN, option="partitions without a name")
        return registry.write(tr, lambda tr: begin(tr, registry, current, recipe, count))


def stored_options(codec: str, partitions: int) -> dict[str, Any]:
    plan = first_plan(partitions)
    return {"codec": codec} if plan is None else {"codec": codec, OPTION: msgspec.to_builtins(plan)}
