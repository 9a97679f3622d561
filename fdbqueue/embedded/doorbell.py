"""Wakes other processes: a shared board records which processes watch which keys, and a commit rings them.

A process that watches takes a slot, with a datagram socket. The board is a file in the store's directory that
all processes map. It has a row of slots for each of many buckets of keys. A process marks its slot in the
rows of the keys that it watches. A commit looks up the rows of the keys that it wrote, and sends a ring (one
byte) to the socket of each marked slot. A ring costs some microseconds, and a commit of unwatched keys sends
none. If a socket is full, it holds enough rings already. If a slot's process is dead, its marks are cleared.

A ring is only a hint to look. A ring may get lost: on a file system without sockets, on a disk without room
for the board, or with more processes than slots. So each process also looks every `_LOOK_EVERY_S`.
"""

import contextlib
import mmap
import select
import socket
import zlib
from collections import Counter
from collections.abc import Callable, Collection

from fdbqueue import limits
from fdbqueue.embedded.bytelocks import LockFile
from fdbqueue.embedded.directory import Directory, by_descriptor
from fdbqueue.embedded.system import SYSTEM, System
from fdbqueue.logger import logger
from fdbqueue.runtime import Runtime
from fdbqueue.trouble import Troubles

log = logger("fdbqueue.embedded")

_DIRECTORY = "doorbells"
_BOARD = "board"
_LOOK_EVERY_S = 1.0

_SLOTS = 1024
_BUCKETS = 1023
_ANY_KEY = _BUCKETS  # the last row: all slots that are taken
_BOARD_BYTES = (_BUCKETS + 1) * _SLOTS
_FREE, _MARK = 0, 1
_EMPTY_ROW = bytes(_SLOTS)
_EMPTY_COLUMN = bytes(_BUCKETS + 1)


