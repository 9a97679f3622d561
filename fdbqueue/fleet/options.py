"""WorkerOptions: one value with the options of a worker, from `Worker` or `Fleet` to the worker process.

Its queues have weights; they are given by name, as handles, or as a mapping.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_items, checked_seconds, checked_span
from fdbqueue.core.database import as_database
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.registry import checked_name
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.fleet.outcomes import Backoff, checked_backoff
from fdbqueue.tasks.queue import TaskQueue


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `Worker` and `Fleet` that become WorkerOptions, which documents them."""

    threads: int
    concurrency: int
    transactional: bool
    max_attempts: int | None
    backoff: Backoff
    timeout_s: float | None
    grace_s: float
    session_ttr_s: float


@dataclass(frozen=True)
class WorkerOptions:
    threads: int = 8
    """Number of blocking handlers that run at the same time."""
    concurrency: int = 100
    """Number of coroutine functions that run at the same time, if the handler is one."""
    transactional: bool = False
    """True if the handler is called as `handler(tr, task)`, in the transaction of the ack."""
    max_attempts: int | None = 5
    """Number of failed attempts after which a task is buried; None for no bound."""
    backoff: Backoff = Backoff()  # noqa: RUF009  # a value
    """Delay of a failed task before its next attempt."""
    timeout_s: float | None = None
    """Run time after which an attempt has failed. Its thread is given up, and another takes its place."""
    grace_s: float = 30.0
    """Time that running handlers have after `stop`, before their tasks are given back."""
    session_ttr_s: float = limits.SESSION_TTR_S
    """Time from the death of the process until its tasks are ready again, if their own ttr is longer."""

    @property
    def places(self) -> int:
        """Enough for the handlers of either sort that run at the same time."""
        return max(self.threads, self.concurrency)

    @classmethod
    def checked(cls, **given: Unpack[WorkerKeywords]) -> "WorkerOptions":
        """Raises InvalidArgument."""
        options = cls(**given)
        most, timeout_s = options.max_attempts, options.timeout_s
        return cls(
            threads=checked_count("threads", options.threads, limits.THREADS_MAX),
            concurrency=checked_count("concurrency", options.concurrency, limits.CONCURRENCY_MAX),
            transactional=bool(options.transactional),
            max_attempts=None if most is None else checked_count("max_attempts", most),
            backoff=checked_backoff(options.backoff),
            timeout_s=None if timeout_s is None else checked_span("timeout_s", timeout_s),
            grace_s=checked_seconds("grace_s", options.grace_s),
            session_ttr_s=checked_span("session_ttr_s", options.session_ttr_s),
        )


Queues = str | TaskQueue | Iterable[str | TaskQueue] | Mapping[str, int]


def opened(db: AnyDatabase, queues: Queues, root: Any) -> list[tuple[TaskQueue, int]]:
    database = as_database(db)
    return [
        (
            queue._on(database) if isinstance(queue, TaskQueue) else TaskQueue.open(db, queue, root=root),
            weight,
        )
        for queue, weight in _weights_of(queues).items()
    ]


def names_of(queues: Queues) -> dict[str, int]:
    """Return the name and the weight of each queue, for a process that opens them. Raises InvalidArgument."""
    return {
        queue.name if isinstance(queue, TaskQueue) else queue: weight
        for queue, weight in _weights_of(queues).items()
    }


def _weights_of(queues: Any) -> dict[Any, int]:
    if isinstance(queues, str | TaskQueue):
        queues = [queues]
    names = checked_items("queues", [*queues] if isinstance(queues, Mapping) else queues)
    for queue in names:
        if not isinstance(queue, TaskQueue):
            checked_name(queue)
    weights = {queue: queues[queue] if isinstance(queues, Mapping) else 1 for queue in names}
    if not weights:
        raise InvalidArgument(name="queues", wanted="one queue or more", got=queues)
    for weight in weights.values():
        checked_count("weight", weight, limits.WEIGHT_MAX)
    return weights
