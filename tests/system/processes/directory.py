"""Simulated processes over one directory: each with a store of its own, and so a pool, a log and a doorbell.

Files, byte locks and sockets are those of the operating system, below a temporary directory. A lock belongs
to the open file, so two simulated processes exclude each other as two real ones do. Only three things are
simulated:

- Each call of a process is a scheduling point, at which it may be stopped, killed or interrupted.
- A call that would block parks its task, until a call of any process has changed something.
- LMDB cannot be opened twice in one process. So all simulated processes share one environment, and a robust
  lock orders those that write. When a process dies, its transaction is aborted, and its files are closed.

The mapped part of a file is shared memory: a write to it is a point, too, and so is a read of a part that was
written. A power cut leaves what the disk holds (power.py).
"""

import errno
import fcntl
import mmap
import os
import select
import shutil
import socket
import struct
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from fdbqueue.core.runtime import Runtime
from fdbqueue.embedded import directory, journal, processes
from fdbqueue.embedded.directory import UNKNOWN, Directory, LockFile, System
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.transaction import Database
from fdbqueue.testing.engine import Machine
from fdbqueue.testing.scheduler import Host, Scheduler
from tests.system.processes.power import BaseEnvironment, Cells, Disk, Pages

_FLOCK = struct.Struct("@hhqqi")  # type, whence, start, length, 0


@dataclass(frozen=True)
class PowerCut:
    """The files after a power cut; the events of the trace and the newest version until then."""

    files: Mapping[str, bytes]
    events: int
    version: int
    deceives: bool = False
    """As Disk.deceives at that moment."""


class SharedDirectory:
    """The directory of all processes of one run, and their LMDB environment."""

    def __init__(self, scheduler: Scheduler, environment: Any, parent: str | None) -> None:
        self.scheduler = scheduler
        self.environment = environment
        self.writer: Process | None = None
        """The process that holds LMDB's lock of writers."""
        self.strikes: list[tuple[float, Callable[[Host], None]]] = []
        """Times from which on the next process that writes is struck, and the strikes."""
        self.kills: list[float] = []
        """Times from which on the next process that has committed while others wait is killed at once."""
        self.failures: list[tuple[float, Random]] = []
        """Times from which on the next flush fails."""
        self._path = tempfile.mkdtemp(prefix="fdbqueue-simulated-", dir=parent)
        self.disk = Disk(self._path)
        self._processes: list[Process] = []
        self._pages: dict[int, bytearray] = {}
        self._sleeping: list[Any] = []

    def open(self, machine: Machine) -> Database:
        """Open the directory in a process that runs on `machine`."""
        process = Process(self, machine)
        self._processes.append(process)
        machine.host.at_death.append(process.end)
        directory = cast("ProcessDirectory", ProcessDirectory.open(self._path))
        directory.process = process
        store = Store(directory, machine.thread, private=False, system=process.system)
        return ProcessDatabase(store, machine.thread)

    def begun(self, process: "Process") -> None:
        """Note that a process begins to write."""
        self.writer = process
        for struck in [struck for struck in self.strikes if struck[0] <= self.scheduler.now]:
            self.strikes.remove(struck)
            struck[1](process.host)

    def is_awaited(self, process: "Process") -> bool:
        """True if a task of another process waits, perhaps for this one to commit."""
        return any(task.host is not process.host for task in self._sleeping)

    def committed(self, process: "Process") -> None:
        """Note that a commit for which others may wait has happened, and is not answered yet."""
        for due in [due for due in self.kills if due <= self.scheduler.now][:1]:
            self.kills.remove(due)
            self.scheduler.die(process.host)

    def fails(self) -> Random | None:
        """Return the chances of a flush that fails; None for one that does not."""
        due = next((failure for failure in self.failures if failure[0] <= self.scheduler.now), None)
        if due is None:
            return None
        self.failures.remove(due)
        return due[1]

    def pages(self, fd: int, size_bytes: int) -> bytearray:
        """Return the shared memory of a file, whichever process maps it."""
        file = os.fstat(fd).st_ino
        if file not in self._pages:
            self._pages[file] = bytearray(size_bytes)
        return self._pages[file]

    def sleep(self, until: float | None = None) -> None:
        """Park the running task until something has changed, or until the time `until`."""
        self._sleeping.append(self.scheduler.current)
        self.scheduler.park(until)

    def changed(self) -> None:
        """Wake each task that waits for a lock or a datagram; it looks again."""
        sleeping, self._sleeping = self._sleeping, []
        for task in sleeping:
            self.scheduler.wake(task)

    def close(self) -> None:
        """End all processes, and remove the directory."""
        for process in self._processes:
            process.end()
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):  # the listing's own descriptor
                path = os.readlink(f"/proc/self/fd/{name}").removesuffix(" (deleted)")
                # A file of the journal is closed with its last user.
                if path.startswith(self._path) and os.path.basename(path) not in journal.FILES:
                    os.close(int(name))
        shutil.rmtree(self._path)


