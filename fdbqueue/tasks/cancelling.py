"""Cancelling: a task that is not taken ends at once; a taken one is marked, and ends with its lease.

The heartbeat of a worker finds the mark when it renews the lease, without a further read. An ack is still
possible: the work was done. Any other end of the lease ends the task (edges.py), so no later attempt begins.
"""

from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.verbs import Target, done, present


def cancel(change: Change, id_: bytes) -> Task:
    """End the task, or mark it if it is taken."""
    target = Target(id_)
    record = present(change, target)
    take_edge = edges.ask_cancel if record.state == TaskState.TAKEN else edges.cancel
    return done(change, target, record, lambda: take_edge(change, [record]))
