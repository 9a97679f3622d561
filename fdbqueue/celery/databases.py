"""Databases: each is opened once per process, as connections come and go, and stays open until the end."""

import os

from fdbqueue.celery.addresses import url_of
from fdbqueue.database import Database, require_answer
from fdbqueue.errors import ClusterForked
from fdbqueue.open import open as open_database
from fdbqueue.runtime import RealRuntime

ANSWER_S = 5.0
"""Time that a cluster has to answer a new connection."""


class Databases:
    """The open databases of this process, by URL."""

    def __init__(self) -> None:
        self._lock = RealRuntime.lock()
        self._open: dict[str, Database] = {}
        self._has_cluster = False
        self._is_forked = False

    def at(self, url: str) -> Database:
        """The open database of `url`.

        Raises: ClusterForked for a cluster in a child of a process that had opened one; as fdbqueue.open.
        """
        is_cluster = url.startswith("fdb:")
        if is_cluster and self._is_forked:
            raise ClusterForked(url=url)
        with self._lock:
            found = self._open.get(url)
            if found is None:
                self._has_cluster = self._has_cluster or is_cluster
                found = self._open[url] = open_database(url)
            return found

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()

    def after_fork(self) -> None:
        """The embedded engine goes on in a child; the client library of a cluster does not."""
        self._lock = RealRuntime.lock()
        self._is_forked = self._is_forked or self._has_cluster
        self._open = {url: database for url, database in self._open.items() if not url.startswith("fdb:")}


databases = Databases()
os.register_at_fork(after_in_child=databases.after_fork)


def database(address: str) -> Database:
    """The open database of the broker or the result backend at `address`, for a program's own transactions.

    Each process has its own, also a child of a worker. Do not close it.
    Raises: UnknownBrokerUrl, ClusterForked; as fdbqueue.open.
    """
    return databases.at(url_of(address))


def answering(url: str) -> Database:
    """The open database of `url`, which has answered. Raises: as Databases.at; DatabaseNotFound."""
    found = databases.at(url)
    require_answer(found, url, ANSWER_S)
    return found


def close() -> None:
    """Close the databases that brokers and result backends of this process have opened.

    Close the connections first. A later connection opens its database again.
    """
    databases.close()
