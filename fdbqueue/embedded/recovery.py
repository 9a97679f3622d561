"""Makes a directory ready for its first user: new, of an earlier release, or after a power cut.

The caller is the only user of the directory. Each step can be repeated: a process that is killed here leaves
a directory that is not believed yet, and the next process begins again.
"""

import errno
import os
import struct
from contextlib import closing, suppress
from typing import Any

from fdbqueue.core.errors import StorageFormat, StorageInUse
from fdbqueue.core.runtime import Runtime
from fdbqueue.embedded import base as bases
from fdbqueue.embedded import commitlog, layout
from fdbqueue.embedded.base import Base, BrokenChain, Held
from fdbqueue.embedded.causes import FULL
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.journal import FILES, Journal, Place
from fdbqueue.embedded.system import DATA_FILE, LOCK_FILE, LockFile, System
from fdbqueue.embedded.users import Users

_NEW_FILE = "data.new"
# A process of an earlier boot may have handed out versions of commits that are lost: these are passed over.
_VERSIONS_PASSED = 1 << 32
_COPIED_BYTES = 1 << 24
# The kernel ends the locks of a killed process one after the other.
_LOOKS, _PAUSE_S = 50, 0.01

# LMDB's file has two meta pages. The larger transaction id counts, and id N is in page N modulo 2.
_META = struct.Struct("<16xII")  # behind the header of the page: magic, version
_MAGIC, _DATA_VERSION = 0xBEEFC0DE, 1
_PAGE_BYTES_AT, _TRANSACTION_AT = 40, 144


def is_database(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in (DATA_FILE, bases.FILE))


def prepare(directory: Directory, users: Users, journal: Journal, runtime: Runtime, system: System) -> bool:
    """Make `data.mdb` ready for the only user; True if `settle` has to follow."""
    names = set(os.listdir(directory.fd))
    if DATA_FILE in names and _is_believed(directory, users):
        return bases.FILE not in names
    if LOCK_FILE in names:
        _require_no_other_user(directory, runtime)
    users.doubt()
    for name in names & {_NEW_FILE, bases.NEW_FILE}:
        directory.unlink(name)  # of a process that was killed
    if bases.FILE in names:
        recover(directory, journal, system)
    elif journal.generations():
        raise StorageInUse(path=directory.path, reason=f"its file {bases.FILE} is missing: restore all files")
    elif DATA_FILE in names and directory.size_bytes(DATA_FILE):
        # It is durable: LMDB has flushed it, and does so here. From the first step on, an earlier release
        # refuses the directory: its later commits would be lost.
        with bases.opened(directory, system, DATA_FILE) as data:
            require_format(data.env, directory.path)
            with data.env.begin(write=True) as txn:
                commitlog.clear(txn)  # a copy may have records of later versions than its own
                txn.put(layout.FORMAT_KEY, layout.FORMAT)
            bases.make(directory, system, Held(data.env.info()["last_txnid"], 1), data.env)
    else:
        bases.make(directory, system, Held(0, 1))
        directory.sync_entries()  # a power cut must not leave `data.mdb` alone, as that of an earlier release
    return True


def settle(directory: Directory, env: Any, journal: Journal, system: System, now_us: int) -> None:
    """Make the open LMDB environment the one to which the journal belongs. Raises: OSError, lmdb.Error."""
    if not bases.exists(directory):  # it was removed, and `data.mdb` is believed
        generation = max([0, *journal.generations()]) + 1
        bases.make(directory, system, Held(env.info()["last_txnid"], generation), env)
    with bases.opened(directory, system) as base:
        version, generation = base.held()
        bases.allocate(directory, base, journal.generation_bytes)
        journal.allocate()
        directory.sync_entries()  # before the first commit, which only a durable name makes durable
        base.rely_on_files()
    with env.begin(write=True) as txn:
        txn.put(layout.FORMAT_KEY, layout.FORMAT)
        commitlog.note_place(txn, Place(generation, 0, version), now_us)


def require_format(env: Any, path: str) -> None:
    with env.begin() as txn:
        found = txn.get(layout.FORMAT_KEY)
    if found is None and env.stat()["entries"]:  # every database of this engine has its format stored
        raise StorageInUse(path=path, reason="it is the LMDB database of another program")
    if found is not None and not layout.knows(found):
        raise StorageFormat(path=path, found=found.decode(), known=layout.FORMAT_MAJOR)


def _is_believed(directory: Directory, users: Users) -> bool:
    fd = directory.open_file(DATA_FILE)
    try:
        return users.believes(fd)
    finally:
        os.close(fd)


def _require_no_other_user(directory: Directory, runtime: Runtime) -> None:
    """Look for a process that uses LMDB, but does not share the lock of all users."""
    with closing(LockFile(directory, LOCK_FILE)) as locks:
        for _ in range(_LOOKS):
            if not locks.is_locked(0):
                return
            runtime.sleep(_PAUSE_S)
    reason = "a process of an earlier release has it open: stop it, and open the directory again"
    raise StorageInUse(path=directory.path, reason=reason)


def recover(directory: Directory, journal: Journal, system: System) -> None:
    """Add the journal's rest to the base; copy it to `data.mdb`. Raises: StorageInUse for missing commits."""
    with bases.opened(directory, system) as base:
        require_format(base.env, directory.path)
        if base.relies_on_files:
            for name in sorted({*FILES} - {*os.listdir(directory.fd)}):
                raise _missing(directory, f"its file {name} is")
        try:
            _add_all(base, journal)
        except BrokenChain:
            raise _missing(directory, "commits between base.mdb and the journal are") from None
        held = base.held()
        size_bytes = base.size_bytes
    try:
        _make_data(directory, held, size_bytes)
    except OSError as error:
        if error.errno not in FULL:
            raise
        with suppress(FileNotFoundError):
            directory.unlink(DATA_FILE)  # it is not right, and takes up the room
        _make_data(directory, held, size_bytes)
    with suppress(FileNotFoundError):
        directory.unlink(LOCK_FILE)  # a process that still has it open must not meet the new users
    directory.rename(_NEW_FILE, DATA_FILE)


def _make_data(directory: Directory, held: Held, size_bytes: int) -> None:
    fd = directory.open_file(_NEW_FILE)
    try:
        _copy(directory, fd, size_bytes)
        _raise_version(fd, held.version + _VERSIONS_PASSED)
    except BaseException:
        directory.unlink(_NEW_FILE)  # it may be all that fills the disk
        raise
    finally:
        os.close(fd)


def _missing(directory: Directory, what: str) -> StorageInUse:
    cure = f"or go on without the last commits, with empty files {' and '.join(FILES)}"
    return StorageInUse(
        path=directory.path, reason=f"{what} missing: restore all files of one moment, {cure}"
    )


def _add_all(base: Base, journal: Journal) -> None:
    held = base.held()
    generations = [number for number in journal.generations() if number >= held.generation]
    for generation in generations:
        base.add(journal, generation)
    base.begin_with(Held(base.held().version, max([held.generation, *generations]) + 1))
    for generation in journal.generations():
        journal.free(generation)


def _copy(directory: Directory, to_fd: int, size_bytes: int) -> None:
    from_fd = directory.open_file(bases.FILE)
    try:
        # LMDB writes no page that is free again at the end of the commit that took it, not even the last one.
        left_bytes = min(size_bytes, os.fstat(from_fd).st_size)
        while left_bytes > 0:
            left_bytes -= _copy_some(from_fd, to_fd, left_bytes)
        os.ftruncate(to_fd, size_bytes)
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
