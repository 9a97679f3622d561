"""The parts of `fdbqueue metrics`, put together."""

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from fdbqueue.database import Database
from fdbqueue.metrics.collector import QueueCollector
from fdbqueue.metrics.pages import Pages
from fdbqueue.metrics.server import MetricsServer


def registry_of(database: Database, names: Sequence[str], keys: int, root: Any) -> CollectorRegistry:
    """A registry with the queues of these names, or with all queues."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(database, *names, keys=keys, root=root))
    return registry


def page_of(registry: CollectorRegistry) -> bytes:
    """The page /metrics."""
    return generate_latest(registry)


def server_of(database: Database, registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """A server that listens, and serves with `serve_forever`. Raises OSError."""
    return MetricsServer(database, Pages(database, registry), host, port)
