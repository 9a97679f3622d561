"""Shape: the facts and helpers of one task queue that belong to no single transaction, and its mender.

Mending: an unreadable record is repaired or set aside, so that it holds up no other task.
A ready task has its record in the index that takers read, too. If one of the two is damaged, the other is
written in its place. If both are, the task is set aside (unreadable.py): its stored values and its payload.
Then only its keys tell which task it was. The key of its state ends in the id, and has the task key as its
value. From these the counters and the discipline learn that the task has gone.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.codec import PayloadCodec, stored_codec
from fdbqueue.core.errors import DefinitionUnreadable, InvalidArgument, UnsupportedOption
from fdbqueue.core.partitions import Current, Plan, SharedKeys, lasting_bytes, ring_for_room
from fdbqueue.core.registry import Definition, Guard, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import Aside
from fdbqueue.tasks.feature import Feature, features_of_queue, overriding
from fdbqueue.tasks.options import (
    NOT_GIVEN,
    Draft,
    Settings,
    drafted,
    kind_named,
    owner_of,
    span_us,
    stored_settings,
    whole_us,
)
from fdbqueue.tasks.stored.discipline import Discipline, Fifo, Mended, Priority
from fdbqueue.tasks.stored.records import (
    COUNTER_NAMES,
    ID_BYTES,
    LIVE_OF,
    NEVER_US,
    SESSION_BYTES,
    Record,
    TaskKeys,
    id_in,
    packed,
    partition_of,
    priority_in,
    record_to_bytes,
    sound_record,
)

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.under import Limits


NO_RECORD = "the record of a task cannot be read"
NO_INDEX = "the entry of a ready task cannot be read"


class Mender:
    def __init__(
        self,
        keys: TaskKeys,
        shared: SharedKeys,
        discipline: Discipline,
        aside: Aside,
        limits_: "Limits | None",
        has_gone: Callable[[Transaction], None],
    ) -> None:
        """`has_gone` is called after a task counts no longer."""
        self._has_gone = has_gone
        self._keys = keys
        self._limits = limits_
        self._shared = shared
        self._discipline = discipline
        self._aside = aside
        self.removed = 0
        """Number of entries removed from indexes: a reader that sees it change must read on."""

    def entry(self, tr: Transaction, key: bytes, value: bytes) -> Record | None:
        """The ready task at `key` of an index, its entry written anew; None if the task was set aside.

        Reads: the record, serialisably. Conflicts: any change of the task and of the entry.
        """
        id_ = id_in(key)
        raw = tr.get(self._keys.task(id_)).value
        record = sound_record(raw, id_) or self._copy_of(tr, id_)
        if record is not None and record.state == TaskState.READY and self._is_of(tr, key, record):
            tr.add_read_conflict_key(key)
            for damaged in (key, self._discipline.filed(record), self._keys.task(id_)):
                tr.set(damaged, record_to_bytes(record))
            return record
        self.removed += 1
        if record is not None:  # the entry is none of that task
            self._aside.put(tr, key, [value], NO_INDEX)
            tr.clear(key)
            return None
        self._set_aside(tr, key, [value] if raw is None else [value, raw], NO_INDEX)
        return None

    def record(self, tr: Transaction, id_: bytes, raw: bytes) -> None:
        """Repair an unreadable record of a task from the index, or set the task aside.

        Reads: the key of its state, among the first limits.SEARCHED_MAX of each state, by snapshot.
        """
        record = self._copy_of(tr, id_)
        if record is None:
            self._set_aside(tr, self._keys.task(id_), [raw], NO_RECORD)
        else:
            tr.add_read_conflict_key(self._discipline.filed(record))
            tr.set(self._keys.task(id_), record_to_bytes(record))

    def lost(self, tr: Transaction, key: bytes, value: bytes) -> None:
        """Clear the key of a state that names a missing task, and count the task no longer."""
        gone = self._stand_in(key, value)
        tr.add_read_conflict_key(key)
        tr.clear(key)
        if gone is None:
            return
        tr.add(self._keys.counters, packed(COUNTER_NAMES, {LIVE_OF[gone.state]: -1}))
        self._has_gone(tr)
        if gone.state == TaskState.BURIED:
            for row in self._entries_of(tr, self._keys.classed, gone.id):  # among the first of all classes
                late.failures.lost(tr, self._keys, row.key)
        # Without its task key, the line that has lost a task is unknown.
        if gone.key or not isinstance(self._discipline, late.stored.keyed.Keyed):
            self._discipline.shift(tr, [gone], ())

    def forget(self, tr: Transaction, id_: bytes) -> None:
        """Remove a task, readable or not. Reads: as `record`."""
        state = self._state_of(tr, id_)
        if state is not None:
            self.lost(tr, state.key, state.value)
        self._clear(tr, id_)

    def _set_aside(self, tr: Transaction, key: bytes, values: Sequence[bytes], reason: str) -> None:
        id_ = id_in(key)
        self._aside.put(tr, key, values, reason, self._keys.payloads_of(id_))
        self.forget(tr, id_)
        tr.clear(key)

    def _clear(self, tr: Transaction, id_: bytes) -> None:
        beside = (self._keys.payloads_of(id_), self._keys.failures_of(id_), self._keys.steps_of(id_))
        tr.add_read_conflict_key(self._keys.task(id_))
        tr.clear(self._keys.task(id_))
        if partition_of(id_) != self._keys.partition:
            tr.clear(self._shared.moved(id_))
        if self._limits is not None:
            self._limits.give_back_unread(tr, id_)
        for under in beside:
            tr.clear_range(under.start, under.stop)

    def _is_of(self, tr: Transaction, key: bytes, record: Record) -> bool:
        """True if `key` is the key of the ready task in an index that takers read."""
        if self._discipline.filed(record) == key:
            return True
        return isinstance(self._discipline, late.stored.keyed.Keyed) and self._discipline.points_at(
            tr, key, record
        )

    def _copy_of(self, tr: Transaction, id_: bytes) -> Record | None:
        copies = (sound_record(row.value, id_) for row in self._entries_of(tr, self._discipline.index, id_))
        return next((copy for copy in copies if copy is not None), None)

    def _state_of(self, tr: Transaction, id_: bytes) -> KeyValue | None:
        """The key of the state that the task is in, if it is among the first of that state."""
        for under in (self._discipline.index, self._keys.taken, self._keys.delayed, self._keys.buried):
            for row in self._entries_of(tr, under, id_):
                return row
        return None

    def _entries_of(self, tr: Transaction, under: slice, id_: bytes) -> Iterator[KeyValue]:
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.SEARCHED_MAX)
        return (row for row in rows if row.key.endswith(id_))

    def _stand_in(self, key: bytes, value: bytes) -> Record | None:
        """A record with the facts that a key of a state tells; None for a key that no task has."""
        for state, under in (
            (TaskState.READY, self._discipline.index),
            (TaskState.TAKEN, self._keys.taken),
            (TaskState.DELAYED, self._keys.delayed),
            (TaskState.BURIED, self._keys.buried),
        ):
            if under.start <= key < under.stop and len(key) >= len(under.start) + ID_BYTES:
                place = key[len(under.start) : -ID_BYTES]
                return self._told(state, place, value, id_in(key))
        return None

    def _told(self, state: TaskState, place: bytes, value: bytes, id_: bytes) -> Record | None:
        key = value
        if state == TaskState.READY:
            key = b""
            if isinstance(self._discipline, late.stored.keyed.Keyed):
                key, place = self._discipline.parted(place)
        session = place if state == TaskState.TAKEN else b""
        if state == TaskState.TAKEN and len(session) != SESSION_BYTES:
            return None
        return Record(
            id=id_,
            state=state,
            pri=0 if session else priority_in(place),
            created_us=0,
            expires_us=NEVER_US,
            ttr_us=NEVER_US,
            size_bytes=0,
            key=key,
            session=session,
        )


class Shape:
    def __init__(
        self,
        registry: Registry,
        definition: Definition,
        keys: TaskKeys,
        guard: Guard,
        codec: PayloadCodec,
        current: Current | None = None,
        family: "dict[int, Shape] | None" = None,
    ) -> None:
        """`current`: the plan of a queue that may have partitions; `keys` are then those of one of them, and
        `family` has the shapes of all that this process has used.

        Raises: as `shape_of`.
        """
        self.registry = registry
        self.definition = definition
        self.root: RootKeys = registry.keys
        self.name = definition.name
        self.kind = kind_named(definition.kind)
        self._go_by(stored_settings(definition))
        self.codec = codec
        self.result_codec = stored_codec(self.settings.codec)
        """That of results: the type of a handle is one of data."""
        self.keys = keys
        self.current = current
        self.shared = SharedKeys(registry.contents(definition))
        """The keys that all partitions share."""
        self._family = {keys.partition: self} if family is None else family
        self.discipline = self._made_discipline()
        self.may_free_at_end = not isinstance(self.discipline, Fifo) and getattr(
            self.discipline, "counts_taken", True
        )
        """True if the end of a lease may make another task ready to be taken."""
        self.puts_read = getattr(type(self.discipline), "ask_put", None) is not Fifo.ask_put
        """True if a put needs the reads of `ask_put`; otherwise `shift` files new tasks."""
        self.takes_anywhere: bool = getattr(self.discipline, "takes_anywhere", False)
        """True if each take may begin at a place of its own: the queue is a bag."""
        self.guard = guard
        self.exists: Guard = guard if current is None else current.exists
        """As `guard`, for calls that do not go by the plan."""
        # All partitions set values aside in one place, which outlives each of them.
        self.aside: Aside = Aside(keys.prefix, keys.line) if family is None else family[0].aside
        self.limits: Limits | None = self._of_queue.get("limits")
        """None for a queue without limits."""
        self.mender = Mender(
            self.keys, self.shared, self.discipline, self.aside, self.limits, self.tell_of_room
        )
        if isinstance(self.discipline, Mended):
            self.discipline.mend = self.mender.entry
        if current is not None:
            current.on_options(definition, self._follow)
        self.owner = owner_of(definition)
        self._plain: Draft | None = None
        self.service = ("tasks", self.root.prefix, definition.id, lasting_bytes(definition), codec.key)
        """The key of the services of a process for handles of this type; without its end, for all types. Not
        only the id: a create that has not committed leaves it to another queue.
        """

    def _go_by(self, settings: Settings) -> None:
        self.settings = settings
        ttr = settings.ttl if settings.ttr is None else settings.ttr
        self.ttl_us, self.ttr_us = span_us("ttl", settings.ttl), span_us("ttr", ttr)
        self.result_ttl_us = 0 if settings.result_ttl is None else whole_us(settings.result_ttl)
        self._of_queue = features_of_queue(settings, self.root.prefix, self.definition.id)
        self.features: Sequence[Feature] = tuple(self._of_queue.values())
        """The features of the queue, but not those that its tasks may have."""
        self.starting, self.moving, self.ending, self.sweeping = (
            overriding(self.features, hook) for hook in ("started", "moved", "gone", "sweep")
        )

    def _follow(self, definition: Definition) -> None:
        """Go by the options of a later definition of the queue.

        Raises: DefinitionUnreadable for options of a newer release, with nothing changed.
        """
        self._go_by(stored_settings(definition))
        self.definition = definition
        alter = getattr(self.discipline, "alter", None)
        if alter is not None:
            alter(self.settings.to_options())

    def _made_discipline(self) -> Discipline:
        named = self.settings.task_limits
        try:
            made = self.kind.made(self.keys, self.settings.to_options())
            if not named:
                return made
            return late.limits.lanes.in_lanes(
                self.kind.name, self.keys, made, named, self.root.prefix, self.definition.id
            )
        except InvalidArgument:
            raise
        except (ValueError, TypeError, LookupError) as reason:
            raise DefinitionUnreadable(name=self.name, reason=str(reason)) from reason

    def starting_at(self, random: bytes) -> Self:
        """The same shape of a bag, with takes that begin at a place of their own."""
        shape, bag = copy(self), late.stored.discipline.Bag(self.keys, {})
        bag.mend = self.mender.entry
        bag.start_at(random)
        shape.discipline = bag
        if self.current is not None:
            self.current.on_options(shape.definition, shape._follow)
        return shape

    def start_at(self, random: bytes) -> None:
        """Let the next take from a bag begin at another place."""
        assert isinstance(self.discipline, late.stored.discipline.Bag)
        self.discipline.start_at(random)

    def following(self, current: Current | None) -> "Shape":
        """The shape of partition 0, by the plan of another database."""
        if current is None:
            return self
        return Shape(self.registry, self.definition, self.keys, current.guard, self.codec, current)

    @property
    def plan(self) -> Plan | None:
        """The present plan; None for a queue without partitions."""
        return None if self.current is None else self.current.plan

    def tell_of_room(self, tr: Transaction) -> None:
        """Wake the puts that wait for room in any partition. One key for all: such a put has one watch."""
        if self.settings.capacity and self.plan is not None:
            ring_for_room(tr, self.shared)

    def partition(self, number: int) -> "Shape":
        """The shape of that partition of the queue."""
        found = self._family.get(number)
        if found is None:
            keys = TaskKeys(self.registry.contents(self.definition), number)
            found = Shape(
                self.registry, self.definition, keys, self.guard, self.codec, self.current, self._family
            )
            self._family[number] = found
        return found

    def draft(self, data: Any, payload: bytes, options: Mapping[str, Any]) -> Draft:
        """As `drafted`. Drafts without options are alike."""
        if options != NOT_GIVEN or options["delay"] is False:
            return drafted(self.kind, self.settings, data, payload, options)
        if self._plain is None:
            self._plain = drafted(self.kind, self.settings, None, b"", {})
        return replace(self._plain, data=data, payload=payload)

    def require_touch(self) -> None:
        """Raises: UnsupportedOption for a kind that has no ttr, so that its leases do not end by time."""
        if not self.kind.supports("ttr"):
            raise UnsupportedOption(kind=self.kind.name, option="touch")

    @property
    def may_overtake(self) -> bool:
        """True if each ready task may be taken, and all takes go by one order."""
        return type(self.discipline) in (Fifo, Priority)

    def overtake_of(self, most: int = limits.WORKER_OVERTAKE) -> int:
        """`most`; 0 for a queue with task keys or task limits, and for a bag."""
        return most if self.may_overtake else 0

    def require_overtake(self, overtake: int) -> None:
        """Raises: UnsupportedOption for a queue with task keys or task limits, and for a bag."""
        if overtake and not self.may_overtake:
            raise UnsupportedOption(kind=self.kind.name, option="overtake: its takes have no single order")


def shape_of(registry: Registry, definition: Definition, type: Any = None) -> Shape:
    """The shape of a registered queue, which is its partition 0; `type` is that of its payloads.

    Raises: UnknownKind if this process has not registered the kind; DefinitionUnreadable for options of a
    newer release; InvalidArgument for the type, or for a kind with a function that makes no discipline.
    """
    codec = stored_codec(stored_settings(definition).codec, type)
    keys, current = TaskKeys(registry.contents(definition)), Current(registry, definition)
    return Shape(registry, definition, keys, current.guard, codec, current)
