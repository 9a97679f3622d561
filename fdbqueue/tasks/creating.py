"""Creating a task queue where there may be one: it has to have the kind and the options that are asked for.

A temporary queue belongs to a session. Its contents end with that session, but its definition stays, and
refuses puts. The next opening that may create a queue replaces it: the new queue has an id, contents and
statistics of its own, and handles of the old one raise QueueDropped.

Dropping a task queue: refused while a live request waits for its tasks, or a live lease holds one.
Dead requests and leases that are over do not prevent a drop, but thousands of them may come before the first
live one. A transaction reads a batch of each. If the batch is full and nothing in it is alive, the
transaction removes the batch, and the next one reads on. The transaction that drops the queue has read both
ranges to their ends, serialisably. So a request or a lease that comes meanwhile conflicts with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import require_verb_batch, writable
from fdbqueue.core.database import Database, as_database, is_transaction, run
from fdbqueue.core.errors import InvalidArgument, QueueBusy, QueueExists, UnknownSession
from fdbqueue.core.limits import SPAN_MAX_S
from fdbqueue.core.line.decision import Ticket
from fdbqueue.core.line.staging import Line
from fdbqueue.core.registry import Definition, Registry, checked_name, exists_already
from fdbqueue.core.seam import DatabaseOrTransaction, KeyValue, Transaction
from fdbqueue.core.sessions.ending import end_session, is_overdue
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import apply_sweep, plan_sweep
from fdbqueue.tasks.feature import features_of_queue
from fdbqueue.tasks.options import UNSTORED, Settings, as_given, owner_of, settings_for, stored_settings
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import Record, id_in
from fdbqueue.tasks.verbs import free_keys

ANY = "any"
_CURE = ' Open it with the options that it has, or as it is: if_not_exists="any".'


@dataclass(frozen=True)
class Asked:
    """The definition that a caller asks for. `given`: names of the options, and perhaps "kind", that the
    caller gave. All others are defaults, and ask for nothing of a queue that is there.
    """

    name: str
    kind: str
    settings: Settings
    given: frozenset[str] = frozenset()
    temporary: bool = False

    def of(self, found: Definition) -> Definition:
        """`found`. Raises: QueueExists if it has another kind or other options than those that were given."""
        error = self.exists(found.kind, found.options, _CURE)
        if error.differing:
            raise error
        return found

    def exists(self, kind: str, options: Mapping[str, Any], cure: str = "") -> QueueExists:
        """The error for a queue that is there, of that kind and with these options."""
        wanted = _comparable(self.kind, self.settings.to_options())
        wanted["temporary"] = self.temporary
        asked = {name: value for name, value in wanted.items() if name in self.given}
        return exists_already(self.name, kind, _comparable(kind, options), asked, cure)


def asked_for(
    name: str, kind: str | None, options: Mapping[str, Any], temporary: bool, if_not_exists: bool | str
) -> Asked:
    """The definition with these options, None for those that were not given."""
    if not isinstance(if_not_exists, bool) and if_not_exists != ANY:
        raise InvalidArgument(name="if_not_exists", wanted='True, False or "any"', got=if_not_exists)
    given = {option: value for option, value in options.items() if value is not None}
    parts = {"kind": kind, **given, "temporary": temporary or None}
    names = frozenset(part for part, value in parts.items() if value is not None)
    if "limits" in given or "task_limits" in given:
        named = late.limits.rule.checked_limits(given.get("limits"), given.get("task_limits"))
        given["limits"], given["task_limits"] = named
    known, settings = settings_for(kind, given)
    wanted = frozenset[str]() if if_not_exists == ANY else names
    return Asked(checked_name(name), known.name, settings, wanted, bool(temporary))


def _comparable(kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Kind and options in the caller's form: a lease without a ttr of its own lasts for the ttl."""
    found = {"kind": kind, **UNSTORED, **as_given(options)}
    ttr = found.get("ttl") if found.get("ttr") is None else found["ttr"]
    return {**found, "ttr": None if ttr == SPAN_MAX_S else ttr, "temporary": bool(found.get("temporary"))}