class ProcessDirectory(Directory):
    """The directory, as one process has opened it: each change of a name is a point."""

    process: "Process"

    def unlink(self, name: str) -> None:
        self.process.point()
        super().unlink(name)

    def rename(self, name: str, to: str) -> None:
        self.process.point()
        super().rename(name, to)

    def sync_entries(self) -> None:
        self.process.point()
        self.process.directory.disk.sync_entries()
        self.process.point()


class ProcessDatabase(Database):
    """The database of one process; its store is in no registry of this one."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        super().__init__(store, runtime)
        self.store = store

    def close(self) -> None:
        self.store.close()


class Process:
    """The system calls of one simulated process."""

    def __init__(self, directory: SharedDirectory, machine: Machine) -> None:
        self.directory = directory
        self.host = machine.host
        self.point: Callable[[], None] = machine.point
        self.transaction: Transaction | None = None
        """Its open LMDB transaction that writes."""
        self._machine = machine
        self._open: list[ProcessLockFile | ProcessSocket | BaseEnvironment] = []
        runtime = machine.thread
        self.system = System(
            lock=runtime.lock,
            event=runtime.event,
            open_environment=lambda *_, **__: Environment(self),
            open_base=self._open_base,
            lock_file=self._lock_file,
            holder_of=lambda *_: UNKNOWN,  # the locks of all simulated processes are those of this one
            numbers=self._numbers,
            pread=self._pread,
            pwrite=self._pwrite,
            flush=self._flush,
            stat=self._stat,
            open_socket=self._open_socket,
            poll=lambda: cast("select.poll", Poll(self)),
        )

    def note_commit(self) -> None:
        """Note in the trace if this process commits without the lead. The first user needs none to open."""
        files = [
            one
            for one in self._open
            if isinstance(one, ProcessLockFile) and one.name == processes.COMMITS_FILE
        ]
        if files and not any(file.leads for file in files):
            self._machine.trace.note(self.now(), self.host.name, "commits without the lead")

    def end(self) -> None:
        """Do as the kernel does when a process has died: its locks end, its files are closed."""
        for one in self._open:
            one.close()
        if self.transaction is not None:
            self.transaction.abort()

    def now(self) -> float:
        return self._machine.scheduler.now

    def _lock_file(self, directory: Directory, name: str) -> LockFile:
        made = ProcessLockFile(self, directory, name)
        self._open.append(made)
        return made

    def _open_base(self, path: str, mode: int) -> Any:
        disk = self.directory.disk
        real = directory.open_base(path, mode)
        made = BaseEnvironment(real, self.point, lambda: disk.note(os.path.basename(path)))
        self._open.append(made)
        return made

    def _open_socket(self) -> socket.socket:
        made = ProcessSocket(self)
        self._open.append(made)
        return cast("socket.socket", made)

    def _numbers(self, mapped: Any, begin: int, end: int, kind: str) -> "memoryview[int]":
        return cast("memoryview[int]", Cells(self.point, mapped.view(begin, end, kind)))

    def _pread(self, fd: int, size_bytes: int, at: int) -> bytes:
        self.point()
        return os.pread(fd, size_bytes, at)

    def _pwrite(self, fd: int, body: bytes, at: int) -> int:
        self.point()
        written = os.pwrite(fd, body, at)
        self.directory.disk.write(fd, body[:written], at)
        return written

    def _flush(self, fd: int) -> None:
        self.point()
        failure = self.directory.fails()
        if failure is not None:
            self.directory.disk.fail(fd, failure)
        if failure is not None or self.directory.disk.tells(fd):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.directory.disk.flush(fd)
        self.point()  # as long as it takes, others go on

    def _stat(self, path: str) -> os.stat_result:
        self.point()
        return os.stat(path)


class ProcessLockFile(LockFile):
    """A file of byte locks. They end with the simulated process that opened it."""

    def __init__(self, process: Process, directory: Directory, name: str) -> None:
        self.name = name
        self._process = process
        self._memory = bytearray()
        self._held: set[int] = set()
        super().__init__(directory, name)

    def map(self, size_bytes: int) -> mmap.mmap:
        self._memory = self._process.directory.pages(self.fd, size_bytes)
        return cast("mmap.mmap", Pages(self._process.point, self._memory))

    @property
    def leads(self) -> bool:
        """True for the file of commits, if its process holds the lock of the epoch that comes next."""
        return processes.EPOCH_LOCKS + int.from_bytes(self._memory[:8], "little") + 1 in self._held

    def try_lock(self, at: int) -> bool:
        self._process.point()
        locked = super().try_lock(at)
        if locked:
            self._held.add(at)
        return locked

    def wait_until_free(self, at: int) -> None:
        self.share(at)
        self.unlock(at)

    def _shares(self, at: int) -> bool:
        try:
            fcntl.fcntl(self.fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_RDLCK, 0, at, 1, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def share(self, at: int) -> None:
        self._process.point()
        while not self._shares(at):
            self._process.directory.sleep()

    def lock(self, at: int) -> None:
        while not self.try_lock(at):
            self._process.directory.sleep()

    def unlock(self, at: int) -> None:
        self._process.point()
        super().unlock(at)
        self._held.discard(at)
        self._process.directory.changed()

    def is_locked(self, at: int, count: int = 1) -> bool:
        self._process.point()
        return super().is_locked(at, count)

    def close(self) -> None:
        super().close()
        self._process.directory.changed()


class Environment:
    """The LMDB environment, as one process has opened it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._real = real = process.directory.environment
        self.info, self.stat, self.readers, self.copyfd = real.info, real.stat, real.readers, real.copyfd
        self.reader_check, self.set_mapsize = real.reader_check, real.set_mapsize

    def begin(self, write: bool = False) -> Any:
        self._process.point()
        return Transaction(self._process) if write else self._real.begin()

    def close(self) -> None:
        """The real environment stays open for the other processes."""


