"""Queue: FoundationDB's recipe, first in first out, with a waiting line for contended takes.

    -        enqueue, enqueue_many   ->  an item, last
    first    dequeue, dequeue_many   ->  gone
    gone     give_back               ->  first again
    first    peek, items             ->  still there
    all      clear                   ->  gone

Given a *transaction*, a call composes: it happens if and only if that transaction commits. The caller's retry
loop deals with an unknown result (1021). Given a *database*, a call is retried until it has happened exactly
once (core/once.py), and it may wait. Calls of several threads share transactions (core/calls.py).

The handle has the options of a queue, and the ways of its verbs into a transaction.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from fdbqueue.core import limits, line, observing
from fdbqueue.core.arguments import (
    checked_batch,
    checked_batch_count,
    checked_function,
    checked_instance,
    checked_items,
    checked_overtake,
    checked_payload,
    checked_prefix,
    checked_stop,
    checked_wait,
    writable,
)
from fdbqueue.core.codec import (
    AbsentCodec,
    PayloadCodec,
    checked_codec,
    codec_named,
    encoded_each,
    stored_codec,
)
from fdbqueue.core.database import (
    Database,
    Grant,
    Handle,
    Service,
    as_database,
    at_pace,
    is_transaction,
    run,
    runtime_in,
    runtime_of,
)
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.core.line.staging import Line
from fdbqueue.core.observing import Call
from fdbqueue.core.once import run_in
from fdbqueue.core.page import Page, checked_limit, place_bytes
from fdbqueue.core.partitions import OPTION, Current, Partition, Repartition, checked_partitions, first_plan
from fdbqueue.core.registry import PLAIN, Guard, Registry, codec_of, exists_already
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.core.unreadable import Aside, KeepsAside
from fdbqueue.queues.recipe.calls import Holder, QueueCalls, RecipeParts, SimpleCalls, begin, partitions_of

if TYPE_CHECKING:
    from fdbqueue.core.line.waiting import WaitingCall


Calls = QueueCalls | SimpleCalls
"""The calls of a queue given a database. One instance per process and database, shared by its threads."""
CALLS: dict[str, Callable[[Database, RecipeParts, RootKeys], Calls]] = {
    "staged": QueueCalls,
    "simple": SimpleCalls,
}


class ItemCalls(Service, Protocol):
    """The calls of a process that take items of one queue, each once."""

    def take(self, count: int, timeout_s: float = 0, stop: Stop | None = None) -> Sequence[Any]:
        """Take up to `count` items. Wait up to `timeout_s` for the first; zero does not wait."""


C = TypeVar("C", bound=ItemCalls)


class ItemHandle(Handle, Generic[C]):
    """The door of a queue without leases, by which each verb comes into a transaction."""

    __slots__ = ("_aside", "_ask_exists", "_codec", "_name", "_receipts", "_service")

    _aside: Aside
    _ask_exists: Guard
    _codec: PayloadCodec
    _name: str
    """The name for observers."""
    _receipts: RootKeys
    _service: tuple[Hashable, ...]
    """The name of the calls in a process: calls combine only with calls that would do exactly the same."""

    def _new_calls(self, database: Database) -> C:
        raise NotImplementedError

    def _take_within(self, tr: Transaction, count: int, now_us: int) -> Sequence[Any]:
        raise NotImplementedError

    def _calls_of(self, target: DatabaseOrTransaction) -> C:
        return self._calls_on(as_database(target.db if is_transaction(target) else target))

    def _calls_on(self, database: Database) -> C:
        found: C | None = database.known(self._service)
        return database.service(self._service, self._new_calls) if found is None else found

    def _waiting_in(
        self, target: DatabaseOrTransaction, limit: int, lines: Callable[[], Sequence[Line]]
    ) -> "list[WaitingCall]":
        most, now_us = checked_limit(limit), runtime_in(target).now_us()

        def look(tr: Transaction) -> "list[WaitingCall]":
            self._ask_exists(tr)()
            return line.waiting.waiting_in(tr, None, lines(), now_us, most)

        return run(target, lambda tr: look(writable(tr)))

    def _observed(
        self, target: DatabaseOrTransaction, name: str, count: int = 1, *, waits: bool = False
    ) -> Call:
        within = is_transaction(target)
        return Call(runtime_in(target), name, self._name, within=within, waits=waits, count=count)

    def _taken(
        self,
        target: DatabaseOrTransaction,
        name: str,
        count: int,
        timeout_s: float = 0,
        stop: Stop | None = None,
        overtake: int = 0,
    ) -> Sequence[Any]:
        """Take up to `count` items by the verb `name`. `overtake` is for a queue in line."""
        if is_transaction(target):
            take = partial(self._take_within, writable(target), count, runtime_of(target).now_us())
        else:
            take = partial(self._calls_on(as_database(target)).take, count, timeout_s, stop)
            if overtake:
                take = partial(take, overtake=overtake)
        if not observing.observers:
            return take()
        with self._observed(target, name, 0, waits=timeout_s > 0) as call:
            found = take()
            call.count = len(found)
            return found


class QueueHandle(ItemHandle[Calls]):
    """Codec, keys and services of a queue in a subspace."""

    __slots__ = ("_calls", "_current", "_new_parts", "_recipe")

    def __init__(
        self,
        subspace: Any,
        *,
        codec: str = "json",
        type: Any = None,
        contended: str = "staged",
        root: Any = DEFAULT_ROOT,
        guard: Guard | None = None,
        name: str = "",
        current: Current | None = None,
    ) -> None:
        """`name` is for messages and observers. `current`: the plan of a named queue, which may have
        partitions.

        Raises: UnknownCodec; InvalidArgument for `contended` or `type`; WrongType for the subspace, `guard`
        or `current`.
        """
        require_contended(contended)
        prefix = checked_prefix("subspace", subspace)
        if guard is not None:
            checked_function("guard", guard)
        if current is not None:
            checked_instance("current", current, Current)
        # The definition of a named queue may name a codec that this process has not registered.
        self._codec = codec_named(codec, type) if guard is None else stored_codec(codec, type)
        self._receipts = RootKeys(root)
        self._name = name
        self._current = current
        self._new_parts = partial(RecipeParts, subspace, self._codec, guard, self._receipts.prefix, name)
        self._recipe = self._new_parts(current)
        self._aside = self._recipe.aside
        self._ask_exists = self._recipe.guard if current is None else current.exists
        self._calls = CALLS[contended]
        self._service = ("queue", prefix, self._codec.key, contended, self._receipts.prefix, guard is None)

    def _shown(self) -> dict[str, Any]:
        return {"name": self._name} if self._name else {"prefix": self._recipe.keys.prefix}

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        payloads = encoded_each(self._codec, checked_items("values", values))
        return checked_batch(list(map(checked_payload, payloads)))

    def _registry(self) -> Registry:
        return Registry(self._receipts)

    def _recipe_of(self, target: DatabaseOrTransaction) -> RecipeParts:
        """The items, by the plan of the database of `target`: calls on several may be given."""
        return self._recipe if self._current is None else self._calls_of(target).recipe

    def _new_calls(self, database: Database) -> Calls:
        current, recipe = self._current, self._recipe
        if current is not None:
            recipe = self._new_parts(Current(self._registry(), current.definition))
        return self._calls(database, recipe, self._receipts)

    def _take_within(self, tr: Transaction, count: int, now_us: int) -> Sequence[Any]:
        return self._recipe_of(tr).take(tr, count, now_us).values


def require_contended(contended: Any) -> None:
    if not isinstance(contended, str) or contended not in CALLS:
        raise InvalidArgument(name="contended", wanted='"staged" or "simple"', got=contended)


class Enqueuing(QueueHandle):
    """The verbs of a producer."""

    __slots__ = ()

    def enqueue(self, tr: DatabaseOrTransaction, value: Any) -> None:
        """Add `value` at the end.

        Given a database: exactly once, in a transaction that calls of other threads may share. It also writes
        a receipt, which tells a retry after an unknown result if the first attempt has committed. Given a
        transaction in a loop that retries after 1021, the value may come twice.
        Reads: the last item, by snapshot.
        Writes: the item, the size.
        Conflicts: none.
        Raises: TypeError for a value that the codec cannot carry, PayloadTooLarge; then nothing is written.
        """
        self._append(tr, [checked_payload(self._codec.encode(value))])

    def enqueue_many(self, tr: DatabaseOrTransaction, values: Iterable[Any]) -> None:
        """Add `values` at the end, in order, all or none. All else is as in `enqueue`.

        Raises: TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX values, or for two or more
        values with more than limits.BATCH_BYTES_MAX encoded bytes together.
        """
        self._append(tr, self._encoded(values))

    def _append(self, target: DatabaseOrTransaction, payloads: list[bytes]) -> None:
        within = is_transaction(target)
        append = (
            partial(self._append_within, target) if within else self._calls_on(as_database(target)).append
        )
        if not payloads:
            return
        if not observing.observers:
            append(payloads)
            return
        with self._observed(target, "enqueue", len(payloads)):
            append(payloads)

    def _append_within(self, tr: DatabaseOrTransaction, payloads: list[bytes]) -> None:
        random = runtime_of(tr).random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._recipe_of(tr).append(writable(tr), payloads, random)


D = TypeVar("D")


class Dequeuing(QueueHandle):
    """The verbs of a consumer."""

    __slots__ = ()

    def dequeue(
        self,
        tr: DatabaseOrTransaction,
        default: D | None = None,
        timeout: float = 0,
        *,
        stop: Stop | None = None,
        overtake: int = 0,
    ) -> Any | D | None:
        """Remove and return the first value; `default` if there is none.

        Given a database: exactly once, by a receipt as in `enqueue`. It waits up to `timeout` seconds for a
        value, in the line. If `stop`, an event, is set after a value was removed, the value is returned.
        After a race with another taker, it leaves up to `overtake` older values behind (docs/workers.md).
        Reads: the first item, serialisably.
        Writes: clears it.
        Conflicts: another taker of the same item. An answer of nothing in a transaction: an enqueue.
        Raises: InvalidArgument for a negative timeout, for one beside a transaction, which cannot wait, or
        for `overtake` in a transaction or with `contended="simple"`; PayloadUnreadable if another codec wrote
        the value; WaitStopped as soon as `stop` is set; TooMuchToSweep given a transaction, behind too many
        unreadable values.
        """
        timeout_s = checked_wait(timeout, tr)
        if stop is not None:
            checked_stop(stop, tr)
        if isinstance(self._codec, AbsentCodec):
            self._codec.require()
        if type(overtake) is not int or overtake:
            overtake = self._checked_overtake(overtake, tr)
        found = self._taken(tr, "dequeue", 1, timeout_s, stop, overtake)
        return found[0] if found else default

    def dequeue_many(self, tr: DatabaseOrTransaction, n: int, *, overtake: int = 0) -> list[Any]:
        """Remove and return the first values, up to `n`.

        It takes fewer if they exceed limits.BATCH_BYTES_MAX bytes, or if the line gives only
        limits.SERVE_MAX. Only an empty list means that nothing is there. All else is as in `dequeue`.
        Raises: InvalidArgument for an `n` that is not a count; TooMuchForOneTransaction above
        limits.BATCH_ITEMS_MAX.
        """
        checked_batch_count("n", n)
        self._codec.require()
        overtake = self._checked_overtake(overtake, tr)
        return list(self._taken(tr, "dequeue", n, overtake=overtake))

    def _checked_overtake(self, overtake: Any, tr: DatabaseOrTransaction) -> int:
        number = checked_overtake(overtake, tr)
        if number and self._calls is SimpleCalls:
            raise InvalidArgument(name="overtake", wanted='0 with contended="simple"', got=overtake)
        return number

    def give_back(self, tr: DatabaseOrTransaction, values: Iterable[Any]) -> None:
        """Add `values` before the first one, in order: for a caller that has dequeued them and cannot use
        them.

        Given a database: exactly once, by a receipt as in `enqueue`.
        Reads: the first item, by snapshot.
        Writes: the items, the size.
        Conflicts: takers.
        Raises: TypeError, PayloadTooLarge, TooMuchForOneTransaction, as `enqueue_many`.
        """
        payloads, recipe = self._encoded(values), self._recipe_of(tr)
        random = runtime_in(tr).random_bytes(limits.RANDOM_SUFFIX_BYTES)
        run_in(tr, self._receipts, partial(recipe.prepend, payloads=payloads, random=random))

    def peek(self, tr: DatabaseOrTransaction, default: D | None = None) -> Any | D | None:
        """The first value, which stays; `default` if there is none.

        Reads: the first item, serialisably.
        Conflicts: its taker. An answer of nothing: an enqueue.
        """
        recipe = self._recipe_of(tr)
        found = run(tr, lambda tr: recipe.first(tr, 1))
        return found[0] if found else default

    def empty(self, tr: DatabaseOrTransaction) -> bool:
        """True if there is nothing to dequeue. Reads and conflicts as `peek`."""
        return not run(tr, self._recipe_of(tr).any)

    def size(self, tr: DatabaseOrTransaction) -> int:
        """The number of values, without those on their way to a caller in the line.

        Reads: one counter, by snapshot.
        Conflicts: none.
        """
        recipe = self._recipe_of(tr)
        return run(tr, lambda tr: recipe.size(writable(tr)))

    def holder(self, db: AnyDatabase) -> Holder:
        """Takes items in two steps, for a reader that can fail in between (recipe/calls.py)."""
        return Holder(as_database(db), self._receipts, self._recipe_of(db))


class QueueProducer(Grant, Enqueuing):
    """A handle that adds items, and does nothing else. `Queue.producer` makes it."""

    __slots__ = ()


class QueueConsumer(Grant, Dequeuing):
    """A handle that takes items and looks at the first one. `Queue.consumer` makes it."""

    __slots__ = ()


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
        run(at_pace(tr, "background"), lambda tr: recipe.clear(writable(tr)))

    def waiting(self, tr: DatabaseOrTransaction, limit: int) -> "list[WaitingCall]":
        """The calls that wait for values, in the order of the line: the first `limit`, at most
        limits.BATCH_ITEMS_MAX.

        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument.
        Round trips: 1.
        """
        recipe = self._recipe_of(tr)
        return self._waiting_in(
            tr, limit, lambda: [*(one.line for one in recipe.holding()), recipe.wide.line]
        )

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
