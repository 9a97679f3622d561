"""The pools of Celery's workers: which of them work, and how the children of a prefork pool are started.

FoundationDB's client library does not survive a fork. So the children of a worker with a cluster are started
afresh (`worker_pool_start_method = "spawn"`), and each opens its own library. The embedded engine survives.
"""

from typing import Any

from celery import signals
from kombu.utils.compat import detect_environment

from fdbqueue.celery.addresses import SCHEME
from fdbqueue.errors import PoolRefused

STARTED_WITHIN_S = 120.0
"""Time that a child has to start afresh: it imports the application, on a busy machine, too."""

_GREEN = ("gevent", "eventlet")
_URLS = ("broker_url", "broker_read_url", "broker_write_url", "result_backend")


def require_threads() -> None:
    """Raises: PoolRefused in a process with greenlets for threads: leases are renewed in real ones."""
    environment = detect_environment()
    if environment in _GREEN:
        raise PoolRefused(pool=environment)


def watch_workers() -> None:
    """Prepare each Celery worker of this process before its pool starts."""
    signals.worker_init.connect(prepare, weak=False, dispatch_uid="fdbqueue.celery")


def prepare(sender: Any, **_: Any) -> None:
    """Refuse a pool of greenlets, and have children of a prefork pool started afresh for a cluster.

    Raises: SystemExit, as a signal of Celery logs all other errors and goes on.
    """
    urls = [str(sender.app.conf.get(name) or "") for name in _URLS]
    if not any(SCHEME in url for url in urls):
        return
    pool = str(getattr(sender.pool_cls, "__module__", sender.pool_cls))
    for name in _GREEN:
        if name in pool:
            raise SystemExit(str(PoolRefused(pool=name)))
    if any(f"{SCHEME}+fdb:" in url for url in urls):
        sender.pool_start_method = "spawn"
        conf = sender.app.conf
        conf.worker_proc_alive_timeout = max(STARTED_WITHIN_S, conf.worker_proc_alive_timeout)