class Transaction:
    """An LMDB transaction that writes: its process holds the lock of writers until it ends or dies."""

    def __init__(self, process: Process) -> None:
        directory = process.directory
        while directory.writer is not None:
            directory.sleep()
        directory.begun(process)
        process.transaction = self
        self._process = process
        self._real = real = directory.environment.begin(write=True)
        self.id, self.get, self.put, self.delete, self.cursor = (
            real.id,
            real.get,
            real.put,
            real.delete,
            real.cursor,
        )

    def commit(self) -> None:
        self._process.point()
        self._process.note_commit()
        self._real.commit()
        is_awaited = self._process.directory.is_awaited(self._process)
        self._ended()
        if is_awaited:
            self._process.directory.committed(self._process)
        self._process.point()

    def abort(self) -> None:
        """End without effect; after a commit, do nothing."""
        if self._process.transaction is self:
            self._real.abort()
            self._ended()

    def _ended(self) -> None:
        self._process.transaction = self._process.directory.writer = None
        self._process.directory.changed()

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            if kind is None:
                self.commit()
        finally:  # as LMDB does, whatever interrupts the commit
            self.abort()


class ProcessSocket:
    """A datagram socket that closes with its simulated process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._real = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._real.setblocking(False)
        self.fileno, self.close = self._real.fileno, self._real.close

    def bind(self, path: str) -> None:
        self._process.point()
        self._real.bind(path)

    def sendto(self, body: bytes, path: str) -> None:
        self._process.point()
        self._real.sendto(body, path)
        self._process.directory.changed()

    def recv(self, size_bytes: int) -> bytes:
        self._process.point()
        return self._real.recv(size_bytes)


class Poll:
    """A poll that parks its task."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._real = select.poll()
        self.register = self._real.register

    def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
        self._process.point()
        until = self._process.now() + timeout_ms / 1000
        while not (found := self._real.poll(0)) and self._process.now() < until:
            self._process.directory.sleep(until)
        return found
