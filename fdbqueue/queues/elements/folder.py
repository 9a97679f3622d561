"""Directory queues on disk, in dirq's layouts, for a mover that may be killed at any moment (moving.py).

    PATH/DDDDDDDD/EEEEEEEEEEEEEE   an element: a directory with a file for each piece, or one file
    PATH/fdbqueue/id               identity of this directory; locked (flock) during a move
    PATH/fdbqueue/in-MARK-D-E      an element on its way into the database
    PATH/fdbqueue/out-MARK-D-E     an element on its way out of the database, not yet visible

MARK identifies the queue in the database. dirq ignores PATH/fdbqueue. An element changes its place by a
rename, which is atomic. A rename into dirq's part replaces no file. A method that moves an element returns
after the rename is on the disk.

Another user may write to PATH, and change anything there at any moment. So every name is looked up in the
descriptor of an open directory, no link below PATH is followed (no name can lead through one to another
place), and only regular files are read. PATH/fdbqueue is private. There an element is checked again, and
put back if it is not one.
"""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdbqueue.core import limits
from fdbqueue.core.errors import DirectoryQueueInUse, NotADirectoryQueue, UnsafePath
from fdbqueue.embedded.directory import walked
from fdbqueue.queues.elements.store import (
    FOLDER_BYTES,
    LOCKED,
    NAMELESS,
    PIECE_NAME_BYTES_MAX,
    Pieces,
    following,
    is_name,
)

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Of <linux/fs.h>, the same on every architecture.
_RENAME_NOREPLACE = 1
# The C library, the kernel, or the file system (NFS) has no such rename.
_UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})

# Python's os has no rename that fails if the target exists. A link and an unlink instead are two steps:
# after a kill in between the file has both names. If the new one is gone later, either the link was never
# made, or a consumer has taken the file.
_renameat2: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


@contextmanager
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def directory(name: str, at: int) -> Iterator[int]:
    """A descriptor of the directory `name`. Raises NotADirectoryError for anything else, also for a link."""
    with closing(os.open(name, DIRECTORY_FLAGS, dir_fd=at)) as fd:
        yield fd


def listed(name: str, at: int) -> list[str]:
    """Names in the directory `name`; none if there is no such directory."""
    try:
        with directory(name, at) as fd:
            return os.listdir(fd)
    except (FileNotFoundError, NotADirectoryError):
        return []


def write_new(name: str, at: int, data: bytes, owner: tuple[int, int] | None) -> None:
    with open(os.open(name, _NEW_FILE_FLAGS, 0o666, dir_fd=at), "wb") as file:
        file.write(data)
        file.flush()
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        os.fsync(file.fileno())


def sync(*directories: int) -> None:
    for each in directories:
        os.fsync(each)


def rename_new(source: str, target: str, *, source_fd: int, target_fd: int) -> None:
    """Rename between two open directories, in one step, unless there is a `target`.

    A system without such a rename gets a look and a rename. A file made in between is then replaced.
    """
    number = _rename(source, target, source_fd, target_fd)
    if number in _UNSUPPORTED:
        number = _look_and_rename(source, target, source_fd, target_fd)
    if number:
        raise OSError(number, os.strerror(number), source, None, target)


def _rename(source: str, target: str, source_fd: int, target_fd: int) -> int:
    if _renameat2 is None:
        return errno.ENOSYS
    names = os.fsencode(source), os.fsencode(target)
    failed = _renameat2(source_fd, names[0], target_fd, names[1], _RENAME_NOREPLACE)
    return ctypes.get_errno() if failed else 0


def _look_and_rename(source: str, target: str, source_fd: int, target_fd: int) -> int:
    if exists(target, target_fd):
        return errno.EEXIST
    try:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
    except OSError as error:
        # A directory that is not empty was made in between.
        return errno.EEXIST if error.errno == errno.ENOTEMPTY else error.errno or errno.EIO
    return 0


def exists(name: str, at: int) -> bool:
    """True if the open directory `at` has an entry `name`; a broken link counts."""
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


_AREA, _ID = "fdbqueue", "id"
_TEMPORARY, _OBSOLETE, _LOCK_SUFFIX = "temporary", "obsolete", ".lck"
_DIRECTORY, _PIECE = re.compile("[0-9a-f]{8}"), re.compile("[0-9a-zA-Z]+")
# Bytes that the name and length of a piece add to the payload, at most.
_OVERHEAD_BYTES = 300
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ID_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_ELEMENT = "its contents are not those of an element"
_TOO_LARGE = "it is too large"


class CannotMove(Exception):
    """The reason why an element stays in its place."""


