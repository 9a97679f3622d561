"""The public errors of frameworks that use fdbqueue; errors.py has them, too, and the rules for all."""

from fdbqueue.error_root import FdbQueueError

__all__ = ["ClusterForked", "PoolRefused", "UnknownBrokerUrl"]


class UnknownBrokerUrl(FdbQueueError, ValueError):
    """{url!r} names no database: use "fdbqueue+embedded:///PATH", also with "?durability=soon" or "?durability=process", "fdbqueue+fdb:///CLUSTER_FILE", or "fdbqueue+fdb://" for the default cluster file."""


class ClusterForked(FdbQueueError, RuntimeError):
    """This process was forked from one that had opened a cluster, and FoundationDB's client library does not survive a fork ({url}): open the cluster after the fork, or start the process afresh, as a worker of Celery does with worker_pool_start_method = "spawn"."""


class PoolRefused(FdbQueueError, RuntimeError):
    """The {pool} pool of Celery cannot be used with fdbqueue, as leases are renewed in threads: use the pools prefork, threads or solo."""
