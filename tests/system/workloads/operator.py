"""An operator in a simulation: applies the cures that the explanation of a task names, until it starts."""

import shlex
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.explanation import Explanation, Why
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import id_in, id_text
from fdbqueue.testing.simulation import Client
from tests.system.workloads.common import QUIET_S

CURES_MAX = 200
STARTED, GONE, NEVER = "started", "gone", "never"


def cured(client: Client, q: TaskQueue, id_: str) -> str:
    """Apply the first cure of the task's explanation, again and again, until the task is taken."""
    told = []
    for _ in range(CURES_MAX):
        try:
            found, ready = run(client.db, partial(explained_and_ready, q, id_))
        except TaskNotFound:
            return GONE
        told.append(str(found.reasons[0].why))
        task = apply(client, q, found)
        if task is None and is_next(found):
            return f"not taken in {patience_s(found)} s, though it was next: {told}"
        if task is not None:
            q.ack(client.db, task)
            if task.id == id_:
                return STARTED
            # Others may become ready meanwhile, and dead requests of the line get their share before.
            if is_next(found) and not found.waiting and task.id in ready:
                return f"{task.id} came first, though it was next: {told}"
    return f"{NEVER}: {told}"


def explained_and_ready(q: TaskQueue, id_: str, tr: Transaction) -> tuple[Explanation, set[str]]:
    """The ready tasks are those in the index: others may be due, and are not swept yet."""
    index = q._shape.discipline.index
    ready = {id_text(id_in(bytes(row.key))) for row in tr.snapshot.get_range(index.start, index.stop)}
    return q.explain(tr, id_), ready


def apply(client: Client, q: TaskQueue, found: Explanation) -> Task | None:
    """Apply the first cure. Return the task that a worker takes, if that is the cure."""
    reason = found.reasons[0]
    if reason.why == Why.PAUSED:
        q.resume(client.db)
    elif reason.why == Why.BURIED:
        *_, queue, task = shlex.split(reason.cure)
        DeadLetters.open(client.db, queue).kick(client.db, task)
    elif reason.why == Why.UNSWEPT:
        q.statistics(client.db)
    elif reason.why in (Why.TAKEN, Why.HOLDER_ENDED, Why.DELAYED, Why.KEY_BUSY):
        wait_s = 0.0 if reason.at is None else reason.at - client.runtime.now()
        client.runtime.sleep(max(limits.SESSIONS_SWEPT_EVERY_S, wait_s))
        return q.take(client.db, 0) if "take gives it back" in reason.cure else None
    else:
        return q.take(client.db, patience_s(found))
    return None


def patience_s(found: Explanation) -> float:
    """A call that waits may be dead, and the line keeps its share until its request is overdue."""
    return QUIET_S if found.waiting else 0.0


def is_next(found: Explanation) -> bool:
    return [reason.why for reason in found.reasons] in ([Why.NO_WORKER], [Why.NEXT])
