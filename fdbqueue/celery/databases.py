"""The databases of Celery's brokers and result backends: one for each URL and process, until its end."""

from fdbqueue.celery.addresses import url_of
from fdbqueue.database import Database, require_answer
from fdbqueue.frameworks.opening import Opening

ANSWER_S = 5.0
"""Time that a cluster has to answer a new connection."""

_openings: dict[str, Opening] = {}


def at(url: str) -> Database:
    """The open database of `url`. Connections come and go, and it stays open.

    Raises: ClusterForked; as fdbqueue.open.
    """
    opening = _openings.get(url)
    if opening is None:  # a step of a dict is atomic: two threads get the same opening
        opening = _openings.setdefault(url, Opening(url))
    return opening.database()


def database(address: str) -> Database:
    """The open database of the broker or the result backend at `address`, for a program's own transactions.

    Each process has its own, also a child of a worker. Do not close it.
    Raises: UnknownBrokerUrl, ClusterForked; as fdbqueue.open.
    """
    return at(url_of(address))


def answering(url: str) -> Database:
    """The open database of `url`, which has answered. Raises: ClusterForked; DatabaseNotFound."""
    found = at(url)
    require_answer(found, url, ANSWER_S)
    return found


def close() -> None:
    """Close the databases that brokers and result backends of this process have opened.

    Close the connections first. A later connection opens its database again.
    """
    for opening in list(_openings.values()):
        opening.close()
