"""Detached leases: a lease of no process, for a program that takes in one process and acks in another.

The lease moves to a session of its own, which no process renews: both end at one time. The id of that session
is made of the token, so a second call, and a retry, meet the same one.
If the lease ends early, the session is left to its time, or `forget` clears it.

The text of such a lease has all that another process needs: the id of the task, and the token.
"""

from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_positive
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.ending import (
    Process,
    deadline_if_readable,
    hold_of,
    leave_run,
    process_of,
    renew,
    run_of,
)
from fdbqueue.core.task import Task
from fdbqueue.tasks import edges, verbs
from fdbqueue.tasks.change import Change, task_of
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.options import whole_us
from fdbqueue.tasks.stored.records import DETACHED_MARK, NEVER_US, id_bytes, id_text
from fdbqueue.tasks.verbs import Target

SEPARATOR = "-"
_TOKEN_BYTES = (limits.RANDOM_SUFFIX_BYTES, limits.RANDOM_SUFFIX_BYTES + limits.RUN_ID_BYTES_MAX)


def text_of(id_: str, token: bytes | None) -> str:
    return f"{id_}{SEPARATOR}{(token or b'').hex()}"


def target_in(text: Any) -> Target:
    """Raises: InvalidArgument for another value than the text of a lease."""
    try:
        id_, _, token = text.partition(SEPARATOR) if isinstance(text, str) else ("", "", "")
        target = Target(id_bytes(id_), bytes.fromhex(token))
    except ValueError:
        target = Target(b"")
    # As `detach` writes it: `fromhex` takes spaces, too.
    written = text_of(id_text(target.id), target.token)
    if not _TOKEN_BYTES[0] <= len(target.token or b"") <= _TOKEN_BYTES[1] or written != text:
        raise InvalidArgument(
            name="token", wanted="the text of a detached lease: an id, a dash and digits", got=text
        )
    return target


def detached(
    queue: TaskHandle,
    tr: DatabaseOrTransaction,
    lease: Task | Target,
    ttr: float | None,
    process_id: int | None,
) -> Task:
    """As TaskQueue.detach, also by the text of a lease (`target_in`). Return the task under its lease."""
    target = lease if isinstance(lease, Target) else queue._target(tr, lease, None)
    ttr_us = None if ttr is None else whole_us(checked_positive("ttr", ttr, "seconds"))
    host, own_id, layout = process_of(queue._of(tr).runtime)
    process = (host, own_id if process_id is None else checked_count("process_id", process_id), layout)
    body = partial(detach, target=target, ttr_us=ttr_us, process=process)
    return queue._once(tr, "detach", body, id_text(target.id))


def detach(change: Change, target: Target, ttr_us: int | None, process: Process) -> Task:
    """Lease the held task for `ttr_us` from now, in a session of its own.

    Without `ttr_us` it is the ttr of the task, or limits.DETACHED_TTR_S if it has none. `process`: the one
    that the session tells.
    """
    record = verbs.held(change, target)
    if ttr_us is None:
        ttr_us = record.ttr_us if record.ttr_us < NEVER_US else round(limits.DETACHED_TTR_S * 1_000_000)
    keys, session = change.shape.root, _session_of(record.token)
    last = change.tr.get(keys.heartbeat(session))
    [moved] = edges.detach(change, [record], session, ttr_us)
    change.tr.set(keys.session(session), layer.pack((session, None, ttr_us, *process)))
    if run := run_of(record.token):  # the end of the lease counts for it, maybe after all its workers
        change.tr.set(keys.membership(session), run)
    renew(change.tr, keys, session, last, moved.until_us, hold_of(change.tr, ttr_us))
    return verbs.done(change, target, moved, lambda: [moved])


def _session_of(token: bytes) -> bytes:
    return DETACHED_MARK + token[: limits.RANDOM_SUFFIX_BYTES]


def forget(tr: Transaction, keys: RootKeys, token: bytes) -> None:
    """Clear the session of a lease that has ended. It has no other lease.

    Reads: its heartbeat, its run.
    Writes: its keys.
    Conflicts: its end.
    """
    session = _session_of(token)
    heartbeat, run = tr.get(keys.heartbeat(session)), tr.get(keys.membership(session))
    deadline_us = deadline_if_readable(heartbeat.value or b"")
    leave_run(tr, keys, keys.membership(session), run.value)
    tr.clear(keys.session(session))
    tr.clear(keys.heartbeat(session))
    if deadline_us is not None:
        tr.clear(keys.beat_due(deadline_us, session))


def leased(change: Change, target: Target) -> Task:
    """Raises: NotTaken."""
    record = verbs.held(change, target)
    return task_of(record, verbs.shown_data(change, record))
