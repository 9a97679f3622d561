"""Creating a task queue where there may be one: it has to have the kind and the options that are asked for.

A temporary queue belongs to a session. Its contents end with that session, but its definition stays, and
refuses puts. The next opening that may create a queue replaces it: the new queue has an id, contents and
statistics of its own, and handles of the old one raise QueueDropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fdbqueue import tasks as late
from fdbqueue.core.database import Database, as_database, is_transaction, run
from fdbqueue.core.errors import InvalidArgument, QueueExists, UnknownSession
from fdbqueue.core.limits import SPAN_MAX_S
from fdbqueue.core.registry import Definition, Registry, checked_name, exists_already
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.ending import end_session, is_overdue
from fdbqueue.core.sessions.session import own_session_of
from fdbqueue.tasks.feature import features_of_queue
from fdbqueue.tasks.kinds import settings_for
from fdbqueue.tasks.options import UNSTORED, Settings, as_given, owner_of, stored_settings

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
        named = late.limiting.rule.checked_limits(given.get("limits"), given.get("task_limits"))
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
        late.limiting.rule.require_limits(target, registry.keys.prefix, names)
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
