"""FairQueue: items come out in rounds over their keys; no leases. A taken item is gone.

docs/tasks.md defines a round. Given a *transaction*, a call composes: it happens if and only if that
transaction commits. Given a *database*, it has its effect once (core/once.py), may wait in the line, and
shares transactions with calls of other threads (core/calls.py).

The items of a fair queue are the source of its line: handing out an item removes it. A fair item is a task
that is only ever ready: taking it removes it. Its keys are those of a task queue (tasks/stored/records.py)
without sessions, timers and counts of calls. In `beside`, 7 is the floor: the index behind that of every item
that the line has handed out, little-endian.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from fdb import tuple as layer

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import (
    WHOLE_MAX,
    checked_function,
    checked_payload,
    checked_prefix,
    checked_stop,
    checked_wait,
    checked_whole,
    require_finished,
    writable,
)
from fdbqueue.core.codec import PayloadCodec, checked_codec, codec_named
from fdbqueue.core.database import (
    Database,
    Grant,
    Handle,
    Service,
    as_database,
    is_transaction,
    run,
    runtime_in,
    runtime_of,
)
from fdbqueue.core.errors import FairQueueFull, InvalidArgument
from fdbqueue.core.line.decision import Delivery, LineKeys, Offer, Untimed
from fdbqueue.core.line.staging import Line
from fdbqueue.core.line.taking import Taker, Takes
from fdbqueue.core.once import run_in, writes
from fdbqueue.core.page import checked_limit, no_place, place_bytes, place_text, within_bytes
from fdbqueue.core.registry import (
    FAIR_ITEMS,
    Definition,
    Guard,
    Registry,
    SubspaceGuard,
    checked_name,
    exists_already,
    require_options,
)
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction, Transaction
from fdbqueue.core.unreadable import NOT_READ, KeepsAside, Passed, located, shown
from fdbqueue.queues.recipe.calls import Holder
from fdbqueue.queues.recipe.queue import ItemHandle
from fdbqueue.tasks import edges
from fdbqueue.tasks.capacity import admit
from fdbqueue.tasks.change import Change, ask_payloads, clear_payload
from fdbqueue.tasks.looking import KeyStatistics, busiest_keys, checked_keys
from fdbqueue.tasks.options import Draft, Settings, as_given, checked_units, key_bytes, packed_weights
from fdbqueue.tasks.shape import NO_RECORD, Shape
from fdbqueue.tasks.source import Ready
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import (
    ID_BYTES,
    INDEX_BYTES,
    NEVER_US,
    Record,
    TaskKeys,
    count_of,
    id_text,
    record_to_bytes,
    sound_record,
)

if TYPE_CHECKING:
    from fdbqueue.core.line.waiting import WaitingCall


_FLOOR = b"\x07"
FLOOR_MAX = 2**62
"""A floor beyond is damage: no index gets there."""


FAIR_OPTIONS = ("capacity", "weights", "codec")
BY_FUNCTION: Any = object()
"""In place of a key: that of the key function."""


def stored_options(
    capacity: int | None = None,
    weights: Mapping[Any, int] | None = None,
    codec: str = "json",
    type: Any = None,
) -> dict[str, Any]:
    """The options of a named queue, as they are stored. Raises: InvalidArgument, UnknownCodec."""
    if capacity is not None:
        checked_whole("capacity", capacity, 0, WHOLE_MAX)
    packed = None if weights is None else packed_weights("weights", weights)
    return {"capacity": capacity, "weights": packed, "codec": checked_codec(codec, type)}


def draft(payload: bytes, key: bytes, cost: int) -> Draft:
    return Draft(None, payload, 0, key, cost, NEVER_US, NEVER_US, 0)


class Handed(NamedTuple):
    item: Any
    cost: int


class FairItems(Untimed):
    """The `Source` of its line."""

    def __init__(
        self,
        registry: Registry,
        keys: TaskKeys,
        codec: PayloadCodec,
        weights: Mapping[str, int] | None,
        guard: Guard | None = None,
        name: str = "",
    ) -> None:
        definition = Definition(name or repr(keys.prefix), 0, "fair", Settings(weights=weights).to_options())
        self.name = definition.name
        own = SubspaceGuard(keys.prefix, keys.is_key, registry.keys.prefix).ask_until_known
        self.guard: Guard = own if guard is None else guard
        self.shape = Shape(registry, definition, keys, self.guard, codec)
        self.keys = keys
        self.codec = codec
        self.floor = keys.beside + _FLOOR
        self.looking = Fair(keys, definition.options)
        """The discipline for listings, which mend nothing."""
        self.aside = self.shape.aside
        self.passed = Passed(registered=False)
        self._offered = Ready(self.shape, self.passed)
        self.claim = self._offered.claim
        self.doorbell = keys.counters  # an item that becomes available raises it
        self.ready = keys.ready
        self.line = Line(LineKeys(keys.line), self)
        self.taker = Taker(self.line, (self.guard,), self.hand_out)

    def admit(self, tr: Transaction, capacity: int, random: bytes) -> int | None:
        """The size, if that leaves no room for another item. Conflicts: as `admit`."""
        size = self.size(tr)
        return None if admit(tr, self.keys, capacity, size, 1, random) else size

    def append(self, tr: Transaction, drafts: Sequence[Draft], random: bytes, now_us: int) -> None:
        check, keys, change = self.guard(tr), self.keys, Change(tr, self.shape, now_us)
        last = tr.snapshot.get_range(keys.own_tasks.start, keys.own_tasks.stop, limit=1, reverse=True)
        floor = tr.snapshot.get(self.floor)
        change.ask_create({draft.key for draft in drafts})
        check()
        behind = next((keys.index_of(entry.key) + 1 for entry in last), 0)
        if not self.passed.codec_is_known:
            self.passed.learn_codec()
        edges.put(change, drafts, max(behind, _floor_of(floor.value)), random, counts=False)
        change.finish()

    def busiest(self, tr: Transaction, limit: int, now_us: int) -> list[KeyStatistics]:
        """The keys with the most items. Reads by snapshot. Conflicts: none."""
        check = self.guard(tr)
        check()
        return busiest_keys(tr, self.looking, limit, now_us)

    def size(self, tr: Transaction) -> int:
        """The number of items. Reads one key by snapshot. Conflicts: none."""
        check, counters = self.guard(tr), tr.snapshot.get(self.keys.counters)
        check()
        return count_of(counters.value)

    # For a `Holder`: one item at a time, since results are read by key, which is no order of rounds.

    held_max = 1

    def holding_source(self) -> "FairItems":
        return self

    def going_by_plan(self, _: Transaction) -> AbstractContextManager[None]:
        return nullcontext()

    def hold_back(self, tr: Transaction, offers: Sequence[Offer]) -> tuple[list[Offer], list[Any]]:
        """As Recipe.hold_back."""
        self.claim(tr, offers)
        kept, values = list[Offer](), list[Any]()
        asked = ask_payloads(tr, self.keys, [offer.item for offer in offers])
        for offer, payload in zip(offers, asked, strict=True):
            try:
                values.append(self.codec.decode(payload()))
                kept.append(offer)
            except NOT_READ:
                self._consume(tr, [offer.item])
                self._sort_out(tr, [offer.item], [payload])
        return kept, values

    # The line's Source.

    def doorbells(self) -> Sequence[bytes]:
        return (self.doorbell,)

    def available(self, tr: Transaction, limit: int, now_us: int) -> Iterable[Offer]:
        return self._offered.ask(tr, limit, now_us)

    def require_none_passed(self, tr: Transaction) -> None:
        self._offered.require_none_passed(tr)

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:  # noqa: ARG002  # the line's interface
        self._consume(tr, [offer.item for offer in offers])
        # An item that comes back from a dead caller belongs before all items that are put meanwhile.
        floor = max(int.from_bytes(offer.id[:INDEX_BYTES], "big") for offer in offers) + 1
        tr.max(self.floor, floor.to_bytes(INDEX_BYTES, "little"))
        return [Delivery(offer.id, offer.value) for offer in offers]

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Handed]:
        records = self._sound(tr, deliveries)
        return self._collected(tr, records, ask_payloads(tr, self.keys, records))

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Handed]:  # noqa: ARG002  # the line's interface
        records = [offer.item for offer in offers]
        asked = ask_payloads(tr, self.keys, records)  # with the reads of the discipline
        self._consume(tr, records)
        return self._collected(tr, records, asked)

    def hand_out(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Handed]:
        self.claim(tr, offers)
        return self.hand_over(tr, offers, params)

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        self._restore(tr, self._sound(tr, deliveries))

    # Items that have left their places.

    def _consume(self, tr: Transaction, records: Sequence[Record]) -> None:
        change = self._change(tr)
        change.consume(records)
        change.finish()

    def _restore(self, tr: Transaction, records: Sequence[Record]) -> None:
        change = self._change(tr)
        change.restore(records)
        change.finish()

    def _change(self, tr: Transaction) -> Change:
        return Change(tr, self.shape, now_us=0)  # the time counts for new items only

    def _collected(
        self, tr: Transaction, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Handed]:
        decode = self.codec.decode
        try:
            handed = [
                Handed(decode(payload()), record.cost) for record, payload in zip(records, asked, strict=True)
            ]
        except NOT_READ:
            return self._sort_out(tr, records, asked)
        if handed and not self.passed.codec_is_known:
            self.passed.learn_codec()
        for record in records:
            clear_payload(tr, self.keys, record)
        return handed

    def _sort_out(
        self, tr: Transaction, records: Sequence[Record], asked: Sequence[Callable[[], bytes]]
    ) -> list[Handed]:
        """The items that can be read. Other items are set aside, or go back to be passed over."""
        payloads = zip(records, asked, strict=True)
        stored = [(record.id, id_text(record.id), payload) for record, payload in payloads]
        found = self.passed.sort_out(self.codec, self.shape.name, stored, partial(self._offered.head, tr))
        for record in records:
            if record.id in found.damaged:
                error = located(found.damaged[record.id], self.shape.name, id_text(record.id))
                self._set_aside(tr, record.id, record_to_bytes(record), str(error))
            elif record.id in found.data:
                clear_payload(tr, self.keys, record)
        self._restore(tr, [record for record in records if record.id in found.passed])
        return [Handed(found.data[record.id], record.cost) for record in records if record.id in found.data]

    def _sound(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Record]:
        """The records of items that were handed out. A damaged record is set aside."""
        records: list[Record] = []
        for delivery in deliveries:
            record = sound_record(delivery.value, delivery.id)
            if record is None:
                self._set_aside(tr, delivery.id, delivery.value, NO_RECORD)
            else:
                records.append(record)
        return records

    def _set_aside(self, tr: Transaction, id_: bytes, record: bytes, reason: str) -> None:
        under = self.keys.payloads_of(id_)
        self.aside.put(tr, self.keys.task(id_), [record], reason, under)
        tr.clear_range(under.start, under.stop)


def _floor_of(value: bytes | None) -> int:
    floor = int.from_bytes(value or b"", "little")
    return floor if floor < FLOOR_MAX else 0


class FairCalls(Service):
    """The combined calls of one process on one fair queue of one database, and its place in the line."""

    def __init__(self, database: Database, items: FairItems, root: RootKeys) -> None:
        self._database = database
        self._items = items
        self._puts = writes(database, root, self._put, is_plain=items.codec.is_plain)
        take = items.taker.take_in_turn
        self._takes = Takes(database, root, items.line, take, is_plain=items.codec.is_plain)

    def put(self, new: Draft) -> None:
        self._puts.call([new], 1, len(new.payload) + limits.TASK_KEY_COPIES * len(new.key))

    def take(self, count: int, timeout_s: float = 0, stop: Stop | None = None) -> Sequence[Handed]:
        """As ItemCalls.take. Raises: the error of an item that was passed over, if there is no other."""
        takes = self._takes
        found = takes.wait(timeout_s, count, stop) if timeout_s else takes.take(count, stop)
        if not found and self._items.passed:
            run(self._database, self._items.require_none_passed)
        return found

    def _put(self, tr: Transaction, items: list[Draft], random: bytes) -> Sequence[Draft]:
        self._items.append(tr, items, random, self._database.runtime.now_us())
        return items


class FairHandle(ItemHandle[FairCalls]):
    """Key function, codec, keys and services of a fair queue in a subspace."""

    __slots__ = ("_capacity", "_items", "_key")

    def __init__(
        self,
        subspace: Any,
        *,
        key: Callable[[Any], Any] | None,
        capacity: int | None = 128,
        weights: Mapping[Any, int] | None = None,
        codec: str = "json",
        type: Any = None,
        root: Any = DEFAULT_ROOT,
        guard: Guard | None = None,
        name: str | None = None,
    ) -> None:
        """`key`: the key function; None if each put gives its key. `guard`, `name`: those of a named queue.

        Raises: InvalidArgument, DeferredBody, UnknownCodec; WrongType for the subspace.
        """
        if capacity is not None:
            checked_whole("capacity", capacity, 0, WHOLE_MAX)
        packed = None if weights is None else packed_weights("weights", weights)
        self._key = None if key is None else checked_function("key", key)
        self._capacity = capacity
        self._codec = codec_named(codec, type)
        prefix = checked_prefix("subspace", subspace)
        registry = Registry(root)
        self._name, self._receipts = "" if name is None else checked_name(name), registry.keys
        self._items = FairItems(registry, TaskKeys(subspace), self._codec, packed, guard, self._name)
        self._aside, self._ask_exists = self._items.aside, self._items.guard
        weighed = frozenset((packed or {}).items())
        self._service = ("fair", prefix, self._codec.key, weighed, self._receipts.prefix)

    def _shown(self) -> dict[str, Any]:
        named = {"name": self._name} if self._name else {"prefix": self._items.keys.prefix}
        return {**named, "capacity": self._capacity}

    def _new_calls(self, database: Database) -> FairCalls:
        return FairCalls(database, self._items, self._receipts)

    def _take_within(self, tr: Transaction, count: int, now_us: int) -> Sequence[Handed]:
        return self._items.taker.take(tr, count, b"", now_us).values

    def _draft(self, item: Any, payload: bytes, cost: int, key: Any) -> Draft:
        if key is BY_FUNCTION:
            if self._key is None:
                raise InvalidArgument(name="key", wanted="given: the queue has no key function", got=None)
            key = require_finished("the key function", self._key(item))
        return draft(payload, key_bytes(key), cost)


class FairPutting(FairHandle):
    """The verb of a producer."""

    __slots__ = ()

    def put(self, tr: DatabaseOrTransaction, item: Any, *, cost: int = 1, key: Any = BY_FUNCTION) -> None:
        """Add an item; it counts as `cost` items of its `key`, or else of the one of the key function.

        Reads: by snapshot, the last item, the size, and how the key stands.
        Writes: the item, the size.
        Conflicts: a change that adds the first item of its key or removes the last; near the capacity, other
        puts.
        Raises: FairQueueFull with the `item` and the `current_size`; InvalidArgument, PayloadTooLarge; the
        errors of the key function. Then nothing is written.
        """
        payload = checked_payload(self._codec.encode(item))
        cost = checked_units("cost", cost)
        if observing.observers:
            with self._observed(tr, "put"):
                self._put_item(tr, item, payload, cost, key)
        else:
            self._put_item(tr, item, payload, cost, key)

    def _put_item(self, tr: DatabaseOrTransaction, item: Any, payload: bytes, cost: int, key: Any) -> None:
        if self._capacity is None and not is_transaction(tr):
            self._calls_of(tr).put(self._draft(item, payload, cost, key))
            return
        runtime = runtime_in(tr)
        random, now_us = runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES), runtime.now_us()
        make = partial(self._draft, item, payload, cost, key)
        put = partial(self._put, item=item, make=make, random=random, now_us=now_us)
        run_in(tr, self._receipts, put)

    def _put(
        self, tr: Transaction, *, item: Any, make: Callable[[], Draft], random: bytes, now_us: int
    ) -> None:
        if self._capacity is not None:
            size = self._items.admit(tr, self._capacity, random)
            if size is not None:
                raise FairQueueFull(item=item, current_size=size, capacity=self._capacity)
        # Only now: the key function must not be called for an item that has no room.
        self._items.append(tr, [make()], random, now_us)


class FairTaking(FairHandle):
    """The verbs of a consumer."""

    __slots__ = ()

    def get(self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None) -> Any:
        """Remove the next item and return it; None if there is none. All else is as in `take_item`."""
        return self.take_item(tr, timeout, stop=stop)[1]

    def take_item(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> tuple[bool, Any]:
        """Remove the next item. Return true and the item, or false and None.

        Given a database: exactly once; waits up to `timeout` seconds, in the line. If `stop`, an event, is
        set after an item was removed, the item is returned.
        Reads: in a transaction, the first pointer, and the state and the items of its key.
        Conflicts: other takers of the same key; puts, only if the key becomes empty. An answer of nothing:
        any put.
        Raises: InvalidArgument for a negative timeout, or for one beside a transaction, which cannot wait;
        WaitStopped as soon as `stop` is set; TooMuchToSweep given a transaction, behind too many unreadable
        items.
        """
        handed = self._take_handed(tr, timeout, stop=stop)
        return (False, None) if handed is None else (True, handed.item)

    def _take_handed(
        self, tr: DatabaseOrTransaction, timeout: float = 0, *, stop: Stop | None = None
    ) -> Handed | None:
        timeout_s = checked_wait(timeout, tr)
        checked_stop(stop, tr)
        found = self._taken(tr, "take", 1, timeout_s, stop)
        return found[0] if found else None

    def peek(self, tr: DatabaseOrTransaction, default: Any = None) -> Any:
        """The next item, which stays; `default` if there is none.

        Reads: the next item, by snapshot.
        Conflicts: none.
        """
        items, now_us = self._items, runtime_in(tr).now_us()

        def first(tr: Transaction) -> Any:
            check, found = items.guard(tr), items.available(tr, 1, now_us)
            check()
            asked = ask_payloads(tr.snapshot, items.keys, [offer.item for offer in found])
            return items.codec.decode(asked[0]()) if asked else default

        return run(tr, lambda tr: first(writable(tr)))

    def holder(self, db: AnyDatabase) -> Holder:
        """As `Queue.holder`, one item at a time."""
        return Holder(as_database(db), self._receipts, self._items)

    def give_back(
        self, tr: DatabaseOrTransaction, item: Any, *, cost: int = 1, key: Any = BY_FUNCTION
    ) -> None:
        """Put an item again, whatever the capacity: for a caller that has taken it and cannot use it.

        It counts as newly put. All else is as in `put`.
        """
        payload = checked_payload(self._codec.encode(item))
        new = self._draft(item, payload, checked_units("cost", cost), key)
        if is_transaction(tr):
            runtime = runtime_of(tr)
            random = runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
            self._items.append(writable(tr), [new], random, runtime.now_us())
        else:
            self._calls_of(tr).put(new)

    def size(self, tr: DatabaseOrTransaction) -> int:
        """The number of items, without those on their way to a caller in the line.

        Reads: one key, by snapshot.
        Conflicts: none.
        """
        return run(tr, lambda tr: self._items.size(writable(tr)))


class FairProducer(Grant, FairPutting):
    """A handle that puts items, and does nothing else. `FairQueue.producer` makes it."""

    __slots__ = ()


class FairConsumer(Grant, FairTaking):
    """A handle that takes items, and puts them again. `FairQueue.consumer` makes it."""

    __slots__ = ()


class _Contents(NamedTuple):
    round: list[Any]
    """The items of the page that belong to the rest of the current round, in order."""
    lines: list[tuple[Any, list[Any]]]
    """Pairs of a key and its other items, in order. (In a dict, the keys 1 and True would be one.)"""


class FairSnapshot(_Contents):
    """A page of the items of a fair queue. `next` is the `after=` of the following page, None at the end."""

    next: str | None = None


def snapshot(tr: Transaction, items: FairItems, limit: int, after: str | None) -> FairSnapshot:
    """The next items by arrival: those of the current round, and the others.

    An item behind the first limits.BATCH_ITEMS_MAX of the round counts as one of the others.
    """
    records, last = _records(tr, items, limit, _place(after))
    asked = ask_payloads(tr, items.keys, records)
    this_round = [record.id for record in items.looking.of_this_round(tr, limits.BATCH_ITEMS_MAX)]
    there = {record.id: shown(items.codec, payload) for record, payload in zip(records, asked, strict=True)}
    of_round = [id_ for id_ in this_round if id_ in there]
    left = [record for record in records if record.id not in of_round]
    keys = dict.fromkeys(record.key for record in left)
    found = FairSnapshot(
        [there[id_] for id_ in of_round],
        [(layer.unpack(key)[0], [there[one.id] for one in left if one.key == key]) for key in keys],
    )
    found.next = None if last is None else place_text(last)
    return found


def _records(
    tr: Transaction, items: FairItems, limit: int, after: bytes | None
) -> tuple[list[Record], bytes | None]:
    """The records of a page, and the id of the last item that it has read; None if that is the last one of
    all. Damaged records are left out, and keys that are too long or too short tell no place.
    """
    tasks = items.keys.tasks
    start = tasks.start if after is None else items.keys.task(after) + b"\x00"
    check = items.guard(tr)
    found = tr.snapshot.get_range(start, tasks.stop, limit=limit + 1).to_list()
    check()
    ids = [entry.key[len(tasks.start) :] for entry in found]
    read = [(id_, sound_record(entry.value, id_)) for id_, entry in zip(ids, found, strict=True)]
    sizes = [0 if record is None else record.size_bytes for _, record in read[:limit]]
    count = within_bytes(sizes)
    records = [record for _, record in read[:count] if record is not None]
    places = [id_ for id_ in ids[:count] if len(id_) == ID_BYTES]
    return records, places[-1] if places and count < len(found) else None


def _place(after: str | None) -> bytes | None:
    place = place_bytes(after)
    if place is not None and len(place) != ID_BYTES:
        raise no_place(after)
    return place


class FairQueue(FairPutting, FairTaking, KeepsAside):
    """A fair queue in a subspace. `key` computes the key of an item, a value that the tuple layer can pack.

    `weights`: quotas of keys in each round, 1 for all others. `capacity`: None is unbounded. Every user of
    the subspace must choose the same options. A FairQueue is a value: threads may share it.
    """

    __slots__ = ()

    @classmethod
    def named(
        cls,
        target: DatabaseOrTransaction,
        name: str,
        *,
        key: Callable[[Any], Any] | None = None,
        capacity: int | None = None,
        weights: Mapping[Any, int] | None = None,
        codec: str | None = None,
        type: Any = None,
        create: bool = True,
        root: Any = DEFAULT_ROOT,
    ) -> "FairQueue":
        """The queue registered as `name`, which tools know. With `create`, it is registered now if there is
        none.

        Its capacity (None for no bound), weights and codec are chosen when it is created. The key function
        and the `type` belong to this handle. After a drop, a call raises QueueDropped.
        Raises: QueueNotFound without `create`; QueueKindMismatch; QueueExists for one with other options;
        InvalidArgument.
        """
        registry = Registry(root)
        wished: dict[str, Any] = dict(zip(FAIR_OPTIONS, (capacity, weights, codec), strict=True))
        asked = {option: value for option, value in wished.items() if value is not None}
        options = stored_options(**asked, type=type)
        if key is not None:
            checked_function("key", key)
        found = (
            registry.find_or_create(target, name, FAIR_ITEMS, options)
            if create
            else registry.find(target, name, FAIR_ITEMS)
        )
        require_options(found, FAIR_OPTIONS)
        there = as_given(found.options)
        error = exists_already(name, found.kind, there, asked)
        if error.differing:
            raise error
        guard, contents = registry.guard(found), registry.contents(found)
        return cls(contents, key=key, type=type, root=root, guard=guard, name=name, **there)

    def key_statistics(self, tr: DatabaseOrTransaction, limit: int) -> list[KeyStatistics]:
        """The keys with the most waiting items: exact, and chosen, as in TaskQueue.key_statistics."""
        checked_keys(limit)
        now_us = runtime_in(tr).now_us()
        return run(tr, lambda tr: self._items.busiest(writable(tr), limit, now_us))

    def waiting(self, tr: DatabaseOrTransaction, limit: int) -> "list[WaitingCall]":
        """The calls that wait for items. All else is as in `Queue.waiting`."""
        return self._waiting_in(tr, limit, lambda: [self._items.line])

    def snapshot(
        self, tr: DatabaseOrTransaction, limit: int = limits.BATCH_ITEMS_MAX, *, after: str | None = None
    ) -> FairSnapshot:
        """A page of the items by arrival: at most `limit` and limits.BATCH_ITEMS_MAX items, and
        limits.BATCH_BYTES_MAX bytes, or one larger item.

        The page's `next` is the `after` of the following page, None at the end. Of the current round, the
        first limits.BATCH_ITEMS_MAX items are marked.
        Reads: by snapshot.
        Conflicts: none.
        Raises: InvalidArgument.
        """
        most = checked_limit(limit)
        return run(tr, lambda tr: snapshot(writable(tr), self._items, most, after))

    # Halves of the queue.

    def producer(self) -> FairProducer:
        """A handle that only puts: `put`."""
        return FairProducer._half_of(self)

    def consumer(self) -> FairConsumer:
        """A handle that only takes: `get`, `take_item`, `give_back` and `size`."""
        return FairConsumer._half_of(self)


_NO_ITEM: Any = object()


class QueueBy(Handle):
    """A fair queue on a database, with the calls of queue-by: `q(item)` puts, `q()` gets, `len(q)` counts."""

    __slots__ = ("database", "queue")

    def __init__(self, db: AnyDatabase, queue: FairQueue) -> None:
        """`queue` computes the keys, and has the capacity. Raises: NotADatabase."""
        self.database = as_database(db)
        self.queue = queue

    def _shown(self) -> dict[str, Any]:
        return {**self.queue._shown(), **self.database._shown()}

    def __call__(self, item: Any = _NO_ITEM) -> Any:
        """With an item: put it, and return this object. Without: the next item; None if there is none.

        Raises: FairQueueFull with the `item` and the `current_size`; all else as `FairQueue.put` and `get`.
        """
        if item is _NO_ITEM:
            return self.queue.get(self.database)
        self.queue.put(self.database, item)
        return self

    def __len__(self) -> int:
        return self.queue.size(self.database)
