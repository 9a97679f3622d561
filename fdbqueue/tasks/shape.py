"""Shape: the facts and helpers of one task queue that belong to no single transaction."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from fdbqueue import tasks as late
from fdbqueue.core.codec import PayloadCodec, stored_codec
from fdbqueue.core.errors import DefinitionUnreadable, InvalidArgument, UnsupportedOption
from fdbqueue.core.partitions import Current, Plan, SharedKeys, ring_for_room
from fdbqueue.core.registry import Definition, Guard, Registry
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.tasks.disciplines.discipline import Discipline, Fifo, Mended
from fdbqueue.tasks.feature import Feature, features_of_queue, overriding
from fdbqueue.tasks.kinds import NOT_GIVEN, Draft, drafted, kind_named
from fdbqueue.tasks.mending import Mender
from fdbqueue.tasks.options import owner_of, stored_settings
from fdbqueue.tasks.records.keys import TaskKeys

if TYPE_CHECKING:
    from fdbqueue.tasks.parking.under import Limits


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
        self.settings = stored_settings(definition)
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
        of_queue = features_of_queue(self.settings, self.root.prefix, definition.id)
        self.limits: Limits | None = of_queue.get("limits")
        """None for a queue without limits."""
        self.features: Sequence[Feature] = tuple(of_queue.values())
        """The features that the queue was created with, but not those that its tasks may have."""
        self.starting, self.moving, self.ending = (
            overriding(self.features, hook) for hook in ("started", "moved", "gone")
        )
        self.mender = Mender(
            self.keys, self.shared, self.discipline, self.aside, self.limits, self.tell_of_room
        )
        if isinstance(self.discipline, Mended):
            self.discipline.mend = self.mender.entry
        self.owner = owner_of(definition)
        self._plain: Draft | None = None
        self.service = ("tasks", self.root.prefix, definition.id, codec.key)
        """The key of the services of a process for handles of this type; without its end, for all types."""

    def _made_discipline(self) -> Discipline:
        named = self.settings.task_limits
        try:
            made = self.kind.made(self.keys, self.settings.to_options())
            if not named:
                return made
            return late.disciplines.lanes.in_lanes(
                self.kind.name, self.keys, made, named, self.root.prefix, self.definition.id
            )
        except InvalidArgument:
            raise
        except (ValueError, TypeError, LookupError) as reason:
            raise DefinitionUnreadable(name=self.name, reason=str(reason)) from reason

    def starting_at(self, random: bytes) -> Self:
        """The same shape of a bag, with takes that begin at a place of their own."""
        shape, bag = copy(self), late.disciplines.bag.Bag(self.keys, {})
        bag.mend = self.mender.entry
        bag.start_at(random)
        shape.discipline = bag
        return shape

    def start_at(self, random: bytes) -> None:
        """Let the next take from a bag begin at another place."""
        assert isinstance(self.discipline, late.disciplines.bag.Bag)
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


def shape_of(registry: Registry, definition: Definition, type: Any = None) -> Shape:
    """The shape of a registered queue, which is its partition 0; `type` is that of its payloads.

    Raises: UnknownKind if this process has not registered the kind; DefinitionUnreadable for options of a
    newer release; InvalidArgument for the type, or for a kind with a function that makes no discipline.
    """
    codec = stored_codec(stored_settings(definition).codec, type)
    keys, current = TaskKeys(registry.contents(definition)), Current(registry, definition)
    return Shape(registry, definition, keys, current.guard, codec, current)
