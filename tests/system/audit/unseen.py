"""Lost updates: no transaction changes a value that it has not seen.

A task, a request, the lock of an element or a session changes only in a transaction that has read it at its
latest version, or conflicts with its change. Clears of whole ranges see nothing, and conflict with all.
"""

from collections.abc import Iterator

from fdbqueue.core import root_keys
from fdbqueue.core.line.decision import NOTICE, REQUEST, LineKeys
from fdbqueue.core.rows import Checks
from fdbqueue.operate.verify.partitions import ElementChecks, RecipeChecks
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.queues.elements import store
from fdbqueue.queues.recipe import items
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.keyed import STATE
from fdbqueue.tasks.stored.keyed import parts_of as parts_beside
from tests.system.audit.commit import Step

_OF_TASKS: dict[int, str] = {
    records.TASK: "record of a task",
    records.REDRIVE: "redrive",
    records.ENDED_AT: "entry of an ended task",
}
_OF_LINE: dict[int, str] = {REQUEST: "request", NOTICE: "notice"}
_OF_ROOT = {
    root_keys.DEFINITION: "definition",
    root_keys.SESSION: "session",
    root_keys.SESSION_NAME: "name of a session",
    root_keys.HEARTBEAT: "heartbeat",
    root_keys.LIMIT: "limit",
}


def changed_unseen(checks: Checks, step: Step) -> Iterator[str]:
    """Judge the keys of a queue."""
    for key in step.unseen:
        told = _told(checks, key)
        if told and not step.is_cleared(key):
            yield f"the {told} has changed after the version that the transaction has seen (key {key.hex()})"


def changed_unseen_in_line(keys: LineKeys, step: Step) -> Iterator[str]:
    """Judge the keys of a line."""
    for key in step.unseen:
        told = _in_line(keys, key)
        if told and not step.is_cleared(key):
            yield f"the {told} has changed after the version that the transaction has seen (key {key.hex()})"


def changed_unseen_in_root(keys: root_keys.RootKeys, step: Step) -> Iterator[str]:
    for key in step.unseen:
        told = _OF_ROOT.get(keys.shape_of(key)[0])
        if told and not step.is_cleared(key):
            yield f"the {told} has changed after the version that the transaction has seen (key {key.hex()})"


def _told(checks: Checks, key: bytes) -> str | None:
    """The name of a value that no transaction changes unseen; None for other keys."""
    if isinstance(checks, RecipeChecks):
        keys = checks.recipe.keys
        return "item" if keys.parts_of(key)[0] == items.ITEM else _in_line(LineKeys(keys.line), key)
    if isinstance(checks, ElementChecks):
        return "lock of an element" if checks.keys.parts_of(key)[0] == store.LOCK else None
    if not isinstance(checks, TaskChecks):
        return None
    column, _ = checks.keys.parts_of(key)
    if column == records.BESIDE and checks.beside is not None:
        is_state = parts_beside(checks.keys.beside, key)[0] == STATE
        return "state of a task key" if is_state else None
    if column == records.LINE:
        return _in_line(LineKeys(checks.keys.line), key)
    return _OF_TASKS.get(column)


def _in_line(keys: LineKeys, key: bytes) -> str | None:
    column, _ = keys.parts_of(key)
    return _OF_LINE.get(column)
