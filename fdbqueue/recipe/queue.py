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

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec
from fdb.subspace_impl import Subspace

from fdbqueue import limits, observing
from fdbqueue.arguments import (
    checked_batch,
    checked_batch_count,
    checked_instance,
    checked_items,
    checked_payload,
    checked_prefix,
    checked_stop,
    checked_wait,
    writable,
)
from fdbqueue.aside import Aside, KeepsAside
from fdbqueue.calls.once import run_once
from fdbqueue.codec import checked_codec, codec_named, encoded_each, stored_codec
from fdbqueue.database import Database, as_database, is_transaction, run, runtime_of
from fdbqueue.deferred import checked_function
from fdbqueue.errors import InvalidArgument, UnsupportedOption
from fdbqueue.page import Page, checked_limit, place_bytes
from fdbqueue.partitions.current import OPTION, Current
from fdbqueue.partitions.keys import SharedKeys, prefix_of
from fdbqueue.partitions.looks import Partition, Repartition
from fdbqueue.partitions.plan import Plan, checked_partitions, first_plan
from fdbqueue.recipe.calls import Calls, QueueCalls, SimpleCalls
from fdbqueue.recipe.holding import Holder
from fdbqueue.recipe.items import Recipe
from fdbqueue.recipe.keys import QueueKeys
from fdbqueue.recipe.observed import ObservedCalls, ObservedRecipe
from fdbqueue.recipe.partition_looks import partitions_of
from fdbqueue.recipe.parts import RecipeParts
from fdbqueue.recipe.repartition import begin
from fdbqueue.registry.registry import Guard, Registry, codec_of, exists_already
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.runtime import Stop
from fdbqueue.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.sessions.ending import register_sessionless

D = TypeVar("D")

KIND = register_sessionless("queue")
CALLS: dict[str, Callable[[Database, RecipeParts, RootKeys], Calls]] = {
    "staged": QueueCalls,
    "simple": SimpleCalls,
}


