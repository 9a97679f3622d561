"""Waking other processes: a datagram socket per process that watches, in the store's directory.

A commit rings every other process's socket. Nothing is polled, a ring costs some microseconds, a full
socket has rings enough in it already, and a dead process's socket refuses and is removed. Who listens is
read from the directory when its time stamp has changed. A ring is only a hint to look: the slow look of
`_LOOK_EVERY_S` mends one that was lost (a directory on a file system without sockets, say).
"""

import contextlib
import logging
import os
import select
import socket
from collections.abc import Callable

from fdbqueue.runtime import RealRuntime, Runtime

log = logging.getLogger("fdbqueue.embedded")

_DIRECTORY = "doorbells"
_LOOK_EVERY_S = 1.0
_RINGS_AT_ONCE = 64
# A change within the file system's clock tick does not show in the time stamp: a fresh listing is
# trusted only once the stamp is older than this.
_STAMP_TICK_S = 0.05


class Doorbell:
    """Rings other processes of one directory; once listening, calls `on_ring` when rung."""

    def __init__(self, store_path: str, runtime: Runtime, on_ring: Callable[[], None]) -> None:
        self._directory = os.path.join(store_path, _DIRECTORY)
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        # A socket's path may have 108 bytes: the directory is named by its descriptor instead.
        self._directory_fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        self._runtime = runtime
        self._on_ring = on_ring
        self._lock = RealRuntime.lock()
        self._socket: socket.socket | None = None
        self._name = ""
        self._listed_ns = -1
        self._others: list[str] = []
        self._ringer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ringer.setblocking(False)
        self._closed = False

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self._directory_fd}/{name}"

    def listen(self) -> None:
        """Begin to listen, once; what was committed before is for the caller to look at."""
        with self._lock:
            if self._socket is not None or self._closed:
                return
            self._name = f"{self._runtime.process_id()}-{self._runtime.random_bytes(6).hex()}"
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
            with contextlib.suppress(OSError):  # no sockets here: the slow look has to do
                self._socket.bind(self._path(self._name))
        self._runtime.spawn(self._listen, "fdbqueue-doorbell")

    def _listen(self) -> None:
        assert self._socket is not None
        rung = select.poll()
        rung.register(self._socket, select.POLLIN)
        while not self._closed:
            if rung.poll(_LOOK_EVERY_S * 1000):
                self._drain()
            self._look()
        self._socket.close()

    def _look(self) -> None:
        try:
            if not self._closed:
                self._on_ring()
        except Exception:
            if not self._closed:  # else it ran into the closing
                log.exception("Looking for what other processes committed failed; the next look will tell")

    def _drain(self) -> None:
        # Bounded, so that somebody who rings without end cannot keep us from looking. Not recv with
        # MSG_DONTWAIT on a socket that has a timeout: Python would wait for the timeout all the same.
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(_RINGS_AT_ONCE):
                self._socket.recv(1)

    def ring(self) -> None:
        """Tell every other listening process that a commit has happened. Never fails: it has happened."""
        with contextlib.suppress(OSError):  # closed meanwhile
            for name in self._listeners():
                self._ring(name)

    def _ring(self, name: str) -> None:
        try:
            self._ringer.sendto(b"!", self._path(name))
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(OSError):  # gone already, or no socket of ours
                os.unlink(name, dir_fd=self._directory_fd)
        except OSError:
            pass  # full, mostly: its rings are waiting to be read, so it will look

    def _listeners(self) -> list[str]:
        stamp_ns = os.stat(self._directory_fd).st_mtime_ns
        if stamp_ns != self._listed_ns:
            self._others = [n for n in os.listdir(self._directory_fd) if n != self._name]
            settled = self._runtime.now() - stamp_ns / 1e9 > _STAMP_TICK_S
            self._listed_ns = stamp_ns if settled else -1
        return self._others

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._socket is not None:
                self._ring(self._name)  # wakes the listener, which sees that it is over
                with contextlib.suppress(OSError):
                    os.unlink(self._path(self._name))
        self._ringer.close()
        os.close(self._directory_fd)