class Doorbell:
    """Rings other processes of one directory, and calls `on_ring` when one of them rings this process."""

    def __init__(
        self, directory: Directory, runtime: Runtime, on_ring: Callable[[], None], system: System = SYSTEM
    ) -> None:
        """Raises UnsafePath, OSError."""
        self._directory = directory.subdirectory(_DIRECTORY)
        self._runtime = runtime
        self._system = system
        self._on_ring = on_ring
        self._lock = system.lock()
        self._lock_file, self._board = self._open_board()
        self._slot: int | None = None
        self._watched: Counter[int] = Counter()  # the number of watched keys in each bucket
        self._socket: socket.socket | None = None
        self._is_listening = False
        self._ringer = system.open_socket()
        self._troubles = Troubles(runtime)
        self._closed = False

    def _open_board(self) -> tuple[LockFile | None, mmap.mmap | None]:
        try:
            lock_file = self._system.lock_file(self._directory, _BOARD)
            return lock_file, lock_file.map(_BOARD_BYTES)
        except OSError:  # without room or byte locks, the slow look remains
            return None, None

    def _path(self, name: str) -> str:
        # A socket's path may have 108 bytes: the directory is named by its descriptor instead.
        return f"{by_descriptor(self._directory.fd)}/{name}"

    # -- listening --------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin to listen; a second call has no effect. The caller itself looks at commits before this call.

        Raises: RuntimeError if no thread can be started; a later call tries again.
        """
        with self._lock:
            if self._is_listening or self._closed:
                return
            if self._socket is None:
                self._socket = self._system.open_socket()
                with contextlib.suppress(OSError):  # without sockets here, the slow look remains
                    self._take_slot(self._socket)
            self._is_listening = True
        try:
            self._runtime.spawn(self._listen, "fdbqueue-doorbell")
        except BaseException:
            self._is_listening = False
            raise

    def _take_slot(self, listening: socket.socket) -> None:
        if self._board is None or self._lock_file is None:
            return
        slot = next((s for s in range(_SLOTS) if self._lock_file.try_lock(s)), None)
        if slot is None:
            return
        with contextlib.suppress(FileNotFoundError):
            self._directory.unlink(str(slot))  # the socket of a dead process: the slot was free
        listening.bind(self._path(str(slot)))
        self._directory.hand_over(str(slot))
        self._board[slot::_SLOTS] = _EMPTY_COLUMN
        for bucket in (_ANY_KEY, *self._watched):
            self._board[bucket * _SLOTS + slot] = _MARK
        self._slot = slot

    def watch(self, key: bytes) -> None:
        """Ask for a ring at each commit that writes `key`. One call at a time."""
        bucket = zlib.crc32(key) % _BUCKETS
        self._watched[bucket] += 1
        self._mark(bucket, _MARK)

    def unwatch(self, key: bytes) -> None:
        """Undo one `watch` of `key`. One call at a time."""
        bucket = zlib.crc32(key) % _BUCKETS
        self._watched[bucket] -= 1
        if not self._watched[bucket]:
            del self._watched[bucket]
            self._mark(bucket, _FREE)

    def _mark(self, bucket: int, mark: int) -> None:
        with self._lock:
            if self._board is not None and self._slot is not None and not self._closed:
                self._board[bucket * _SLOTS + self._slot] = mark

    def _listen(self) -> None:
        assert self._socket is not None
        rung = self._system.poll()
        rung.register(self._socket, select.POLLIN)
        try:
            while not self._closed:
                self._hear(rung)
        except BaseException:
            self._is_listening = False
            self.listen()  # in another thread, since an exception ends this one (GreenletExit)
            raise
        self._socket.close()

    def _hear(self, rung: select.poll) -> None:
        try:
            if rung.poll(_LOOK_EVERY_S * 1000):
                self._drain()
            if not self._closed:
                self._on_ring()
        except Exception as error:
            if not self._closed:  # closing the database makes a look fail
                title = "Looking for what other processes committed failed; the next look will tell"
                self._troubles.met(log, title, error)
                self._runtime.sleep(_LOOK_EVERY_S)

    def _drain(self) -> None:
        # Bounded, so that endless rings cannot delay the look. The socket does not block: on a socket with a
        # timeout, Python would wait for the timeout even with MSG_DONTWAIT.
        assert self._socket is not None
        with contextlib.suppress(BlockingIOError):
            for _ in range(limits.RINGS_AT_ONCE):
                self._socket.recv(1)

    # -- ringing ----------------------------------------------------------------------------------------

    def ring(self, written: Callable[[], Collection[bytes]]) -> None:
        """Ring the other processes that watch a key of `written`. Never raises: the commit has happened."""
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            if self._board is not None and self._board[_ANY_KEY * _SLOTS :] != _EMPTY_ROW:
                for slot in self._slots_of(written()) - {self._slot}:
                    if not self._ring(slot):
                        self._forget(slot)

    def _slots_of(self, keys: Collection[bytes]) -> set[int]:
        assert self._board is not None
        many = len(keys) > limits.KEYS_RUNG_MAX
        buckets = {_ANY_KEY} if many else {zlib.crc32(key) % _BUCKETS for key in keys}
        slots: set[int] = set()
        for bucket in buckets:
            row = self._board[bucket * _SLOTS : (bucket + 1) * _SLOTS]
            slot = row.find(_MARK)
            while slot >= 0:
                slots.add(slot)
                slot = row.find(_MARK, slot + 1)
        return slots

    def _ring(self, slot: int) -> bool:
        """True unless the process of this slot is known to be dead."""
        try:
            self._ringer.sendto(b"!", self._path(str(slot)))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:  # mostly a full socket: its process has unread rings, so it will look
            pass
        return True

    def _forget(self, slot: int) -> None:
        """Clear the marks of a slot, unless a process holds it."""
        with self._lock:
            if self._board is None or self._lock_file is None or self._closed or slot == self._slot:
                return
            if self._lock_file.try_lock(slot):
                self._board[slot::_SLOTS] = _EMPTY_COLUMN
                self._lock_file.unlock(slot)

    # -- ending -----------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._slot is not None and self._board is not None:
                self._ring(self._slot)  # wakes the listening thread, which then ends
                self._board[self._slot :: _SLOTS] = _EMPTY_COLUMN
                with contextlib.suppress(OSError):
                    self._directory.unlink(str(self._slot))
        self._close_files()

    def let_go(self) -> None:
        """Close all open files in a forked child, and leave the parent's marks and socket file alone.

        A socket left open in the child would accept rings after the death of the parent. Then the parent's
        marks would never be cleared.
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
