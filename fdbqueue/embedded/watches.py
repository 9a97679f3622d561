"""Watches: the watched keys of one process, and the futures that wait for a change of them.

A watch fires when the value of its key differs from the value that its transaction saw. A commit of this
process looks at the watched keys that it wrote. A commit of another process sends a ring. After a ring, a
process with few watches looks at all their keys; with many, it reads in the commit log which of them were
written. A watch is armed first and its key is looked at second, so no change falls between the two.

A process that watches takes a slot, with a datagram socket. The *board* is a file in the store's directory
that all processes map. It has a row of slots for each of many buckets of keys. A process marks its slot in
the rows of the keys that it watches. A commit looks up the rows of the keys that it wrote, and sends a ring
(one byte) to the socket of each marked slot. A ring costs some microseconds, and a commit of unwatched keys
sends none. If a socket is full, it holds enough rings already. If a slot's process is dead, its marks are
cleared.

A ring is only a hint to look. A ring may get lost: on a file system without sockets, on a disk without room
for the board, or with more processes than slots. So each process also looks every `_LOOK_EVERY_S`.
"""

import contextlib
import mmap
import select
import socket
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Collection

from fdbqueue.core import limits
from fdbqueue.core.errors import StorageReplaced
from fdbqueue.core.logger import Troubles, logger
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded import layout
from fdbqueue.embedded.directory import SYSTEM, Directory, LockFile, System, by_descriptor
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.layout import Written
from fdbqueue.embedded.surface import PendingFuture

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
            if self._closed:  # closing the database makes a look fail
                return
            if not isinstance(error, StorageReplaced):  # each call of the database raises that
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
        """Close all open files in a forked child, and leave the parent's marks and socket file alone. A
        socket left open in the child would accept rings after the death of the parent. Then the parent's
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


_KEYS_KEPT = 64  # empty entries before they are dropped; a doubling bound keeps the cost per watch constant


class Watches:
    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._lock = environment.system.lock()
        self._by_key: dict[bytes, dict[int, tuple[weakref.ref[PendingFuture], bytes | None]]] = {}
        self._keys_max = _KEYS_KEPT
        self._seen_version = 0
        self.doorbell: Doorbell | None = None
        if not environment.private:
            self.doorbell = Doorbell(
                environment.directory, environment.runtime, self._rung, environment.system
            )

    def arm(self, key: bytes, expected: bytes | None, future: PendingFuture) -> None:
        """Complete `future` once the value of `key` is no longer `expected`."""
        with self._lock:
            if self.doorbell is not None and not self._by_key:
                # Before any key is in the table, so a change that its first look misses has a later version.
                self._seen_version = max(self._seen_version, self._newest_version())
            self._drop_empty()
            if key not in self._by_key:
                self._by_key[key] = {}
                if self.doorbell is not None:
                    self.doorbell.watch(key)
            self._by_key[key][id(future)] = (weakref.ref(future), expected)
        if self.doorbell is not None:
            self.doorbell.listen()
        self._look([key])

    def disarm(self, key: bytes, future_id: int) -> None:
        # A destructor calls it, at any allocation: so one dict operation, and no lock.
        waiting = self._by_key.get(key)
        if waiting is not None:
            waiting.pop(future_id, None)

    def _drop_empty(self) -> None:
        if len(self._by_key) < self._keys_max:
            return
        for key in [key for key, waiting in self._by_key.items() if not waiting]:
            self._drop(key)
        self._keys_max = 2 * len(self._by_key) + _KEYS_KEPT

    def _drop(self, key: bytes) -> None:
        if self._by_key.pop(key, None) is not None and self.doorbell is not None:
            self.doorbell.unwatch(key)

    def notify(self, written: Written) -> None:
        """After a commit, look at the watched keys that it wrote, and ring the other processes."""
        if self._by_key:
            self._look(self._watched(written))
        if self.doorbell is not None:
            self.doorbell.ring(written.keys)

    def _watched(self, written: Written) -> list[bytes]:
        return [key for key in list(self._by_key) if key in written.conflicts or key in written.silent]

    def _look(self, keys: Collection[bytes]) -> None:
        if not keys:
            return
        try:
            with self._environment.begin() as txn:
                values = {key: layout.get(txn, key) for key in keys}
        except FDBError as error:  # for example no reader slot; the commit itself has happened
            for key in keys:
                for future in self._take_out(key, lambda _: True):
                    future.complete(error=FDBError(error.code))
        else:
            self._complete(values)

    def _complete(self, values: dict[bytes, bytes | None]) -> None:
        for key, value in values.items():
            for future in self._take_out(key, lambda expected, value=value: expected != value):  # type: ignore[misc]
                future.complete()

    def _take_out(self, key: bytes, which: Callable[[bytes | None], bool]) -> list[PendingFuture]:
        """Remove the watches of `key` from the table if `which(expected value)` is true; return them."""
        with self._lock:
            waiting = self._by_key.get(key, {})
            changed = [i for i, (_, expected) in list(waiting.items()) if which(expected)]
            found = [waiting.pop(i, None) for i in changed]  # None: disarmed since, without the lock
            if not waiting:
                self._drop(key)
        futures = [entry[0]() for entry in found if entry is not None]
        return [future for future in futures if future is not None]

    def _rung(self) -> None:
        """Look at the watched keys, since another process may have written one."""
        if not self._by_key:
            return
        with self._environment.begin() as txn:
            values = {key: layout.get(txn, key) for key in self._worth_a_look(txn)}
            self._seen_version = txn.id()
        self._complete(values)

    def _worth_a_look(self, txn: layout.Txn) -> Collection[bytes]:
        keys = list(self._by_key)
        if len(keys) <= limits.WATCHED_KEYS_LOOKED_AT_MAX:
            return keys
        oldest = layout.oldest_version(txn)
        if oldest is None or oldest > self._seen_version + 1:
            return keys  # the log no longer reaches back
        written = layout.read_since(txn, self._seen_version)
        return {key for commit in written for key in self._watched(commit)}

    def _newest_version(self) -> int:
        with self._environment.begin() as txn:
            version: int = txn.id()
            return version

    def close(self) -> None:
        """Cancel all watches: no commit is seen any more."""
        waiting = [entry[0]() for watches in list(self._by_key.values()) for entry in list(watches.values())]
        for future in waiting:
            if future is not None:
                future.cancel()
        if self.doorbell is not None:
            self.doorbell.close()

    def let_go(self) -> None:
        """Close this process's copies in a forked child, and leave the parent's watches alone."""
        if self.doorbell is not None:
            self.doorbell.let_go()
