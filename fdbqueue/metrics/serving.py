"""The parts of `fdbqueue metrics`, put together."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from fdbqueue.database import Database
from fdbqueue.metrics.collector import QueueCollector
from fdbqueue.metrics.files import FilesCollector
from fdbqueue.metrics.pages import Pages
from fdbqueue.metrics.server import MetricsServer


def registry_of(
    database: Database, names: Sequence[str], keys: int, root: Any, processes: Path | None = None
) -> CollectorRegistry:
    """A registry with the queues of these names, or with all queues, and with the metrics in the files below
    `processes`.
    """
    registry = CollectorRegistry()
    registry.register(QueueCollector(database, *names, keys=keys, root=root))
    if processes is not None:
        registry.register(FilesCollector(processes, database.troubles))
    return registry


def page_of(registry: CollectorRegistry) -> bytes:
    """The page /metrics."""
    return generate_latest(registry)


def server_of(database: Database, registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    """A server that listens, and serves with `serve_forever`. Raises OSError."""
    return MetricsServer(database, Pages(database, registry), host, port)
