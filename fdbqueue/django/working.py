"""The worker of the command `fdbqueue_worker`: one of ours, with the options of the backend."""

from collections.abc import Sequence

from fdbqueue.django.attempts import Attempts
from fdbqueue.django.backend import FdbQueueBackend
from fdbqueue.fleet.worker import Worker


def worker_of(backend: FdbQueueBackend, queue_names: Sequence[str], threads: int, grace_s: float) -> Worker:
    """A worker, not started, for queues that are made if they are not there.

    Raises: InvalidArgument; InvalidTaskBackend for a queue that Django's tasks cannot use; as fdbqueue.open.
    """
    queues = {name: backend.task_queues.made(name) for name in queue_names}
    return Worker(
        backend.database,
        list(queues.values()),
        Attempts(backend, queues),
        threads=threads,
        grace_s=grace_s,
        max_attempts=backend.settings.max_attempts,
        session_ttr_s=backend.settings.session_ttr,
    )