def created(target: DatabaseOrTransaction, registry: Registry, asked: Asked) -> Definition:
    """Register a queue.

    Reads: its limits, the session of a temporary queue; as Registry.create.
    Writes: as Registry.create.
    Raises: QueueExists, SubspaceInUse, LimitNotFound, LimitUnreadable; UnknownSession in a transaction.
    """
    asked = _ready(target, registry, asked)
    try:
        return registry.create(target, asked.name, asked.kind, asked.settings.to_options())
    except QueueExists as there:
        raise asked.exists(there.kind, there.options) from None


def opened_or_created(target: DatabaseOrTransaction, registry: Registry, asked: Asked) -> Definition:
    """The queue of that name. It is registered now if there is none, or a temporary one of an ended session.

    Given a database, an overdue session is ended first. Given a transaction, the stored state decides.
    Reads: the definition, the session of a temporary queue; for a new queue, as `created`.
    Raises: QueueExists for another kind or other options than those that are asked for, and for a temporary
    queue of another session that lives; as `created`.
    """
    database = as_database(target.db if is_transaction(target) else target)
    own = own_session_of(database, registry.keys).id()
    there = run(target, lambda tr: _usable(tr, registry, registry.look(tr, asked.name), own))
    if there is not None:
        return asked.of(there)
    ready = _ready(target, registry, asked)
    if not is_transaction(target):
        _end_if_overdue(as_database(target), registry, asked.name, own)

    def body(tr: Transaction) -> Definition:
        found = registry.look(tr, asked.name)
        there = _usable(tr, registry, found, own)
        if there is not None:
            return asked.of(there)
        if found is not None:
            if _is_alive(tr, registry, found):
                raise asked.exists(found.kind, found.options)
            limits = features_of_queue(stored_settings(found), registry.keys.prefix, found.id).get("limits")
            if limits is not None:  # the end of its session may have left tasks that hold slots
                limits.give_back_all(tr)
            registry.drop(tr, asked.name)
        return registry.create(tr, ready.name, ready.kind, ready.settings.to_options())

    return registry.write(target, body)


def _ready(target: DatabaseOrTransaction, registry: Registry, asked: Asked) -> Asked:
    """The definition as it will be stored: its limits exist, and a temporary queue has its session."""
    settings = asked.settings
    names = [*settings.limits, *settings.task_limits]
    if names:
        late.limits.rule.require_limits(target, registry.keys.prefix, names)
    return replace(asked, settings=_owned(target, registry, settings)) if asked.temporary else asked


def _owned(target: DatabaseOrTransaction, registry: Registry, settings: Settings) -> Settings:
    """The settings of a temporary queue of this process's session. After a standstill of the process that
    session may be gone: then a transaction is refused, and a database gets a new session.
    """
    own = own_session_of(as_database(target.db if is_transaction(target) else target), registry.keys)
    try:
        run(target, lambda tr: own.get().ask(tr)())
    except UnknownSession:
        if is_transaction(target):
            raise
    return replace(settings, temporary=own.get().id.hex())


def _usable(tr: Transaction, registry: Registry, found: Definition | None, own: bytes) -> Definition | None:
    session = None if found is None else owner_of(found)
    if found is None or session is None:
        return found
    return found if session == own and _is_alive(tr, registry, found) else None


def _is_alive(tr: Transaction, registry: Registry, found: Definition) -> bool:
    return bool(tr.get(registry.keys.session(owner_of(found) or b"")).present())


def _end_if_overdue(database: Database, registry: Registry, name: str, own: bytes) -> None:
    """End the session of a temporary queue if its time is over, whether or not a process has noticed."""
    found = registry.look(database, name)
    session = None if found is None else owner_of(found)
    if session is not None and session != own:
        end_session(database, registry.keys, session, is_overdue(database.runtime.now_us()), died=True)


@dataclass(frozen=True)
class Occupants:
    """A batch of requests and a batch of taken tasks, and if they prevent a drop."""

    reason: str | None
    """The reason why the queue cannot be dropped; None if nothing in the batches prevents it."""
    dead: Sequence[Ticket]
    """Requests of dead callers."""
    lapsed: Sequence[Record]
    """Taken tasks with leases that are over."""
    lost: Sequence[KeyValue]
    """Keys of taken tasks that are missing, or cannot be read."""
    are_all: bool
    """True if there are no other requests and no other taken tasks."""


