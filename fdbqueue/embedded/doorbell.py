"""Waking other processes: who watches which keys is on a board; who writes one of those rings its watchers.

A process that watches takes a seat, with a datagram socket. The board, a file in the store's directory that
all processes map, has a row of seats for each of many buckets of keys: a process marks its seat in the rows
of the keys that it watches. A commit looks up the rows of the keys that it wrote and rings who is marked
there. Nothing is polled, a ring costs some microseconds, a commit of keys that nobody watches wakes nobody,
and a full socket has rings enough in it already. A ring that nobody hears takes the marks of a dead process
off the board.

A ring is only a hint to look: the slow look of `_LOOK_EVERY_S` mends one that was lost (a directory on a file
system without sockets, a disk without room for the board, more processes than seats).
"""

import contextlib
import mmap
import select
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Collection

from fdbqueue.embedded import bytelocks
from fdbqueue.embedded.directory import Directory, by_descriptor
from fdbqueue.logger import logger
from fdbqueue.runtime import RealRuntime, Runtime
from fdbqueue.trouble import Troubles

log = logger("fdbqueue.embedded")

_DIRECTORY = "doorbells"
_BOARD = "board"
_LOOK_EVERY_S = 1.0
_RINGS_AT_ONCE = 64

_SEATS = 1024
_BUCKETS = 1023
_ANYBODY = _BUCKETS  # the last row: who has a seat at all
_BOARD_BYTES = (_BUCKETS + 1) * _SEATS
_FREE, _MARK = 0, 1
_EMPTY_ROW = bytes(_SEATS)
_EMPTY_COLUMN = bytes(_BUCKETS + 1)
_KEYS_LOOKED_UP_MAX = 1_000  # a commit of more keys rings everybody who watches anything


