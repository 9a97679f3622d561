"""Current: the definition of a queue in one database, as this process knows it, with its plan.

A repartition changes the definition while calls are under way. Each call reads the definition serialisably,
so a transaction of the old plan conflicts with the change. A call that reads another plan than its process
knows keeps the newer one, and raises the conflict by itself: its retry follows the new plan. It never keeps a
plan that its own transaction has stored: that may not commit.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from weakref import WeakMethod

import msgspec

from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import DefinitionUnreadable, QueueDropped, RepartitionNotCommitted
from fdbqueue.core.partitions.keys import SharedKeys, ring
from fdbqueue.core.partitions.plan import Plan
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.seam import Transaction, Value

OPTION = "partitions"
"""The option of a definition that holds the plan."""


class PartitionGone(Exception):
    """The partition that a take has chosen has gone with the last repartition."""


class Current:
    def __init__(self, registry: Registry, definition: Definition) -> None:
        """Raises: DefinitionUnreadable for a plan that is none."""
        self.definition = definition
        self.plan = plan_of(definition)
        """The plan; None for a queue that never had partitions. Ask the guard first, then read it: so a
        transaction never relies on an older plan than the one it checks."""
        self._listeners: list[WeakMethod[Callable[[], None]]] = []
        self._key = registry.keys.definition(definition.name)
        self._stored: bytes | None = definition.to_bytes()
        self._version = 0
        """The latest read version at which another definition was met."""

    def exists(self, tr: Transaction) -> Callable[[], None]:
        """Ask for the definition. The reply raises QueueDropped, and does not go by the plan."""
        found = tr.get(self._key)

        def reply() -> None:
            self._present(found.value)

        return reply

    def on_partitions(self, listener: Callable[[], None]) -> None:
        """Have a method called when the queue, which had no partitions, has some, or the other way round.

        Several handles share this object. It keeps no service alive.
        """
        self._listeners.append(WeakMethod(listener, self._listeners.remove))

    def guard(self, tr: Transaction) -> Callable[[], None]:
        """Ask for the definition. The reply raises QueueDropped, a conflict if the plan has changed, or
        RepartitionNotCommitted if `tr` itself has changed it.
        """
        return partial(self._check, tr, tr.get(self._key), self._stored)

    def guard_of(self, partition: int, tr: Transaction) -> Callable[[], None]:
        """As `guard`, for a partition but partition 0. The reply also raises PartitionGone: no key may come
        into a partition that the plan does not have.
        """
        check = self.guard(tr)

        def reply() -> None:
            check()
            if self.plan is None or partition >= self.plan.high:
                raise PartitionGone

        return reply

    def _check(self, tr: Transaction, found: Value, expected: bytes | None) -> None:
        value = found.value
        if value != expected:
            self._keep(tr, value)
            raise conflict_in(tr)

    def _keep(self, tr: Transaction, value: bytes | None) -> None:
        """Keep a later definition: another plan, or the layout and the appended parts of a newer release."""
        found = self._present(value)
        plan, version = plan_of(found), tr.get_read_version().wait()
        if self._is_later(plan, version) or self._is_restored(version):
            if value != self._committed(tr, version):
                raise RepartitionNotCommitted(name=self.definition.name)
            self._version = version
            self._follow(found, value, plan)

    def _present(self, value: bytes | None) -> Definition:
        """The definition in `value`. Raises: QueueDropped."""
        found = None if value is None else Definition.from_bytes(self.definition.name, value)
        if found is None or not _unplanned(found).is_same_queue(_unplanned(self.definition)):
            raise QueueDropped(name=self.definition.name)
        return found

    def _is_later(self, plan: Plan | None, version: int) -> bool:
        """With the plan of before, the version decides: layouts and appended parts have no order."""
        found, known = epoch_of(plan), epoch_of(self.plan)
        return found > known or (found == known and version >= self._version)

    def _is_restored(self, version: int) -> bool:
        """True if a plan of before, read at this version, is the present one: data of a backup.

        Else the transaction began before the present plan was stored, and conflicts with it.
        """
        known, self._version = self._version, max(self._version, version)
        return 0 < known <= version

    def _committed(self, tr: Transaction, version: int) -> bytes | None:
        """The stored definition, without the writes of `tr`. Round trips: 1."""
        other: Transaction = tr.db.create_transaction()
        other.set_read_version(version)
        value: bytes | None = other.get(self._key).value
        return value

    def _follow(self, found: Definition, value: bytes | None, plan: Plan | None) -> None:
        had_parts = self.plan is not None
        # In this order: a call that asks its guard meanwhile has the later plan, and conflicts.
        self.plan = plan
        self.definition, self._stored = found, value
        if had_parts != (plan is not None):
            for reference in tuple(self._listeners):
                listener = reference()
                if listener is not None:
                    listener()


def epoch_of(plan: Plan | None) -> int:
    return -1 if plan is None else plan.epoch


def plan_of(definition: Definition) -> Plan | None:
    stored = definition.options.get(OPTION)
    try:
        plan = msgspec.convert(stored, Plan | None)
        if plan is not None and not plan.is_sound():
            raise ValueError(f"{stored} are no partitions")
    except (msgspec.ValidationError, ValueError) as reason:
        raise DefinitionUnreadable(name=definition.name, reason=str(reason)) from reason
    return plan


def with_plan(definition: Definition, plan: Plan) -> Definition:
    return replace(definition, options={**definition.options, OPTION: msgspec.to_builtins(plan)})


def store(tr: Transaction, registry: Registry, name: str, keys: SharedKeys, plan: Plan) -> None:
    """Store the plan, and wake the takes that wait for all partitions. Conflicts: every call on the queue."""
    found = registry.find(tr, name)
    tr.set(registry.keys.definition(name), with_plan(found, plan).to_bytes())
    ring(tr, keys)


def _unplanned(definition: Definition) -> Definition:
    options = {name: value for name, value in definition.options.items() if name != OPTION}
    return replace(definition, options=options)
