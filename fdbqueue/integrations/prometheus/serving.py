"""The HTTP server of `fdbqueue metrics`, its pages, and the metrics that processes keep in files.

It has no password, so it listens on this machine by default.
"""

import socket
import sys
from collections.abc import Iterable, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.logger import Troubles, logger
from fdbqueue.core.open import is_local_name, is_loopback
from fdbqueue.core.visible import text_of, told
from fdbqueue.integrations.prometheus.collector import QueueCollector, failures

_log = logger("fdbqueue.metrics")
_OK, _NOT_FOUND, _ERROR, _UNAVAILABLE = 200, 404, 500, 503
_TEXT = "text/plain; charset=utf-8"
_INDEX = """fdbqueue metrics

/metrics  figures of the queues, for Prometheus
/healthz  200 while this process serves
/readyz   200 while the database answers, else 503
"""


class Answer(NamedTuple):
    status: int
    body: bytes
    type: str = _TEXT


class Pages:
    """Paths and answers of one database, without a socket. Threads share it; one scrape runs at a time."""

    def __init__(self, database: Database, registry: CollectorRegistry) -> None:
        self._database = database
        self._registry = registry
        self._scraping = database.runtime.lock()
        self._pages = {
            "/": lambda: _said(_OK, _INDEX),
            "/metrics": self._metrics,
            "/healthz": lambda: _said(_OK, "ok"),
            "/readyz": self._ready,
        }

    def get(self, path: str) -> Answer:
        """The answer for a path, without its query. An error becomes a sentence, and a line in the log."""
        page = self._pages.get(path)
        if page is None:
            return _said(_NOT_FOUND, "there is no such page; / lists the pages")
        try:
            return page()
        except Exception as error:
            self._database.troubles.met(_log, f"the page {path} has failed", error)
            return _said(_ERROR, "this page has failed; the log of fdbqueue metrics has the reason")

    def _metrics(self) -> Answer:
        if not self._scraping.acquire(timeout=limits.SCRAPE_WAIT_S):
            return _said(_UNAVAILABLE, "other scrapes are under way; try again")
        try:
            return Answer(_OK, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        finally:
            self._scraping.release()

    def _ready(self) -> Answer:
        timeout_s = limits.READY_TIMEOUT_S
        try:
            run(self._database, lambda tr: tr.get_read_version().wait(), timeout_s=timeout_s)
        except failures() as error:
            return _said(_UNAVAILABLE, f"the database does not answer: {told(text_of(error))}")
        return _said(_OK, "ok")


def _said(status: int, text: str) -> Answer:
    return Answer(status, f"{text.rstrip()}\n".encode())


_FORBIDDEN = Answer(403, b"this server answers to names of this machine only: use localhost\n")


class MetricsServer(ThreadingMixIn, TCPServer):
    """Serves `pages` at one address, each connection in a thread, up to limits.HTTP_CONNECTIONS_MAX."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = limits.HTTP_CONNECTIONS_MAX

    def __init__(self, database: Database, pages: Pages, host: str, port: int) -> None:
        """Raises OSError if the address cannot be had."""
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self._database = database
        self._lock = database.runtime.lock()
        self._connections = 0
        super().__init__((host, port), _Handler)
        self.is_local = is_loopback(host)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if self.address_family == socket.AF_INET6 else str(host)
        return f"http://{shown}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if self._connections >= limits.HTTP_CONNECTIONS_MAX:
                self.shutdown_request(request)
                return
            self._connections += 1
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could begin, so none will leave
            self._left()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._left()

    def _left(self) -> None:
        with self._lock:
            self._connections -= 1

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  # its interface
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # OSError: the client has gone
            self._database.troubles.met(_log, "a request has failed", error)


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = limits.HTTP_SILENCE_S
    server_version = "fdbqueue"
    sys_version = ""

    def do_GET(self) -> None:
        answer = self._answer()
        self._begin(answer)
        self.wfile.write(answer.body)

    def do_HEAD(self) -> None:
        self._begin(self._answer())

    def log_message(self, *_: Any) -> None:
        """No line for each scrape."""

    def _answer(self) -> Answer:
        # A page of another site could give its own name the address of this machine, and read ours.
        if self.server.is_local and not is_local_name(self.headers.get("Host", "localhost")):
            return _FORBIDDEN
        return self.server.pages.get(self.path.partition("?")[0])

    def _begin(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()


class FilesCollector:
    """The sums over all processes with metrics in one directory, dead ones too, as prometheus-client does."""

    def __init__(self, directory: Path, troubles: Troubles) -> None:
        self._directory = directory
        self._troubles = troubles

    def describe(self) -> Iterable[Metric]:
        """Nothing: the files name the metrics."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The sums; nothing while a file cannot be read, as other figures of the page must still be told."""
        try:
            found: list[Metric] = list(MultiProcessCollector(None, str(self._directory)).collect())
        except Exception as error:
            self._troubles.met(_log, f"the metrics in {self._directory} could not be read", error)
            return ()
        return found


def registry_of(
    database: Database, names: Sequence[str], keys: int, root: Any, processes: Path | None = None
) -> CollectorRegistry:
    """A registry with the queues of these names, or all, and the metrics in the files below `processes`."""
    registry = CollectorRegistry()
    registry.register(QueueCollector(database, *names, keys=keys, root=root))
    if processes is not None:
        registry.register(FilesCollector(processes, database.troubles))
    return registry


def page_of(registry: CollectorRegistry) -> bytes:
    return generate_latest(registry)


def server_of(database: Database, registry: CollectorRegistry, host: str, port: int) -> MetricsServer:
    return MetricsServer(database, Pages(database, registry), host, port)
