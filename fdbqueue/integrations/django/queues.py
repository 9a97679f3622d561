"""The task queues behind the queues of a backend, made at their first put, or by a worker.

Django makes a backend for each thread and each request of an asynchronous server. They share the database,
the queues and the program's transaction.
"""

from contextlib import AbstractContextManager

from fdbqueue.core.seam import AnyDatabase, AnyTransaction
from fdbqueue.integrations.common.opening import Opening, Within
from fdbqueue.integrations.common.queue_map import KIND, QueueMap
from fdbqueue.integrations.django.api import InvalidTaskBackend
from fdbqueue.tasks.kinds import kind_named
from fdbqueue.tasks.queue import TaskQueue

_openings: dict[str | None, Opening] = {}
within = Within()


def opening_of(place: str | AnyDatabase | None) -> Opening:
    """The opening of an open database; the one opening of this process for a URL, or the environment."""
    if place is None or isinstance(place, str):
        return _openings.setdefault(place, Opening(place))
    return Opening(place)


def transaction(tr: AnyTransaction) -> AbstractContextManager[None]:
    """Enqueue the tasks of the block within `tr`: they are there if and only if `tr` commits.

    `tr` is a transaction of the database of the backend. The block may run again, with the whole body of
    `tr`: then the tasks of the earlier run are gone, and the new ones have new ids. Do not wait for a result
    inside: the task is not there before the commit.
    """
    return within.block(tr)


NEEDED = frozenset({"pri", "delay"})
CODECS = ("json", "msgpack")


_shared: dict[tuple[Opening, str], QueueMap] = {}


def queues_of(place: str | AnyDatabase | None, namespace: str) -> QueueMap:
    """The handles that all backends of this process with the same URL and namespace share.

    Raises, as they are used: InvalidTaskBackend for a queue without priorities or delays.
    """
    opening = opening_of(place)
    queues = QueueMap(opening.database, namespace, require=_require_usable)
    return _shared.setdefault((opening, namespace), queues)


def _require_usable(queue: TaskQueue) -> None:
    if not kind_named(queue.kind).options >= NEEDED:
        raise InvalidTaskBackend(
            f"The queue {queue.name!r} is of the kind {queue.kind!r}, without priorities or delays: "
            f"Django's tasks need one of the kind {KIND!r}, or another namespace."
        )
    if queue.options["codec"] not in CODECS:
        raise InvalidTaskBackend(
            f"The queue {queue.name!r} has the codec {queue.options['codec']!r}: Django's tasks need json or "
            "msgpack, or another namespace."
        )
