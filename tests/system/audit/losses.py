"""Commits that a power cut may undo, as they wait for no flush: they change leases and requests only.

The rule is that of docs/design.md, section 10, apart from the code that chooses these commits.
"""

import struct
from collections.abc import Callable, Iterator

from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue.core import root_keys
from fdbqueue.core.partitions import UNIQUE, WINDOW
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import Record, TaskKeys, id_text
from tests.system.audit.commit import Step
from tests.system.audit.line import LineStep
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import TaskStep, is_taken

_COLUMNS = frozenset(
    {
        *(records.TASK, records.READY, records.TAKEN, records.DELAYED, records.TIMER),
        *(records.BESIDE, records.LIVE, records.CALLS, records.LINE, records.FAILURE),
        UNIQUE,  # a put that finds the key of a taken task free makes that take durable
        WINDOW,  # a task that waits again takes its unique key over from a window that has ended
    }
)
_CALLS = frozenset({"take", "ttr", "release", "other"})
_MOVES = frozenset(
    {
        (TaskState.READY, TaskState.TAKEN),
        (TaskState.TAKEN, TaskState.TAKEN),
        (TaskState.TAKEN, TaskState.READY),
        (TaskState.TAKEN, TaskState.DELAYED),
    }
)
_UNDONE = "a power cut may undo it, and"


def lost_in_root(keys: RootKeys, step: Step) -> Iterator[str]:
    """Heartbeats of sessions without a name have no opener; the ends of leases count for a run. Takes under
    limits use slots and tokens, and ends of leases give slots back.
    """
    for key in step.changes if step.commit.may_be_lost else ():
        column, rest = keys.shape_of(key)
        is_beat = column in (root_keys.HEARTBEAT, root_keys.BEAT_DUE)
        is_of_takes = column in (root_keys.RUN, root_keys.LIMITED)
        if not is_of_takes and (not is_beat or (column == root_keys.HEARTBEAT and len(rest) > 1)):
            yield f"{_UNDONE} it changes more than a heartbeat (key {key.hex()})"


def lost_items(step: Step) -> Iterator[str]:
    """An item of a queue without leases leaves as it is taken."""
    if step.commit.may_be_lost:
        yield f"{_UNDONE} the queue has no leases"


def lost_leases(
    shape: Shape,
    step: TaskStep,
    line: LineStep,
    mirror: Mirror,
    keys_of: Callable[[bytes], TaskKeys] | None = None,
) -> Iterator[str]:
    """`keys_of` tells the keys of the partition of a key."""
    if not step.commit.may_be_lost:
        return
    for key in step.changes.changes:
        keys = shape.keys if keys_of is None else keys_of(key)
        if keys.parts_of(key)[0] not in _COLUMNS and shape.shared.column_of(key) is None:
            yield f"{_UNDONE} it changes more than leases (key {key.hex()})"
    if not _CALLS.issuperset(step.calls):
        yield f"{_UNDONE} it counts {dict(step.calls)}"
    for id_, (before, after) in step.moves.items():
        if before is None or after is None or (before.state, after.state) not in _MOVES:
            yield f"{_UNDONE} it does more to the task {id_text(id_)} than lease it"
        elif before.token == after.token and not _is_renewed(before, after):
            yield f"{_UNDONE} it does more to the task {id_text(id_)} than renew its lease"
    yield from _for_named_sessions(shape, step, line, mirror)


def _is_renewed(before: Record, after: Record) -> bool:
    return is_taken(after) and replace(after, until_us=before.until_us) == before


def _for_named_sessions(shape: Shape, step: TaskStep, line: LineStep, mirror: Mirror) -> Iterator[str]:
    """A call of a named session that has taken a task: another process may go on with that. A renewal that is
    undone leaves an earlier deadline.
    """
    delivered = {item.id for handed in line.laid for item in handed.items}
    collected = {item.id for handed in line.collected for item in handed.items}
    taken = {id_ for id_, (before, after) in step.moves.items() if _is_leased_anew(before, after)}
    returned = taken - delivered | collected
    for id_ in returned:
        record = step.after.get(id_)
        session = None if record is None else mirror.value(shape.root.session(record.session))
        if is_taken(record) and _is_named(session):
            yield f"{_UNDONE} a named session takes the task {id_text(id_)}"


def _is_leased_anew(before: Record | None, after: Record | None) -> bool:
    return after is not None and is_taken(after) and (before is None or before.token != after.token)


def _is_named(session: bytes | None) -> bool:
    try:
        return session is not None and layer.unpack(session)[1] is not None
    except (ValueError, IndexError, struct.error):
        return False
