"""The processes of a directory: who uses it, may its `data.mdb` be believed, and the queue of their commits.

LMDB writes `data.mdb` without a flush, so the file is right as long as the page cache lives: for one boot of
the machine. The file `in-use` has the *mark* of that boot, and a lock that all users share:

    mark    the text that names this boot, the mount of the file system, and the file `data.mdb`
    lock    a process shares it while it has the directory open; the first one has it alone until the mark is
            there
    entry   another lock, which one process at a time has while it opens the directory. So each process that
            shares the first lock found the directory ready, or has made it so: if the first one dies before
            that, the next one begins again
    namespace   a byte for each PID namespace, in which users share a lock: all users are of one
    names   a lock of each user on a byte of its own, at a random place. Its name tells the place, so every
            process learns from the kernel, at once, if the process of a name is gone

A directory that was copied, or restored from a snapshot of its file system, has another mark. A snapshot that
is put in the place of its original has the same inode, and mostly the same device. If another disk is mounted
at the same place, the number of the mount is mostly the same, too, since the kernel uses these numbers again.
So the mark has the *unique* number of the mount, which Linux knows since 6.8. It also has the id of the file
system, which tells the subvolumes of btrfs apart.

LMDB and the kernel tell processes and threads apart by their numbers, which repeat among PID namespaces. A
slot of a dead reader would look alive. And if a thread dies that waits for a lock of LMDB, the kernel takes
the lock away from its holder, a thread of the same number: then two processes write at once.

In the queue of commits, the pool, one leader commits the requests of all. Its file `commits.1` has slots for
the processes that commit at the same time. (Another layout gets another number.) If a process finds another
one leading, it writes its requests into its slot and waits. The next leader commits the requests of all slots
with its own, in one LMDB transaction, and writes the answers into the slots.

    epoch                the number of the last leader that has resigned
    committing           the version that the leader commits for others too; 0 once they have their answers
    short                1 while the reserve is not whole (environment.py)
    magic                marks this layout; 0 in a new file. A damaged file is made anew
    asked, answered      a number per slot: a request is pending while they differ; no number is used twice
    lengths, bodies      the requests of a slot (writes.py)
    versions, results    the outcome of each: its order within the version, or minus an error's code

The leader is the process that holds the lock of the byte named by the next epoch; all others wait for this
lock. The kernel ends it when its holder dies. Only the leader writes `answered`, and its LMDB transaction
decides the outcome of each request, so a request is committed at most once:

- A leader that dies before its LMDB transaction is committed has done nothing: its successor finds the
  requests pending. A leader that dies afterwards has left `committing`, and the answers in the commit log.
  Its successor delivers these answers before it looks for pending requests.
- Requests of dead processes are dropped. Only a leader may take a slot, and it drops the requests of the
  slot's former owner.
- Answers in the log name the file of their requests. Without that name, slots of another file (restored, or
  made anew while a process has the old one open) would take them for their own.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

import msgspec

from fdbqueue.core.errors import DatabaseClosed, StorageInUse
from fdbqueue.core.runtime import RealRuntime, Runtime
from fdbqueue.embedded.directory import SYSTEM, Directory, LockHolder, System

_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# Of <linux/stat.h> and <linux/fcntl.h>, the same on every architecture.
_AT_EMPTY_PATH, _MOUNT_UNIQUE = 0x1000, 0x4000
_STATX_BYTES, _MASK_BYTES, _MOUNT = 256, 4, slice(0x90, 0x98)

# Some C libraries have none.
_statx: Callable[..., int] | None = getattr(ctypes.CDLL(None), "statx", None)


def mark_of(fd: int) -> bytes | None:
    """Return the mark of this boot for an open file; None if the system does not tell it."""
    try:
        boot = boot_id()
        mount = _unique_mount(fd) or _mount(fd)
    except (OSError, StopIteration):
        return None
    status, system = os.fstat(fd), os.fstatvfs(fd).f_fsid
    return f"{boot} {mount} {system} {status.st_dev} {status.st_ino}".encode()


def boot_id() -> str:
    with open(_BOOT_ID) as file:
        return file.read().strip()


def _unique_mount(fd: int) -> int | None:
    """Return the number that no other mount has in this boot; None if the kernel knows none."""
    made = ctypes.create_string_buffer(_STATX_BYTES)
    if _statx is None or _statx(fd, b"", _AT_EMPTY_PATH, _MOUNT_UNIQUE, made):
        return None
    told = int.from_bytes(made.raw[:_MASK_BYTES], sys.byteorder)
    return int.from_bytes(made.raw[_MOUNT], sys.byteorder) if told & _MOUNT_UNIQUE else None


def _mount(fd: int) -> int:
    """Return the number of the mount, which a later one may have, too. Raises: OSError, StopIteration."""
    with open(f"/proc/self/fdinfo/{fd}") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))


IN_USE_FILE = "in-use"
_LOCK = 1 << 40
_CHECKPOINT_LOCK = _LOCK + 1
_ENTRY_LOCK = _LOCK + 2
_MARK_BYTES = 512
_PAUSE_S = 0.01
_STOPPED_S = 5.0
NAMESPACES = 1 << 41
_NAMESPACE_BYTES = 5
_NAMESPACES = 1 << 8 * _NAMESPACE_BYTES
_NAMESPACE_FILE = "/proc/self/ns/pid"
OTHER_NAMESPACE = """processes of another PID namespace have it open (another container, the host, or \
another machine): give all processes of a directory one namespace, by docker run --pid=container:NAME or \
--pid=host, pid: in a compose file, or shareProcessNamespace in a pod"""
_NAME_LOCKS = 1 << 43
_NAME_START, _NAME_RANDOM_BYTES = b"fq\x00", 5
NAME_BYTES = len(_NAME_START) + _NAME_RANDOM_BYTES


class Users:
    def __init__(self, directory: Directory, runtime: Runtime, system: System = SYSTEM) -> None:
        """Raises: UnsafePath, OSError (also where the file system has no byte locks)."""
        self._path = directory.path
        self._runtime = runtime
        self._system = system
        self._file = system.lock_file(directory, IN_USE_FILE)
        self.name = b""
        """The name of this process, NAME_BYTES long; empty before `join`."""

    def enter(self) -> bool:
        """Begin to open the directory, alone; True for the only user, False if there are others. This waits
        for another process that opens it. Raises: StorageInUse if that one is stopped, or if the others are
        of another PID namespace.
        """
        look_s = self._runtime.monotonic() + _STOPPED_S
        while not self._file.try_lock(_ENTRY_LOCK):  # a large directory recovers for minutes
            if self._runtime.monotonic() >= look_s:
                holder = self._system.holder_of(self._file.fd, _ENTRY_LOCK)
                if holder.is_stopped:
                    reason = f"it waits for {holder} while it opens the directory: {holder.cure}"
                    raise StorageInUse(path=self._path, reason=reason)
                look_s += _STOPPED_S
            self._runtime.sleep(_PAUSE_S)
        self._share_namespace()
        return self._file.try_lock(_LOCK)

    def _share_namespace(self) -> None:
        own = NAMESPACES + _namespace()
        if self._file.is_locked(NAMESPACES, own - NAMESPACES) or self._file.is_locked(own + 1, _NAMESPACES):
            raise StorageInUse(path=self._path, reason=OTHER_NAMESPACE)
        self._file.share(own)

    def join(self, random_bytes: Callable[[int], bytes]) -> None:
        """Be one of the users, after `enter`: the directory is ready. This process gets a name."""
        while not self.name:
            name = _NAME_START + random_bytes(_NAME_RANDOM_BYTES)
            if self._file.try_lock(_place_of(name)):  # else another process has the name
                self.name = name
        self._file.share(_LOCK)
        self._file.unlock(_ENTRY_LOCK)

    def is_gone(self, name: bytes) -> bool | None:
        """True if the process with this name, or with more bytes behind it, has ended; None for another name.
        False as long as a child has the open files of its dead parent.
        """
        name = name[:NAME_BYTES]
        if self._file.fd < 0 or len(name) < NAME_BYTES or not name.startswith(_NAME_START):
            return None
        return name != self.name and not self._file.is_locked(_place_of(name))

    def believes(self, data_fd: int) -> bool:
        """True if the open file `data.mdb` is right in this boot."""
        mark = mark_of(data_fd)
        found = self._system.pread(self._file.fd, _MARK_BYTES, 0)
        return mark is not None and mark.ljust(_MARK_BYTES, b"\0") == found

    def believe(self, data_fd: int) -> None:
        """Note that the open file `data.mdb` is right from now on; for the only user."""
        mark = mark_of(data_fd)
        if mark is not None:
            self._write(mark)

    def doubt(self) -> None:
        """Note that `data.mdb` is not right; for the only user."""
        self._write(b"")

    def _write(self, mark: bytes) -> None:
        # The file keeps its size, since a full disk has no room for a new one.
        self._system.pwrite(self._file.fd, mark.ljust(_MARK_BYTES, b"\0"), 0)

    def try_checkpoint(self) -> bool:
        """Be the process that writes the base; False if another process does."""
        return self._file.fd >= 0 and self._file.try_lock(_CHECKPOINT_LOCK)

    def begin_checkpoint(self) -> None:
        """Be the process that writes the base, once no other one does."""
        self._file.lock(_CHECKPOINT_LOCK)

    def end_checkpoint(self) -> None:
        if self._file.fd < 0:  # another thread may have closed the store
            return
        try:
            self._file.unlock(_CHECKPOINT_LOCK)
        except BaseException:  # an interrupt: kept, the lock would hold up all processes
            self._file.unlock(_CHECKPOINT_LOCK)
            raise

    def close(self) -> None:
        self._file.close()


def _namespace() -> int:
    """Return a number above 0 for the PID namespace of this process."""
    try:
        text = f"{boot_id()} {os.stat(_NAMESPACE_FILE).st_ino}"
    except OSError:  # a system without namespaces
        text = ""
    return 1 + int.from_bytes(blake2b(text.encode(), digest_size=_NAMESPACE_BYTES).digest())


def _place_of(name: bytes) -> int:
    """The byte that the process of this name has locked."""
    return _NAME_LOCKS + int.from_bytes(name[len(_NAME_START) :])


COMMITS_FILE = "commits.1"
_SLOTS = 256
REQUESTS_MAX = 64
BODY_BYTES_MAX = 128 * 1024
NO_ROOM = 1_000_000  # the result that means StorageFull; FoundationDB has no such code
_PAUSE_AFTER_A_DEATH_S = 0.001
# The pauses between looks at a lock grow with the wait.
_LOOK_MIN_S, _LOOK_MAX_S, _LOOKS = 0.0005, 0.05, 8

_MAGIC = int.from_bytes(b"fdbqpool", "big")
_EPOCH_MAX = 1 << 60  # the position of a locked byte has 63 bits at most
_NUMBERS = 8 * _SLOTS
_MARKS_END = 32
_ASKED = 64
_ANSWERED = _ASKED + _NUMBERS
_LENGTHS = _ANSWERED + _NUMBERS
_VERSIONS = _LENGTHS + _NUMBERS
_RESULTS = _VERSIONS + _NUMBERS
_HEADER_BYTES = _RESULTS + 4 * REQUESTS_MAX * _SLOTS
_BODIES = 1 << 20
# The locked bytes lie beyond all written ones.
_SLOT_LOCKS = 1 << 40
EPOCH_LOCKS = 1 << 41


class PoolDamaged(OSError):
    """The file holds numbers that no process writes."""


class LeaderStands(Exception):
    """The process that leads has not resigned in time."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    slot: int
    number: int
    results: Sequence[int]