class Folder(ABC):
    """The common part of both layouts. All methods but the constructors are for use within `exclusively`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.id = self._mark = b""
        self._fd = self._area = -1
        self._owner: tuple[int, int] | None = None  # of the files that root writes

    @contextmanager
    def exclusively(self, new_id: bytes, mark: bytes) -> Iterator[None]:
        """Keep other movers out. The folder gets the identity `new_id` unless it has one.

        `taken` and `prepared` list the elements of the queue with this `mark` only.
        """
        self._mark = mark
        with closing(walked(str(self.path))) as self._fd, closing(self._opened_area()) as self._area:
            status = os.fstat(self._fd)
            self._owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid else None
            with open(self._opened_id(), "r+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise DirectoryQueueInUse(path=str(self.path)) from None
                self.id = file.read()
                if len(self.id) != FOLDER_BYTES:  # new, or its maker was killed
                    file.seek(0)
                    file.truncate()
                    file.write(new_id)
                    file.flush()
                    self.id = new_id
                os.fsync(file.fileno())
                sync(self._area, self._fd)
                yield

    def _opened_area(self) -> int:
        with suppress(FileExistsError):
            os.mkdir(_AREA, 0o700, dir_fd=self._fd)
        place = str(self.path / _AREA)
        try:
            area = os.open(_AREA, DIRECTORY_FLAGS, dir_fd=self._fd)
        except NotADirectoryError:
            raise UnsafePath(path=place, reason="it is no directory") from None
        user = os.fstat(area).st_uid
        if user != os.geteuid():
            os.close(area)
            raise UnsafePath(path=place, reason=f"it belongs to user {user}: move elements as that user")
        os.fchmod(area, 0o700)  # it may have been there with other rights
        return area

    def _opened_id(self) -> int:
        refused = UnsafePath(path=str(self.path / _AREA), reason=f"{_ID} is no regular file")
        try:
            fd = os.open(_ID, _ID_FLAGS, 0o600, dir_fd=self._area)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise refused from None
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise refused
        return fd

    # Out of the folder.

    def names(self) -> list[str]:
        minutes = [name for name in os.listdir(self._fd) if _DIRECTORY.fullmatch(name)]
        found = (f"{minute}/{name}" for minute in minutes for name in listed(minute, self._fd))
        return sorted(name for name in found if is_name(name))

    def taken(self) -> list[str]:
        """Names of the elements that were taken and not yet discarded."""
        return self._waiting("in")

    def problem(self, name: str) -> str:
        """The reason why the element cannot be moved, or ""."""
        minute, leaf = name.split("/")
        try:
            with directory(minute, self._fd) as at:
                self._require_element(leaf, at)
        except (FileNotFoundError, NotADirectoryError):
            return "it is gone"
        except CannotMove as reason:
            return str(reason)
        return ""

    def _require_element(self, place: str, at: int) -> None:
        sizes_bytes = self._sizes(place, at)
        if sum(sizes_bytes) + _OVERHEAD_BYTES * len(sizes_bytes) > limits.PAYLOAD_BYTES_MAX:
            raise CannotMove(_TOO_LARGE)

    @abstractmethod
    def take(self, name: str) -> bool:
        """Lock the element and move it to PATH/fdbqueue; False if it is locked already, or gone."""

    def read(self, name: str) -> Pieces:
        """Read a taken element. Raises CannotMove if it is not an element any more."""
        try:
            self._require_element(self._coming(name), self._area)
            return self._read(self._coming(name))
        except (FileNotFoundError, NotADirectoryError):
            raise CannotMove(_NO_ELEMENT) from None

    def discard(self, name: str) -> None:
        """Delete a taken element, which the database has by now."""
        self._delete(self._coming(name))
        self._sync_move(name)

    def put_back(self, name: str) -> None:
        """Undo `take`, for an entry that is no element: it gets its name again, or the next free one."""
        self._unlock_taken(name)
        self._sync_move(self._appear(self._coming(name), name))

    # Into the folder.

    def prepare(self, name: str, pieces: Pieces) -> None:
        """Write the element to PATH/fdbqueue, where dirq does not see it. Raises CannotMove, OSError."""
        self._require_writable(pieces)
        try:
            os.close(self._place_for(name))
        except NotADirectoryError:
            raise CannotMove(f"{name[:8]} is no directory there") from None
        self.forget(name)
        self._write(self._going(name), pieces)
        sync(self._area)

    def prepared(self) -> list[str]:
        return self._waiting("out")

    def forget(self, name: str) -> None:
        """Undo `prepare`."""
        self._delete(self._going(name))

    def publish(self, name: str) -> None:
        """Make the prepared element visible, under its name or the next free one."""
        self._sync_move(self._appear(self._going(name), name))

    def _appear(self, source: str, name: str) -> str:
        """Move `source` out of PATH/fdbqueue, and return its new name."""
        with closing(self._place_for(name)) as at:
            while True:
                try:
                    rename_new(source, name[9:], source_fd=self._area, target_fd=at)
                    return name
                except FileExistsError:
                    name = following(name)

    def _place_for(self, name: str) -> int:
        """A descriptor of the element's directory, which is made if it is missing."""
        minute = name[:8]
        with suppress(FileExistsError):
            os.mkdir(minute, dir_fd=self._fd)
            if self._owner is not None:
                os.chown(minute, *self._owner, dir_fd=self._fd, follow_symlinks=False)
        return os.open(minute, DIRECTORY_FLAGS, dir_fd=self._fd)

    def _waiting(self, way: str) -> list[str]:
        begin = f"{way}-{self._mark.hex()}-"
        found = (
            name.removeprefix(begin).replace("-", "/")
            for name in os.listdir(self._area)
            if name.startswith(begin)
        )
        return sorted(name for name in found if is_name(name))

    def _coming(self, name: str) -> str:
        return f"in-{self._mark.hex()}-{name.replace('/', '-')}"

    def _going(self, name: str) -> str:
        return f"out-{self._mark.hex()}-{name.replace('/', '-')}"

    def _sync_move(self, name: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError), directory(name[:8], self._fd) as at:
            sync(at)
        sync(self._area, self._fd)

    def _delete(self, name: str) -> None:
        """Delete an entry of PATH/fdbqueue, or the rest of one; it may be gone already."""
        with suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(name, dir_fd=self._area, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=self._area)
            else:
                os.unlink(name, dir_fd=self._area)

    def _contents(self, name: str, at: int, bytes_max: int) -> bytes:
        """Read a regular file without a second name. Raises CannotMove."""
        try:
            fd = os.open(name, _READ_FLAGS, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
                raise CannotMove(_NO_ELEMENT) from None
            raise
        try:
            status = os.fstat(fd)
            # The second name of another user's file: that user could not read it under the first one.
            foreign = status.st_nlink > 1 and status.st_uid != os.fstat(self._fd).st_uid
            if not stat.S_ISREG(status.st_mode) or foreign:
                raise CannotMove(_NO_ELEMENT)
            with open(fd, "rb", closefd=False) as file:
                data = file.read(bytes_max + 1)
        finally:
            os.close(fd)
        if len(data) > bytes_max:
            raise CannotMove(_TOO_LARGE)
        return data

    # The layout's.

    @abstractmethod
    def _sizes(self, place: str, at: int) -> list[int]:
        """The sizes of the pieces. Raises CannotMove if `place` is no element, OSError."""

    @abstractmethod
    def _read(self, place: str) -> Pieces:
        """Read an element in PATH/fdbqueue. Raises CannotMove, OSError."""

    @abstractmethod
    def _require_writable(self, pieces: Pieces) -> None:
        """Refuse an element that the folder cannot hold."""

    @abstractmethod
    def _write(self, place: str, pieces: Pieces) -> None: ...

    @abstractmethod
    def _unlock_taken(self, name: str) -> None:
        """Remove our lock from a taken element."""


class PiecesFolder(Folder):
    """A dirq.queue.Queue: an element is a directory, a piece is a file in it, a lock another directory.

    Our own locks have the sticky bit from the system call that makes them; no other lock of this user has it.
    So the lock of a killed import can be told from that of a consumer.
    """

    @classmethod
    def made(cls, path: str | Path) -> "PiecesFolder":
        """The folder, made if it is missing. Raises UnsafePath, OSError."""
        with closing(walked(str(path))) as fd:
            for name in (_TEMPORARY, _OBSOLETE):
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=fd)
        return cls(path)

    def take(self, name: str) -> bool:
        minute, leaf = name.split("/")
        taken = self._coming(name)
        try:
            with directory(minute, self._fd) as at, directory(leaf, at) as element:
                with suppress(FileExistsError):
                    os.mkdir(LOCKED, 0o700 | stat.S_ISVTX, dir_fd=element)
                if not _is_ours(element):
                    return False
                os.utime(element)  # dirq's purge takes this for the age of the lock
                os.rename(leaf, taken, src_dir_fd=at, dst_dir_fd=self._area)
                # A purge may have removed our lock a moment ago, and a consumer may have locked the element.
                with suppress(FileNotFoundError):
                    if not _is_ours(element):
                        os.rename(taken, leaf, src_dir_fd=self._area, dst_dir_fd=at)
                        return False
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _unlock_taken(self, name: str) -> None:
        with suppress(OSError), directory(self._coming(name), self._area) as element:
            if _is_ours(element):
                os.rmdir(LOCKED, dir_fd=element)

    def _sizes(self, place: str, at: int) -> list[int]:
        os.stat(place, dir_fd=at, follow_symlinks=False)
        try:
            with directory(place, at) as element:
                status = [
                    (name, os.stat(name, dir_fd=element, follow_symlinks=False))
                    for name in os.listdir(element)
                    if name != LOCKED
                ]
        except NotADirectoryError:
            raise CannotMove(_NO_ELEMENT) from None
        if not all(_PIECE.fullmatch(name) and stat.S_ISREG(each.st_mode) for name, each in status):
            raise CannotMove(_NO_ELEMENT)
        return [each.st_size for _, each in status]

    def _read(self, place: str) -> Pieces:
        pieces: Pieces = {}
        with directory(place, self._area) as element:
            room_bytes = limits.PAYLOAD_BYTES_MAX
            for name in os.listdir(element):
                if name != LOCKED:
                    pieces[name] = self._contents(name, element, room_bytes)
                    room_bytes -= len(pieces[name])
        return pieces

    def _require_writable(self, pieces: Pieces) -> None:
        for name in pieces:
            if name == LOCKED or not _PIECE.fullmatch(name) or len(name) > PIECE_NAME_BYTES_MAX:
                raise CannotMove(f"no file can have the name of its piece {name[:40]!r}")

    def _write(self, place: str, pieces: Pieces) -> None:
        os.mkdir(place, dir_fd=self._area)
        with directory(place, self._area) as element:
            for name, data in pieces.items():
                write_new(name, element, data, self._owner)
            if self._owner is not None:
                os.fchown(element, *self._owner)
            sync(element)


