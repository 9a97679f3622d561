"""The HTTP server of `fdbqueue metrics`. It has no password, so it listens on this machine by default."""

import socket
import sys
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from fdbqueue import limits
from fdbqueue.database import Database
from fdbqueue.local_names import is_local_name, is_loopback
from fdbqueue.logger import logger
from fdbqueue.metrics.pages import Answer, Pages

_log = logger("fdbqueue.metrics")
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