@dataclass(frozen=True)
class SlotRequests:
    slot: int
    number: int
    body: bytes


class Pool:
    """The file `commits.1`, as one process sees it. One thread at a time."""

    def __init__(self, directory: Directory, runtime: Runtime, system: System = SYSTEM) -> None:
        """Open the file, or make it. Raises: UnsafePath, PoolDamaged, OSError (no room, or no byte locks)."""
        self._runtime = runtime
        self._system = system
        # It closes with its last reference, since a thread may use it until then.
        self._lock_file = system.lock_file(directory, COMMITS_FILE)
        self._map = self._lock_file.map(_HEADER_BYTES)
        self.file = os.fstat(self._lock_file.fd).st_ino
        self._marks = system.numbers(self._map, 0, _MARKS_END, "Q")
        self._asked = system.numbers(self._map, _ASKED, _ANSWERED, "Q")
        self._answered = system.numbers(self._map, _ANSWERED, _LENGTHS, "Q")
        self._lengths = system.numbers(self._map, _LENGTHS, _VERSIONS, "Q")
        self._versions = system.numbers(self._map, _VERSIONS, _RESULTS, "Q")
        self._results = system.numbers(self._map, _RESULTS, _HEADER_BYTES, "i")
        self._slot: int | None = None
        self._looked_for_slot = False
        self.is_asking = False
        """True from `ask` until the requests are answered or dropped."""
        self._next = 0  # the epoch in which this process leads, or the one that it waits for
        self._closed = False
        self._require_sound()

    def _require_sound(self) -> None:
        epoch, _, magic, _ = self._marks
        if magic not in (0, _MAGIC) or epoch > _EPOCH_MAX or max(self._lengths) > BODY_BYTES_MAX:
            raise PoolDamaged
        self._marks[2] = _MAGIC

    # -- leading ----------------------------------------------------------------------------------------

    def try_lead(self) -> bool:
        """Become the leader; False if another process leads. Raises: PoolDamaged, DatabaseClosed."""
        if self._closed:
            raise DatabaseClosed
        while True:
            self._next = self._marks[0] + 1
            if self._next > _EPOCH_MAX:
                raise PoolDamaged
            if not self._lock_file.try_lock(EPOCH_LOCKS + self._next):
                return False
            if self._marks[0] + 1 == self._next:
                return True
            self._unlock()  # that epoch is over

    def wait(self, until_s: float = inf) -> None:
        """Return once the leader that `try_lead` met is gone. Raises: LeaderStands at `until_s`."""
        at = EPOCH_LOCKS + self._next
        if until_s == inf:
            self._lock_file.wait_until_free(at)
        elif not self._sees_free(at, until_s):
            raise LeaderStands
        if self._marks[0] + 1 == self._next:
            # It died. Each waiting process locks the byte for a moment, and so delays the others.
            self._runtime.sleep(_PAUSE_AFTER_A_DEATH_S * self._runtime.random())

    def _sees_free(self, at: int, until_s: float) -> bool:
        """True once the byte at `at` is free; False at `until_s`. The kernel has no such wait with an end."""
        began_s = self._runtime.monotonic()
        while self._lock_file.is_locked(at):
            now_s = self._runtime.monotonic()
            if now_s >= until_s:
                return False
            pause_s = min(_LOOK_MAX_S, max(_LOOK_MIN_S, (now_s - began_s) / _LOOKS))
            self._runtime.sleep(min(pause_s, until_s - now_s))
        return True

    def standing_leader(self, for_s: float) -> LockHolder | None:
        """Return the other process that leads for `for_s` without an end, if any. Any thread may call it."""
        at = EPOCH_LOCKS + self._marks[0] + 1
        if self._sees_free(at, self._runtime.monotonic() + for_s):
            return None
        return self._system.holder_of(self._lock_file.fd, at)

    def resign(self) -> None:
        self._marks[0] = self._next
        self._unlock()

    def _unlock(self) -> None:
        self._lock_file.unlock(EPOCH_LOCKS + self._next)

    @property
    def unanswered_version(self) -> int:
        """Return the version that the last leader was committing when it died; 0 if it resigned."""
        return self._marks[1]

    def note_committing(self, version: int) -> None:
        """Name the version that a successor must look up in the commit log if this process dies."""
        self._marks[1] = version

    @property
    def is_owed(self) -> bool:
        """True if other processes wait for answers of this leader, or of a dead one."""
        return self._marks[1] != 0 or self._map[_ASKED:_ANSWERED] != self._map[_ANSWERED:_LENGTHS]

    def pending(self, *, own_only: bool = False) -> Iterator[SlotRequests]:
        """Yield the requests of live processes; with each epoch another slot comes first."""
        slots = [slot for slot in range(_SLOTS) if self._asked[slot] != self._answered[slot]]
        _fence()
        first = self._next % max(1, len(slots))
        if self.is_asking and self._slot in slots:
            first = slots.index(self._slot)  # its own requests fit into its own batch for certain
        for slot in slots[first:] + slots[:first]:
            is_own = slot == self._slot
            if own_only and not is_own:
                continue
            number = self._asked[slot]
            if self.is_asking if is_own else self._lock_file.is_locked(_SLOT_LOCKS + slot):
                body = self._system.pread(
                    self._lock_file.fd, self._lengths[slot], _BODIES + slot * BODY_BYTES_MAX
                )
                yield SlotRequests(slot, number, body)
            else:
                self._answered[slot] = number  # otherwise each leader would test this slot again

    def answer(self, version: int, answers: Sequence[Answer]) -> None:
        """Write the outcome of each request to its slot; a second call has no effect."""
        due = [answer for answer in answers if self._asked[answer.slot] == answer.number]
        for answer in due:
            self._versions[answer.slot] = version
            at = answer.slot * REQUESTS_MAX
            for result in answer.results:
                self._results[at] = result
                at += 1
        _fence()
        for answer in due:
            self._answered[answer.slot] = answer.number
        self._marks[1] = 0

    def give_up(self, code: int) -> None:
        results = [-code] * REQUESTS_MAX
        self.answer(0, [Answer(asked.slot, asked.number, results) for asked in self.pending()])

    @property
    def is_short(self) -> bool:
        return self._marks[3] != 0

    def note_short(self, is_short: bool) -> None:
        """Make each leader look for room before it commits, or stop that."""
        self._marks[3] = is_short

    # -- asking -----------------------------------------------------------------------------------------

    def take_slot(self) -> None:
        """Take a slot, without a request there. Only the leader may call it."""
        if not self._looked_for_slot:
            self._looked_for_slot = True  # once only: if all slots are taken, they most likely stay so
            slots = range(_SLOTS)
            self._slot = next((s for s in slots if self._lock_file.try_lock(_SLOT_LOCKS + s)), None)
        self.drop()

    @property
    def may_ask(self) -> bool:
        slot = self._slot
        return slot is not None and self._asked[slot] == self._answered[slot]

    def ask(self, body: bytes) -> bool:
        """Ask the next leader to commit `body`; False if this process has to lead itself."""
        slot = self._slot
        if slot is None or len(body) > BODY_BYTES_MAX:
            return False
        try:
            written = self._system.pwrite(self._lock_file.fd, body, _BODIES + slot * BODY_BYTES_MAX)
        except OSError:
            return False
        if written < len(body):
            return False
        self._lengths[slot] = len(body)
        self.is_asking = True
        _fence()
        self._asked[slot] += 1
        return True

    def answered(self, count: int) -> tuple[int, list[int]] | None:
        """Return the version and the results of the `count` requests; None while they are pending. Raises:
        DatabaseClosed, since slot and answer may belong to another process after the closing.
        """
        slot = self._slot
        if slot is None or self._asked[slot] != self._answered[slot]:
            return None
        _fence()
        at = slot * REQUESTS_MAX
        version, results = self._versions[slot], self._results[at : at + count].tolist()
        if self._closed:
            raise DatabaseClosed
        self.is_asking = False
        return version, results

    def withdraw(self, until_s: float = inf) -> None:
        """Return once no leader will commit the unanswered requests of this process, or at `until_s`."""
        slot = self._slot
        with suppress(LeaderStands):
            while slot is not None and not self._closed and self._asked[slot] != self._answered[slot]:
                if self.try_lead():
                    self.drop()
                    self.resign()
                else:
                    self.wait(until_s)
        self.is_asking = False

    def drop(self) -> None:
        """Only the leader may call it."""
        if self._slot is not None:
            self._answered[self._slot] = self._asked[self._slot]
        self.is_asking = False

    def abandon(self, until_s: float = inf) -> None:
        """Stop leading and asking, after an interrupt between any two steps; this waits until `until_s`.
        After that, a leader may still commit the requests: their results are unknown.
        """
        self._unlock()
        self.withdraw(until_s)

    # -- ending -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the slot. The file stays open, since a thread may still use it."""
        self._closed = True
        if self._slot is not None:
            self._lock_file.unlock(_SLOT_LOCKS + self._slot)


def open_pool(directory: Directory, runtime: Runtime, system: System) -> Pool:
    """Open the pool of a directory; a damaged file is replaced. Raises: UnsafePath, OSError."""
    try:
        return Pool(directory, runtime, system)
    except PoolDamaged:
        with suppress(FileNotFoundError):  # another process was first
            directory.unlink(COMMITS_FILE)
        return Pool(directory, runtime, system)


def _fence() -> None:
    """Keep memory accesses before this call ahead of those after it, as other processes see them. A processor
    that reorders (ARM) does not reorder across the release and the acquisition of a lock.
    """
    lock = RealRuntime.lock()
    lock.acquire()
    lock.release()
    lock.acquire()