class Queue(KeepsAside):
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
        _require_contended(contended)
        prefix = checked_prefix("subspace", subspace)
        if guard is not None:
            checked_function("guard", guard)
        if current is not None:
            checked_instance("current", current, Current)
        # The definition of a named queue may name a codec that this process has not registered.
        self._codec = codec_named(codec, type) if guard is None else stored_codec(codec, type)
        self._root = RootKeys(root)
        self._name = name
        self._shared = SharedKeys(subspace)
        self._subspace, self._keys = subspace, QueueKeys(subspace)
        self._guard = guard
        self._current = current
        self._recipe = self._new_parts(current)
        self._aside = self._recipe.aside
        self._ask_exists = self._recipe.guard if current is None else current.exists
        self._calls = CALLS[contended]
        # Calls combine only with calls that would do exactly the same.
        self._service = ("queue", prefix, self._codec.key, contended, self._root.prefix, guard is None)

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
        _require_contended(contended)
        count = 1 if partitions is None else checked_partitions(partitions)
        options = stored_options(checked_codec("json" if codec is None else codec, type), count)
        found = (
            registry.find_or_create(target, name, KIND, options)
            if create
            else registry.find(target, name, KIND)
        )
        stored, current = codec_of(found), Current(registry, found)
        if codec not in (None, stored) or partitions not in (None, _count_of(current)):
            asked = options if partitions is None else {**options, OPTION: partitions}
            there = _shown(found.options) if partitions is None else {OPTION: 1, **_shown(found.options)}
            raise exists_already(name, found.kind, there, KIND, asked)
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
        self._append(
            tr,
            checked_batch(
                [
                    checked_payload(payload)
                    for payload in encoded_each(self._codec, checked_items("values", values))
                ]
            ),
        )

    def dequeue(
        self,
        tr: DatabaseOrTransaction,
        default: D | None = None,
        timeout: float = 0,
        *,
        stop: Stop | None = None,
    ) -> Any | D | None:
        """Remove and return the first value; `default` if there is none.

        Given a database: exactly once, by a receipt as in `enqueue`. It waits up to `timeout` seconds for a
        value, in the line. If `stop`, an event, is set after a value was removed, the value is returned.
        Reads: the first item, serialisably.
        Writes: clears it.
        Conflicts: another taker of the same item. An answer of nothing in a transaction: an enqueue.
        Raises: InvalidArgument for a negative timeout, or for one beside a transaction, which cannot wait;
        PayloadUnreadable if another codec wrote the value; WaitStopped as soon as `stop` is set.
        """
        timeout_s = checked_wait(timeout, tr)
        checked_stop(stop, tr)
        self._codec.require()
        if is_transaction(tr):
            recipe = self._watched(tr) if observing.observers else self._recipe_of(tr)
            found = recipe.take(writable(tr), 1, runtime_of(tr).now_us()).values
        else:
            calls = self._calls_of(tr)
            found = calls.wait(timeout_s, stop) if timeout_s else calls.take(1, stop)
        return found[0] if found else default

    def dequeue_many(self, tr: DatabaseOrTransaction, n: int) -> list[Any]:
        """Remove and return the first values, up to `n`.

        It takes fewer if they exceed limits.BATCH_BYTES_MAX bytes, or if the line gives only
        limits.SERVE_MAX. Only an empty list means that nothing is there. All else is as in `dequeue`.
        Raises: InvalidArgument for an `n` that is not a count; TooMuchForOneTransaction above
        limits.BATCH_ITEMS_MAX.
        """
        checked_batch_count("n", n)
        self._codec.require()
        if is_transaction(tr):
            recipe = self._watched(tr) if observing.observers else self._recipe_of(tr)
            return list(recipe.take(writable(tr), n, runtime_of(tr).now_us()).values)
        return list(self._calls_of(tr).take(n))

    def give_back(self, tr: DatabaseOrTransaction, values: Iterable[Any]) -> None:
        """Add `values` before the first one, in order: for a caller that has dequeued them and cannot use
        them.

        Given a database: exactly once, by a receipt as in `enqueue`.
        Reads: the first item, by snapshot.
        Writes: the items, the size.
        Conflicts: takers.
        Raises: TypeError, PayloadTooLarge, TooMuchForOneTransaction, as `enqueue_many`.
        """
        encoded = encoded_each(self._codec, checked_items("values", values))
        payloads = checked_batch([checked_payload(payload) for payload in encoded])
        runtime = runtime_of(tr) if is_transaction(tr) else as_database(tr).runtime
        random, recipe = runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES), self._recipe_of(tr)

        def body(tr: Transaction) -> None:
            recipe.prepend(tr, payloads, random)

        if is_transaction(tr):
            body(writable(tr))
        else:
            run_once(as_database(tr), self._root, body)

    def peek(self, tr: DatabaseOrTransaction, default: D | None = None) -> Any | D | None:
        """The first value, which stays; `default` if there is none.

        Reads: the first item, serialisably.
        Conflicts: its taker. An answer of nothing: an enqueue.
        """
        recipe = self._recipe_of(tr)
        found = run(tr, lambda tr: recipe.first(tr, 1))
        return found[0] if found else default

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
            raise UnsupportedOption(kind=KIND, option="partitions without a name")
        return registry.write(tr, lambda tr: begin(tr, registry, current, recipe, count))

    def holder(self, db: AnyDatabase) -> Holder:
        """Takes items in two steps, for a reader that can fail in between (recipe/holding.py)."""
        return Holder(as_database(db), self._root, self._recipe_of(db))

    def _registry(self) -> Registry:
        return Registry(Subspace((), self._root.prefix))

    def _recipe_of(self, target: DatabaseOrTransaction) -> RecipeParts:
        """The items, by the plan of the database of `target`: calls on several may be given."""
        return self._recipe if self._current is None else self._service_of(target).recipe

    def _new_parts(self, current: Current | None) -> RecipeParts:
        return RecipeParts(partial(self._new_recipe, current), current, self._shared)

    def _new_recipe(self, current: Current | None, number: int) -> Recipe:
        zero = self._keys
        return Recipe(
            QueueKeys(Subspace((), prefix_of(self._subspace, number))),
            self._codec,
            self._guard if current is None else current.guard,
            self._root.prefix,
            self._name,
            number,
            current,
            self._shared,
            Aside(zero.prefix, zero.line),
        )

    def _append(self, target: DatabaseOrTransaction, payloads: list[bytes]) -> None:
        if is_transaction(target):
            if payloads:
                recipe = self._watched(target) if observing.observers else self._recipe_of(target)
                random = runtime_of(target).random_bytes(limits.RANDOM_SUFFIX_BYTES)
                recipe.append(writable(target), payloads, random)
        else:
            calls = self._calls_of(target)
            if payloads:
                calls.append(payloads)

    def _calls_of(self, target: DatabaseOrTransaction) -> Calls:
        calls = self._service_of(target)
        if not observing.observers:
            return calls
        return ObservedCalls(calls, self._name, as_database(target).runtime)

    def _service_of(self, target: DatabaseOrTransaction) -> Calls:
        database = as_database(target.db if is_transaction(target) else target)
        return database.service(self._service, self._new_calls)

    def _watched(self, tr: DatabaseOrTransaction) -> ObservedRecipe:
        return ObservedRecipe(self._recipe_of(tr), self._name, runtime_of(tr))

    def _new_calls(self, database: Database) -> Calls:
        current, recipe = self._current, self._recipe
        if current is not None:
            recipe = self._new_parts(Current(self._registry(), current.definition))
        return self._calls(database, recipe, self._root)


def stored_options(codec: str, partitions: int) -> dict[str, Any]:
    """The options in the definition of a new queue."""
    plan = first_plan(partitions)
    return {"codec": codec} if plan is None else {"codec": codec, OPTION: msgspec.to_builtins(plan)}


def _count_of(current: Current) -> int:
    return 1 if current.plan is None else current.plan.count


def _shown(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, with partitions as their number."""
    plan = options.get(OPTION)
    return dict(options) if plan is None else {**options, OPTION: msgspec.convert(plan, Plan).count}


def _require_contended(contended: Any) -> None:
    """Raises: InvalidArgument."""
    if not isinstance(contended, str) or contended not in CALLS:
        raise InvalidArgument(name="contended", wanted='"staged" or "simple"', got=contended)
