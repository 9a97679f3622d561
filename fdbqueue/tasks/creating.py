"""Creating a task queue where there may be one: a temporary queue lives again when its session has gone.

A temporary queue belongs to a session. Its contents end with that session, but its definition stays, and
refuses puts. The next opening that may create a queue replaces it: the new queue has an id, contents and
statistics of its own, and handles of the old one raise QueueDropped.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fdbqueue.database import Database, as_database, is_transaction, run
from fdbqueue.errors import QueueExists, UnknownSession
from fdbqueue.parking.under import limits_of
from fdbqueue.registry.definition import Definition
from fdbqueue.registry.registry import Registry, exists_already
from fdbqueue.seam import DatabaseOrTransaction, Transaction
from fdbqueue.sessions.ending import end_session, is_overdue
from fdbqueue.sessions.own import own_session_of
from fdbqueue.tasks.kinds import Settings, as_given, owner_of, stored_settings


def created(
    target: DatabaseOrTransaction, registry: Registry, name: str, kind: str, settings: Settings
) -> Definition:
    """Register a queue.

    Reads: as Registry.create.
    Writes: as Registry.create.
    Raises: QueueExists, SubspaceInUse.
    """
    try:
        return registry.create(target, name, kind, settings.to_options())
    except QueueExists as there:
        raise _exists(name, there.kind, there.options, kind, there.asked) from None


def owned(target: DatabaseOrTransaction, registry: Registry, settings: Settings) -> Settings:
    """The settings of a temporary queue of this process's session. Raises UnknownSession in a transaction.

    Reads the session: after a standstill of the process it may be gone.
    """
    own = own_session_of(as_database(target.db if is_transaction(target) else target), registry.keys)
    try:
        run(target, lambda tr: own.get().ask(tr)())
    except UnknownSession:
        if is_transaction(target):
            raise
    return replace(settings, temporary=own.get().id.hex())


def usable(target: DatabaseOrTransaction, registry: Registry, name: str) -> Definition | None:
    """The queue of that name, but no temporary one of another session, or of one that has gone.

    Reads the definition, and the session of a temporary queue.
    """
    own = _own_id(target, registry)
    return run(target, lambda tr: _usable(tr, registry, registry.look(tr, name), own))


def opened_or_created(
    target: DatabaseOrTransaction, registry: Registry, name: str, kind: str, settings: Settings
) -> Definition:
    """The queue of that name. It is registered now if there is none, or a temporary one of an ended session.

    Given a database, an overdue session is ended first. Given a transaction, the stored state decides.
    Reads: the definition, the session of a temporary queue, and the reads of Registry.create.
    Raises: QueueExists for a temporary queue of another session that lives; SubspaceInUse.
    """
    own, options = _own_id(target, registry), settings.to_options()
    if not is_transaction(target):
        _end_if_overdue(as_database(target), registry, name, own)

    def body(tr: Transaction) -> Definition:
        found = registry.look(tr, name)
        there = _usable(tr, registry, found, own)
        if there is not None:
            return there
        if found is not None:
            if _is_alive(tr, registry, found):
                raise _exists(name, found.kind, found.options, kind, options)
            _give_back_slots(tr, registry, found)
            registry.drop(tr, name)
        return registry.create(tr, name, kind, options)

    return registry.write(target, body)


def _give_back_slots(tr: Transaction, registry: Registry, found: Definition) -> None:
    """The end of its session may have left tasks that hold slots of limits."""
    settings = stored_settings(found)
    limits = limits_of(registry.keys.prefix, found.id, settings.limits, settings.task_limits)
    if limits is not None:
        limits.give_back_all(tr)


def _usable(tr: Transaction, registry: Registry, found: Definition | None, own: bytes) -> Definition | None:
    session = None if found is None else owner_of(found)
    if found is None or session is None:
        return found
    return found if session == own and _is_alive(tr, registry, found) else None


def _is_alive(tr: Transaction, registry: Registry, found: Definition) -> bool:
    """True if the session of a temporary queue has not ended."""
    return bool(tr.get(registry.keys.session(owner_of(found) or b"")).present())


def _end_if_overdue(database: Database, registry: Registry, name: str, own: bytes) -> None:
    """End the session of a temporary queue if its time is over, whether or not a process has noticed."""
    found = registry.look(database, name)
    session = None if found is None else owner_of(found)
    if session is not None and session != own:
        end_session(database, registry.keys, session, is_overdue(database.runtime.now_us()), died=True)


def _own_id(target: DatabaseOrTransaction, registry: Registry) -> bytes:
    database = as_database(target.db if is_transaction(target) else target)
    return own_session_of(database, registry.keys).id()


def _exists(
    name: str, kind: str, options: Mapping[str, Any], asked_kind: str, asked: Mapping[str, Any]
) -> QueueExists:
    there, wanted = ({"retain_s": None, **as_given(given)} for given in (options, asked))
    return exists_already(name, kind, there, asked_kind, wanted)
