"""Makes a directory ready for its first user: new, of an earlier release, or after a power cut.

The caller is the only user of the directory. Each step can be repeated: a process that is killed here leaves
a directory that is not believed yet, and the next process begins again.
"""

import errno
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fdbqueue.embedded import base as bases
from fdbqueue.embedded import commitlog, layout
from fdbqueue.embedded.base import Base, BrokenChain, Held
from fdbqueue.embedded.bytelocks import LockFile
from fdbqueue.embedded.commitlog import Written
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.journal import Journal, Place
from fdbqueue.embedded.system import System
from fdbqueue.embedded.users import Users
from fdbqueue.errors import StorageFormat, StorageInUse

DATA_FILE, LOCK_FILE = "data.mdb", "lock.mdb"  # LMDB's names for them
_NEW_FILE = "data.new"
# A process of an earlier boot may have handed out versions of commits that are lost: these are passed over.
_VERSIONS_PASSED = 1 << 32
_COPIED_BYTES = 1 << 24

# LMDB's file has two meta pages. The larger transaction id counts, and id N is in page N modulo 2.
_META = struct.Struct("<16xII")  # behind the header of the page: magic, version
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_PAGE_BYTES_AT, _TRANSACTION_AT = 40, 144


def prepare(directory: Directory, users: Users, journal: Journal, system: System) -> bool:
    """Make `data.mdb` ready to be opened by the only user; True if `settle` has to follow.

    Raises: StorageInUse, StorageFormat, OSError, lmdb.Error.
    """
    names = set(os.listdir(directory.fd))
    if DATA_FILE in names and with_data(directory, users.believes):
        return bases.FILE not in names
    users.doubt()
    if bases.FILE in names:
        recover(directory, journal, system)
    elif journal.generations():
        raise StorageInUse(path=directory.path, reason=f"its file {bases.FILE} is missing: restore all files")
    elif DATA_FILE in names and _size_bytes(directory):
        _upgrade(directory, system, has_locks=LOCK_FILE in names)
    else:
        bases.make(directory, system, Held(0, 1))
    return True


def settle(directory: Directory, env: Any, journal: Journal, system: System, now_us: int) -> None:
    """Make the open LMDB environment the one to which the journal belongs.

    Raises: OSError, lmdb.Error.
    """
    if not bases.exists(directory):  # it was removed, and `data.mdb` is believed
        generation = max([0, *journal.generations()]) + 1
        bases.make(directory, system, Held(env.info()["last_txnid"], generation), env)
    with bases.opened(directory, system) as base:
        version, generation = base.held()
        bases.allocate(directory, base, journal.generation_bytes)
    journal.allocate()
    directory.sync_entries()  # before the first commit, which only a durable name makes durable
    with env.begin(write=True) as txn:
        txn.put(layout.FORMAT_KEY, layout.FORMAT)
        nothing = Written(txn.id(), KeySet(), KeySet())
        commitlog.append(txn, nothing, now_us, place=Place(generation, 0, version))


def _upgrade(directory: Directory, system: System, has_locks: bool) -> None:
    """Make the base of a directory of an earlier release. Its `data.mdb` is durable: LMDB has flushed it.

    From the first step on, an earlier release refuses it: its later commits would be lost.
    """
    if has_locks:
        _require_no_earlier_release(directory)
    with bases.opened(directory, system, DATA_FILE) as data:
        require_format(data.env, directory.path)
        with data.env.begin(write=True) as txn:
            txn.put(layout.FORMAT_KEY, layout.FORMAT)
        bases.make(directory, system, Held(data.env.info()["last_txnid"], 1), data.env)


def require_format(env: Any, path: str) -> None:
    """Raises: StorageInUse for a database of another program, StorageFormat for one of a newer release."""
    with env.begin() as txn:
        found = txn.get(layout.FORMAT_KEY)
    if found is None and env.stat()["entries"]:  # every database of this engine has its format stored
        raise StorageInUse(path=path, reason="it is the LMDB database of another program")
    if found is not None and int(found.split(b".")[0]) > layout.FORMAT_MAJOR:
        raise StorageFormat(path=path, found=found.decode(), known=layout.FORMAT_MAJOR)


