"""The server of `fdbqueue dashboard`."""

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette

from fdbqueue.operate.dashboard.app import create_app as create_app

SHUTDOWN_S = 8
CONNECTIONS_MAX = 250


class Server(uvicorn.Server):
    """A server that ends the streams of events before it waits for its connections."""

    def __init__(self, app: Starlette) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=SHUTDOWN_S,
                ws="none",
                limit_concurrency=CONNECTIONS_MAX,
                lifespan="on",
            )
        )
        self._streams = app.state.streams

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A hangup, too, ends the server in order, unless it is ignored."""
        with super().capture_signals():
            before = signal.getsignal(signal.SIGHUP)
            # In another thread than the main one, no signal is captured.
            captures = signal.getsignal(signal.SIGTERM) == self.handle_exit and before is not signal.SIG_IGN
            if captures:
                signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                if captures:
                    signal.signal(signal.SIGHUP, before)

    async def shutdown(self, sockets: list[Any] | None = None) -> None:
        self._streams.close()
        await super().shutdown(sockets)


def listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
