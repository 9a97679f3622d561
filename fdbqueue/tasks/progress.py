"""The progress of a taken task: its holder tells it, and any process may wait for it.

It is a part of the task's record: no key more, no read more where a task is shown, and it goes with the
lease. The wait watches the record, so each renewal of the lease wakes it, and it looks again.
"""

from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Future
from fdbqueue.core.task import Task
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.explaining import stored_and_current
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.payloads import ask_payload, task_of
from fdbqueue.tasks.verbs import Target, done, held


def tell(change: Change, target: Target, fraction: float) -> Task:
    record = held(change, target)
    return done(change, target, record, lambda: edges.progress(change, [record], fraction))


def wait(
    database: Database, parts: Parts, id_: bytes, seen: float | None, until: float, waiter: Waiter
) -> Task | None:
    """Wait until the progress is other than `seen`. None if it is `until` (runtime.monotonic()) before."""
    look = partial(parts.look, verb=partial(_look, id_=id_, seen=seen), id_=id_)
    while not isinstance(found := run(database, look), Task):
        patience_s = until - database.runtime.monotonic()
        if patience_s <= 0:
            found.cancel()
            return None
        # The end of a lease by its time changes no key.
        waiter.sleep([found], min(limits.LOOK_EVERY_S, patience_s))
    return found


def _look(change: Change, id_: bytes, seen: float | None) -> Task | Future:
    _, record = stored_and_current(change, id_)
    if record.fraction == seen:
        return change.tr.watch(change.shape.keys.task(id_))
    return task_of(record, shown(change.shape.codec, ask_payload(change.tr, change.shape.keys, record)))