class Dropping:
    """The drop of one queue, or the question what prevents it, in transactions of `target`."""

    def __init__(self, parts: Parts, target: DatabaseOrTransaction, database: Database) -> None:
        self._parts = parts
        self._target = target
        self._database = database

    def busy(self) -> str:
        """As TaskQueue.busy."""
        while True:
            found = run(self._target, lambda tr: self._parts.all_within(writable(tr), self._cleared))
            if found.reason and not self._ended_overdue():
                return found.reason
            if not found.reason and found.are_all:
                return ""
            self._require_more_transactions()

    def drop(self, once: Callable[[], bool]) -> None:
        """As TaskQueue.drop. `once` runs `attempt` about all partitions, as a verb."""
        while not self._is_dropped(once):
            self._require_more_transactions()
        free_keys(self._target, self._parts.shape)

    def attempt(self, changes: Sequence[Change]) -> bool:
        """False if there may be more requests or leases: look again in another transaction."""
        found, shape = self._cleared(changes), self._parts.shape
        if found.reason:
            raise QueueBusy(name=shape.name, reason=found.reason)
        if found.are_all:
            for change in changes:  # it sets unreadable records aside: behind the drop, they would stay
                change.finish()
            if shape.limits is not None:  # leases that are over have their slots still
                shape.limits.give_back_all(changes[0].tr)
            shape.registry.drop(changes[0].tr, shape.name)
        return found.are_all

    def _is_dropped(self, once: Callable[[], bool]) -> bool:
        try:
            return once()
        except QueueBusy:
            if not self._ended_overdue():
                raise
            return False

    def _cleared(self, changes: Sequence[Change]) -> Occupants:
        """Read the occupants, and remove a full batch that prevents no drop."""
        change, line, found = _first_of(changes, self._parts.lines())
        if not found.reason and not found.are_all:
            remove(change, line, found)
        return found

    def _ended_overdue(self) -> bool:
        """True if a call that would answer "busy" should try again; never within a transaction."""
        if is_transaction(self._target):
            return False
        parts = self._parts
        judge = partial(occupants_of_all, lines=parts.lines())
        keeper = keeper_of(self._database, parts.shape.root)
        return keeper.ended_overdue(lambda tr: lambda: not parts.look_at_all(tr, judge).reason)

    def _require_more_transactions(self) -> None:
        """Raises TooMuchForOneTransaction in a transaction."""
        if is_transaction(self._target):
            require_verb_batch(limits.VERB_BATCH + 1)


def occupants_of_all(changes: Sequence[Change], lines: Sequence[Line]) -> Occupants:
    """The occupants of the first partition that cannot go, or has a full batch; of the last one without any
    such. The line of all partitions is judged with partition 0.

    Reads: each, serialisably. Conflicts: a request that joins a line, a take.
    """
    return _first_of(changes, lines)[2]


def _first_of(changes: Sequence[Change], lines: Sequence[Line]) -> tuple[Change, Line, Occupants]:
    homes = [*changes, *changes[:1]]  # the line of all, if there is one, comes last
    found = [(change, line, occupants(change, line)) for change, line in zip(homes, lines, strict=False)]
    return next((one for one in found if one[2].reason or not one[2].are_all), found[-1])


def occupants(change: Change, line: Line) -> Occupants:
    """The first limits.VERB_BATCH requests and taken tasks, judged.

    Reads: both, serialisably. Conflicts: a request that joins the line, a take.
    """
    tr, keys = change.tr, change.shape.keys
    asked = [
        tr.get_range(under.start, under.stop, limit=limits.VERB_BATCH)
        for under in (line.keys.requests, keys.taken)
    ]
    requests, taken = (found.to_list() for found in asked)
    alive, dead = line.alive_and_dead(tr, requests, change.now_us)
    read = change.read(id_in(entry.key) for entry in taken)
    records = [record for record in read if record is not None]
    lost = [entry for entry, record in zip(taken, read, strict=True) if record is None]
    lapsed = [record for record in records if record.until_us <= change.now_us]
    held = "tasks are taken" if len(lapsed) < len(records) else None
    reason = "a call is waiting for tasks" if alive else held
    are_all = max(len(requests), len(taken)) < limits.VERB_BATCH
    return Occupants(reason, dead, lapsed, lost, are_all)


def remove(change: Change, line: Line, found: Occupants) -> None:
    """Remove the dead requests of a batch, and end the leases in it that are over."""
    line.drop_dead(change.tr, found.dead)
    apply_sweep(change, plan_sweep(found.lapsed, change.now_us))
    for entry in found.lost:
        change.lost(entry.key, entry.value)
