"""Handing off: a task leaves its holder, and waits for the outside, which completes or fails it by its id.

It stays a taken task, so it keeps its task key, its slots, its unique key and its place in groups. Its lease
belongs to HANDED_OFF in place of a session, and has no token: no process renews it, the end of no session
ends it, and the old token is void. The timer of the lease is that of the hand-off. Its end is a failed
attempt (edges.lease_over). Completing is the `ack` of such a task, failing its `release` with a failure.
"""

from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_positive, checked_text
from fdbqueue.core.errors import InvalidArgument, NotHandedOff, TaskNotFound
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.feature import Encode
from fdbqueue.tasks.options import whole_us
from fdbqueue.tasks.stored.records import HANDED_OFF, Handed, Record, id_text
from fdbqueue.tasks.verbs import Target, done, failed, held


def checked_handed(ttl: Any, for_: Any) -> Handed:
    """Raises InvalidArgument."""
    waits_for = "" if for_ is None else checked_text("for_", for_, limits.HANDED_TO_BYTES_MAX)
    return Handed(whole_us(checked_positive("ttl", ttl, "seconds")), waits_for)


def checked_reason(reason: Any) -> Failure:
    """Raises InvalidArgument."""
    if isinstance(reason, Failure):
        return reason
    if not isinstance(reason, str) or not reason:
        raise InvalidArgument(name="reason", wanted="a text that is not empty, or a Failure", got=reason)
    return Failure("FailedOutside", reason)


def hand_off(change: Change, target: Target, handed: Handed) -> Task:
    """Raises: NotTaken."""
    record = held(change, target)
    return done(change, target, record, lambda: edges.hand_off(change, record, handed))


def complete(change: Change, id_: bytes, result: Encode | None) -> Task:
    """Raises: TaskNotFound, NotHandedOff, RecordUnreadable."""
    record = _handed_off(change, id_)
    return done(change, Target(id_), record, lambda: edges.ack(change, [record], result))


def fail(change: Change, id_: bytes, failure: Failure, delay_us: int | None, random: float) -> Task:
    """Raises: TaskNotFound, NotHandedOff, RecordUnreadable."""
    return failed(change, Target(id_), _handed_off(change, id_), delay_us, failure, random)


def _handed_off(change: Change, id_: bytes) -> Record:
    """The task, if its time is not over. Without its sweep: a refusal writes nothing."""
    [record] = change.read([id_])
    current = None if record is None else as_of(record, change.now_us)
    if current is None:
        change.require_sound(id_)
        raise TaskNotFound(id=id_text(id_), name=change.shape.name)
    if current.session != HANDED_OFF:
        raise NotHandedOff(id=id_text(id_), state=TaskState(current.state).name.lower())
    return current