class SimpleFolder(Folder):
    """A dirq.QueueSimple: an element is a file, a lock another with ".lck" at the end.

    Our own locks are hard links to the file `id`; no other lock is.
    """

    @classmethod
    def made(cls, path: str | Path) -> "SimpleFolder":
        """The folder, made if it is missing. Raises UnsafePath, OSError."""
        os.close(walked(str(path)))
        return cls(path)

    def take(self, name: str) -> bool:
        minute, leaf = name.split("/")
        os.utime(_ID, dir_fd=self._area)  # dirq's purge takes this for the age of the lock
        try:
            with directory(minute, self._fd) as at:
                with suppress(FileExistsError):
                    os.link(
                        _ID,
                        leaf + _LOCK_SUFFIX,
                        src_dir_fd=self._area,
                        dst_dir_fd=at,
                        follow_symlinks=False,
                    )
                if not self._is_ours(leaf, at):
                    return False
                os.rename(leaf, self._coming(name), src_dir_fd=at, dst_dir_fd=self._area)
        except (FileNotFoundError, NotADirectoryError):
            self._unlock(name)
            return False
        return True

    def discard(self, name: str) -> None:
        self._unlock(name)
        super().discard(name)

    def _unlock_taken(self, name: str) -> None:
        self._unlock(name)

    def _is_ours(self, leaf: str, at: int) -> bool:
        lock = os.stat(leaf + _LOCK_SUFFIX, dir_fd=at, follow_symlinks=False)
        return os.path.samestat(lock, os.stat(_ID, dir_fd=self._area, follow_symlinks=False))

    def _unlock(self, name: str) -> None:
        minute, leaf = name.split("/")
        with suppress(FileNotFoundError, NotADirectoryError), directory(minute, self._fd) as at:
            if self._is_ours(leaf, at):
                os.unlink(leaf + _LOCK_SUFFIX, dir_fd=at)

    def _sizes(self, place: str, at: int) -> list[int]:
        status = os.stat(place, dir_fd=at, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise CannotMove(_NO_ELEMENT)
        return [status.st_size]

    def _read(self, place: str) -> Pieces:
        return {NAMELESS: self._contents(place, self._area, limits.PAYLOAD_BYTES_MAX)}

    def _require_writable(self, pieces: Pieces) -> None:
        if NAMELESS not in pieces:
            raise CannotMove("it is no single byte string")

    def _write(self, place: str, pieces: Pieces) -> None:
        write_new(place, self._area, pieces[NAMELESS], self._owner)


def folder_at(path: str | Path) -> Folder:
    """The directory queue at `path`, of either layout. Raises NotADirectoryQueue, OSError."""
    names = os.listdir(path)
    if _TEMPORARY in names:
        return PiecesFolder(path)
    if any(_DIRECTORY.fullmatch(name) for name in names):
        return SimpleFolder(path)
    raise NotADirectoryQueue(path=str(path))


def _is_ours(element: int) -> bool:
    lock = os.stat(LOCKED, dir_fd=element, follow_symlinks=False)
    is_sticky = stat.S_ISDIR(lock.st_mode) and lock.st_mode & stat.S_ISVTX
    return bool(is_sticky and lock.st_uid == os.geteuid())
