"""Shape: the facts and helpers of one task queue that belong to no single transaction."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, Self

from fdbqueue.aside import Aside
from fdbqueue.codec import PayloadCodec, stored_codec
from fdbqueue.disciplines.bag import Bag
from fdbqueue.disciplines.discipline import Discipline
from fdbqueue.disciplines.fifo import Fifo
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.disciplines.lanes import Lanes
from fdbqueue.errors import DefinitionUnreadable, InvalidArgument, UnsupportedOption
from fdbqueue.parking.under import Limits, limits_of
from fdbqueue.partitions.current import Current
from fdbqueue.partitions.flags import ring_for_room
from fdbqueue.partitions.keys import SharedKeys
from fdbqueue.partitions.plan import Plan
from fdbqueue.records.keys import TaskKeys
from fdbqueue.registry.definition import Definition
from fdbqueue.registry.registry import Guard, Registry
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction
from fdbqueue.tasks.kinds import Draft, drafted, kind_named, owner_of, stored_settings
from fdbqueue.tasks.mending import Mender


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
        self.retain_us = None if self.settings.retain_s is None else round(self.settings.retain_s * 1_000_000)
        """Time for which the queue keeps ended tasks; None if it keeps none."""
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
        self.guard = guard
        self.exists: Guard = guard if current is None else current.exists
        """As `guard`, for calls that do not go by the plan."""
        # All partitions set values aside in one place, which outlives each of them.
        self.aside: Aside = Aside(keys.prefix, keys.line) if family is None else family[0].aside
        self.limits: Limits | None = limits_of(
            self.root.prefix, definition.id, self.settings.limits, self.settings.task_limits
        )
        """None for a queue without limits."""
        self.mender = Mender(
            self.keys, self.shared, self.discipline, self.aside, self.limits, self.tell_of_room
        )
        if isinstance(self.discipline, Fifo | Keyed):
            self.discipline.mend = self.mender.entry
        self.owner = owner_of(definition)

    def _made_discipline(self) -> Discipline:
        named = self.settings.task_limits
        try:
            made = self.kind.made(self.keys, self.settings.to_options())
            if not named:
                return made
            return in_lanes(self.kind.name, self.keys, made, named, self.root.prefix, self.definition.id)
        except InvalidArgument:
            raise
        except (ValueError, TypeError, LookupError) as reason:
            raise DefinitionUnreadable(name=self.name, reason=str(reason)) from reason

    def starting_at(self, random: bytes) -> Self:
        """The same shape, whose takes begin at a place of their own: the queue is a bag."""
        shape, bag = copy(self), Bag(self.keys, {})
        bag.mend = self.mender.entry
        bag.start_at(random)
        shape.discipline = bag
        return shape

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
        return drafted(self.kind, self.settings, data, payload, options)

    def require_touch(self) -> None:
        """Raises: UnsupportedOption for a kind that has no ttr, so that its leases do not end by time."""
        if not self.kind.supports("ttr"):
            raise UnsupportedOption(kind=self.kind.name, option="touch")


def in_lanes(
    kind: str, keys: TaskKeys, made: Discipline, names: Sequence[str], root: bytes = b"", queue: int = 0
) -> Lanes:
    """Raises: InvalidArgument for a discipline that is not one ordered index."""
    if not isinstance(made, Fifo) or isinstance(made, Bag):
        wanted = f"none: the kind {kind!r} has no order in which its tasks can wait apart"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=names)
    return Lanes(keys, made, names, root, queue)


def shape_of(registry: Registry, definition: Definition, type: Any = None) -> Shape:
    """The shape of a registered queue, which is its partition 0; `type` is that of its payloads.

    Raises: UnknownKind if this process has not registered the kind; DefinitionUnreadable for options of a
    newer release; InvalidArgument for the type, or for a kind with a function that makes no discipline.
    """
    codec = stored_codec(stored_settings(definition).codec, type)
    keys, current = TaskKeys(registry.contents(definition)), Current(registry, definition)
    return Shape(registry, definition, keys, current.guard, codec, current)