def with_data(directory: Directory, function: Callable[[int], bool]) -> bool:
    """Call a function with the open file `data.mdb`, which this makes if it is missing."""
    fd = directory.open_file(DATA_FILE)
    try:
        return function(fd)
    finally:
        os.close(fd)


def _size_bytes(directory: Directory) -> int:
    return os.stat(DATA_FILE, dir_fd=directory.fd, follow_symlinks=False).st_size


def _require_no_earlier_release(directory: Directory) -> None:
    locks = LockFile(directory, LOCK_FILE)
    try:
        if locks.is_locked(0):
            reason = "a process of an earlier release has it open: stop it, and open the directory again"
            raise StorageInUse(path=directory.path, reason=reason)
    finally:
        locks.close()


def recover(directory: Directory, journal: Journal, system: System) -> None:
    """Add the rest of the journal to the base, and make `data.mdb` anew as a copy of it."""
    with bases.opened(directory, system) as base:
        _add_all(base, journal)
        held = base.held()
        size_bytes = base.size_bytes
    for name in (DATA_FILE, _NEW_FILE):  # not believed, and their room may be needed
        with suppress(FileNotFoundError):
            directory.unlink(name)
    fd = directory.open_file(_NEW_FILE)
    try:
        _copy(directory, fd, size_bytes)
        _raise_version(fd, held.version + _VERSIONS_PASSED)
    finally:
        os.close(fd)
    with suppress(FileNotFoundError):
        directory.unlink(LOCK_FILE)  # a process that still has it open must not meet the new users
    directory.rename(_NEW_FILE, DATA_FILE)


def _add_all(base: Base, journal: Journal) -> None:
    held = base.held()
    generations = [number for number in journal.generations() if number >= held.generation]
    with suppress(BrokenChain):  # behind a record that is lost, nothing counts
        for generation in generations:
            base.add(journal, generation)
    base.begin_with(Held(base.held().version, max([held.generation, *generations]) + 1))
    for generation in journal.generations():
        journal.free(generation)


def _copy(directory: Directory, to_fd: int, size_bytes: int) -> None:
    from_fd = directory.open_file(bases.FILE)
    try:
        while size_bytes > 0:
            size_bytes -= _copy_some(from_fd, to_fd, size_bytes)
    finally:
        os.close(from_fd)


def _copy_some(from_fd: int, to_fd: int, size_bytes: int) -> int:
    try:
        copied = os.copy_file_range(from_fd, to_fd, min(size_bytes, _COPIED_BYTES))
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV):
            raise
        copied = os.write(to_fd, os.read(from_fd, min(size_bytes, _COPIED_BYTES)))
    if not copied:
        raise OSError(errno.EIO, "the base has become shorter")
    return copied


def _raise_version(fd: int, version: int) -> None:
    """Give the newest state in an LMDB file a transaction id of at least `version`."""
    page_bytes = int.from_bytes(os.pread(fd, 4, _PAGE_BYTES_AT), "little")
    ids = [_transaction_id(fd, page * page_bytes) for page in (0, 1)]
    newest = ids.index(max(ids))
    raised = version + (version + newest) % 2
    os.pwrite(fd, raised.to_bytes(8, "little"), newest * page_bytes + _TRANSACTION_AT)


def _transaction_id(fd: int, at: int) -> int:
    magic, version = _META.unpack(os.pread(fd, _META.size, at))
    if (magic, version & 0xFFFF) != (_MAGIC, _DATA_VERSION):
        raise OSError(errno.EIO, "the base is no LMDB file of a known version")
    return int.from_bytes(os.pread(fd, 8, at + _TRANSACTION_AT), "little")
