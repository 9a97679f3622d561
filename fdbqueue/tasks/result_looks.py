"""Looks at the result of a task, and waits for it.

A wait watches the record of the task, and looks again at each change of it. So the renewals of its lease wake
the wait, too.
"""

from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.codec import PayloadCodec
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NoResult, PayloadUnreadable, ResultTimeout, TaskFailed
from fdbqueue.core.seam import Future
from fdbqueue.core.task import TaskState
from fdbqueue.core.waiters import Waiter
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.failures import ask_last
from fdbqueue.tasks.feature import ACKED
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.records.keys import Record, id_text
from fdbqueue.tasks.results import Stored, is_asked, is_whole, stored_of
from fdbqueue.tasks.sweep import as_of

_ENDED = {"deleted": "it was deleted", "cancelled": "it was cancelled", "expired": "its ttl was over"}
_OVER = "its result_ttl is over"
_UNASKED = "it was put without result_ttl"
_GONE = (
    "it is not there, and its result_ttl is over, or it had none, or forget_result or truncate has removed "
    "it, or it never was in this queue"
)


class Found(NamedTuple):
    payload: bytes | None


class Pending(NamedTuple):
    """The state of a task that has not ended, and a watch of its record, if that was asked for."""

    state: TaskState
    watch: Future | None


def look(change: Change, id_: bytes, watches: bool) -> Found | Pending:
    """The result of a task, or its state if it has not ended."""
    asked = change.tr.get(change.shape.shared.result(id_))
    [record] = change.read([id_])
    if asked.present():
        return _found(change, id_, asked.value)
    if record is None:
        change.require_sound(id_)
        raise _no_result(change, id_, _GONE)
    if not is_asked(record):
        raise _no_result(change, id_, _UNASKED)
    return Pending(_state(change, record), change.tr.watch(change.shape.keys.task(id_)) if watches else None)


def at_once(change: Change, id_: bytes) -> Found:
    """`look`, which raises ResultTimeout for a task that has not ended."""
    found = look(change, id_, watches=False)
    if isinstance(found, Pending):
        raise _timeout(change.shape.name, id_, found)
    return found


def wait(database: Database, parts: Parts, id_: bytes, until: float, waiter: Waiter) -> Found:
    """Wait for the result until `until` (runtime.monotonic())."""
    see = partial(parts.look, verb=partial(look, id_=id_, watches=True), id_=id_)
    while isinstance(found := run(database, see), Pending):
        assert found.watch is not None  # it was asked for
        patience_s = until - database.runtime.monotonic()
        if patience_s <= 0:
            found.watch.cancel()
            raise _timeout(parts.shape.name, id_, found)
        # The end of a task by its time changes no key before a sweep.
        waiter.sleep([found.watch], min(limits.LOOK_EVERY_S, patience_s))
    return found


def decoded(codec: PayloadCodec, found: Found) -> Any:
    return None if found.payload is None else codec.decode(found.payload)


def _state(change: Change, record: Record) -> TaskState:
    """Return the state of a task, unless it is buried, or has ended and is not swept."""
    current = as_of(record, change.now_us)
    if current is None:
        raise _no_result(change, record.id, _ENDED["cancelled" if record.cancelled_us else "expired"])
    if current.state == TaskState.BURIED:
        failure = ask_last(change.tr, change.shape.keys, record)()
        told = "no failure is stored" if failure is None else f"{failure.error}: {failure.message}"
        name = change.shape.name
        raise TaskFailed(id=id_text(record.id), name=name, failure=failure, reason=told)
    return TaskState(current.state)


def _found(change: Change, id_: bytes, value: bytes) -> Found:
    try:
        stored = stored_of(value)
    except DAMAGED as error:
        raise PayloadUnreadable(codec="any", reason="the end of its task cannot be read") from error
    if stored.until_us <= change.now_us:
        raise _no_result(change, id_, _OVER)
    if stored.outcome != ACKED:
        raise _no_result(change, id_, _ENDED.get(stored.outcome, stored.outcome))
    return Found(None if stored.size_bytes is None else _payload(change, id_, stored, stored.size_bytes))


def _payload(change: Change, id_: bytes, stored: Stored, size_bytes: int) -> bytes:
    payload = stored.payload
    if not is_whole(size_bytes):
        under = change.shape.shared.pieces_of(id_)
        payload = b"".join(row.value for row in change.tr.snapshot.get_range(under.start, under.stop))
    if len(payload) != size_bytes:
        reason = f"{len(payload)} of the {size_bytes} bytes of a result are there"
        raise PayloadUnreadable(codec="any", reason=reason)
    return payload


def _no_result(change: Change, id_: bytes, reason: str) -> NoResult:
    return NoResult(id=id_text(id_), name=change.shape.name, reason=reason)


def _timeout(name: str, id_: bytes, found: Pending) -> ResultTimeout:
    return ResultTimeout(id=id_text(id_), name=name, state=found.state.name.lower())