class Doorbell:
    """Rings other processes of one directory; once listening, calls `on_ring` when rung."""

    def __init__(self, directory: Directory, runtime: Runtime, on_ring: Callable[[], None]) -> None:
        """Raises UnsafePath, OSError."""
        self._directory = directory.subdirectory(_DIRECTORY)
        self._runtime = runtime
        self._on_ring = on_ring
        self._lock = RealRuntime.lock()
        self._lock_file, self._board = self._open_board()
        self._seat: int | None = None
        self._watched: Counter[int] = Counter()  # buckets, by how many of the watched keys are in each
        self._socket: socket.socket | None = None
        self._is_listening = False
        self._ringer = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ringer.setblocking(False)
        self._troubles = Troubles(runtime)
        self._closed = False

    def _open_board(self) -> tuple[bytelocks.LockFile | None, mmap.mmap | None]:
        try:
            lock_file = bytelocks.LockFile(self._directory, _BOARD)
            return lock_file, lock_file.map(_BOARD_BYTES)
        except OSError:  # no room, or no locks: the slow look has to do
            return None, None

    def _path(self, name: str) -> str:
        # A socket's path may have 108 bytes: the directory is named by its descriptor instead.
        return f"{by_descriptor(self._directory.fd)}/{name}"

    # -- listening --------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin to listen, once; what was committed before is for the caller to look at.

        Raises RuntimeError if no thread can be started; a later call tries again.
        """
        with self._lock:
            if self._is_listening or self._closed:
                return
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
                with contextlib.suppress(OSError):  # no sockets here: the slow look has to do
                    self._take_seat(self._socket)
            self._is_listening = True
        try:
            self._runtime.spawn(self._listen, "fdbqueue-doorbell")
        except BaseException:
            self._is_listening = False
            raise

    def _take_seat(self, listening: socket.socket) -> None:
        if self._board is None or self._lock_file is None:
            return
        lock_fd = self._lock_file.fd
        seat = next((s for s in range(_SEATS) if bytelocks.try_lock(lock_fd, s)), None)
        if seat is None:
            return
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(str(seat))  # of somebody who is dead: the seat was free
        listening.bind(self._path(str(seat)))
        self._directory.hand_over(str(seat))
        self._board[seat::_SEATS] = _EMPTY_COLUMN
        for bucket in (_ANYBODY, *self._watched):
            self._board[bucket * _SEATS + seat] = _MARK
        self._seat = seat

    def watch(self, key: bytes) -> None:
        """Have this process rung for commits that write `key`. One call at a time."""
        bucket = zlib.crc32(key) % _BUCKETS
        self._watched[bucket] += 1
        self._mark(bucket, _MARK)

    def unwatch(self, key: bytes) -> None:
        """Take one `watch` of `key` back. One call at a time."""
        bucket = zlib.crc32(key) % _BUCKETS
        self._watched[bucket] -= 1
        if not self._watched[bucket]:
            del self._watched[bucket]
            self._mark(bucket, _FREE)

    def _mark(self, bucket: int, mark: int) -> None:
        with self._lock:
            if self._board is not None and self._seat is not None and not self._closed:
                self._board[bucket * _SEATS + self._seat] = mark

    def _listen(self) -> None:
        assert self._socket is not None
        rung = select.poll()
        rung.register(self._socket, select.POLLIN)
        try:
            while not self._closed:
                self._hear(rung)
        except BaseException:
            self._is_listening = False
            self.listen()  # in another thread: something ends this one (GreenletExit)
            raise
        self._socket.close()

    def _hear(self, rung: select.poll) -> None:
        try:
            if rung.poll(_LOOK_EVERY_S * 1000):
                self._drain()
            if not self._closed:
                self._on_ring()
        except Exception as error:
            if not self._closed:  # else it ran into the closing
                title = "Looking for what other processes committed failed; the next look will tell"
                self._troubles.met(log, title, error)
                self._runtime.sleep(_LOOK_EVERY_S)

    def _drain(self) -> None:
        # Bounded, so that somebody who rings without end cannot keep us from looking. Not recv with
        # MSG_DONTWAIT on a socket that has a timeout: Python would wait for the timeout all the same.
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(_RINGS_AT_ONCE):
                self._socket.recv(1)

    # -- ringing ----------------------------------------------------------------------------------------

    def ring(self, written: Callable[[], Collection[bytes]]) -> None:
        """Tell the other processes that watch one of `written` of a commit. Never fails: it has happened."""
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            if self._board is not None and self._board[_ANYBODY * _SEATS :] != _EMPTY_ROW:
                for seat in self._seats_of(written()) - {self._seat}:
                    if not self._ring(seat):
                        self._forget(seat)

    def _seats_of(self, keys: Collection[bytes]) -> set[int]:
        assert self._board is not None
        buckets = (
            {_ANYBODY} if len(keys) > _KEYS_LOOKED_UP_MAX else {zlib.crc32(key) % _BUCKETS for key in keys}
        )
        seats: set[int] = set()
        for bucket in buckets:
            row = self._board[bucket * _SEATS : (bucket + 1) * _SEATS]
            seat = row.find(_MARK)
            while seat >= 0:
                seats.add(seat)
                seat = row.find(_MARK, seat + 1)
        return seats

    def _ring(self, seat: int) -> bool:
        """Whether there may be somebody to hear it."""
        try:
            self._ringer.sendto(b"!", self._path(str(seat)))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # full, mostly: its rings are waiting to be read, so it will look
            pass
        return True

    def _forget(self, seat: int) -> None:
        """Take the marks of a seat off the board, unless it is somebody's."""
        with self._lock:
            if self._board is None or self._lock_file is None or self._closed or seat == self._seat:
                return
            if bytelocks.try_lock(self._lock_file.fd, seat):
                self._board[seat::_SEATS] = _EMPTY_COLUMN
                bytelocks.unlock(self._lock_file.fd, seat)

    # -- ending -----------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._seat is not None and self._board is not None:
                self._ring(self._seat)  # wakes the listener, which sees that it is over
                self._board[self._seat :: _SEATS] = _EMPTY_COLUMN
                with contextlib.suppress(OSError):
                    self._directory.unlink(str(self._seat))
        self._close_files()

    def let_go(self) -> None:
        """In a forked child: close all that is open, and leave the parent's marks and socket file alone.

        A socket that stayed open in the child would take rings after the death of the parent, so its marks
        would never be taken off the board.
        """
        self._closed = True
        self._close_files()
        if self._socket is not None:
            self._socket.close()  # in the parent the listening thread closes it

    def _close_files(self) -> None:
        self._ringer.close()
        if self._board is not None:
            self._board.close()
        if self._lock_file is not None:
            self._lock_file.close()
        self._directory.close()
