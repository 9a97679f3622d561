"""The directory of a database: opens it and files in it, and tells whether they are still in place.

An attacker may have planted a link, a pipe or a device under one of our names, or a whole directory. So a
path is walked one part at a time. A link above the directory is followed if root or the caller made it. Below
the directory no link is followed, and only regular files are opened. All names below the directory are looked
up in its descriptor, which cannot be exchanged.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from itertools import islice

from fdbqueue.core.errors import DescriptorsClosed, StorageInUse, StorageReplaced, UnsafePath
from fdbqueue.core.runtime import Runtime
from fdbqueue.embedded.causes import refusal

PRIVATE_MODE = 0o700
_LINKS_MAX = 40  # as the kernel's own walk
_FILE_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC  # a link is opened, not followed
_NO_SYNC = frozenset({errno.EINVAL, errno.EROFS, errno.ENOTSUP})  # of a file system without directory syncs
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_SHARED_FILE, _SHARED_DIRECTORY = 0o066, stat.S_ISGID | 0o077
_CURE = "give --shared-directory, or shared_directory=True, if all users that may write there are trusted"


class Directory:
    """An open directory, in which files are opened by name. A file that root makes in another user's
    directory gets that user as its owner; otherwise the user could not open it. In a `shared` directory,
    files have the directory's permissions for group and others.
    """

    def __init__(self, fd: int, path: str, shared: bool = False) -> None:
        self.fd = fd
        self.path = path
        self._shared = shared
        status = os.fstat(fd)
        self._owner = (status.st_uid, status.st_gid) if os.geteuid() == 0 and status.st_uid else None
        mode = stat.S_IMODE(status.st_mode) if shared else 0
        self.file_mode = 0o600 | (mode & _SHARED_FILE)
        self._directory_mode = PRIVATE_MODE | (mode & _SHARED_DIRECTORY)

    @classmethod
    def open(cls, path: str, *, shared: bool = False) -> "Directory":
        """Open the directory at `path`, and make missing levels, readable by their owner only."""
        try:
            fd = walked(path)
        except NotADirectoryError:
            raise StorageInUse(path=path, reason="it is a file, and no directory") from None
        except OSError as error:
            raise refusal(path, error) from None
        try:
            _require_trusted(fd, path, shared)
            return cls(fd, os.readlink(by_descriptor(fd)), shared)
        except BaseException:
            os.close(fd)
            raise

    def subdirectory(self, name: str) -> "Directory":
        """Open the directory `name` in this one, or make it. Raises: UnsafePath, OSError."""
        try:
            os.mkdir(name, PRIVATE_MODE, dir_fd=self.fd)
            is_new = True
        except FileExistsError:
            is_new = False
        try:
            fd = os.open(name, _DIRECTORY_FLAGS, dir_fd=self.fd)
        except OSError as error:
            raise self._unsafe(name, "directory", error) from None
        if is_new:
            self._hand_over(fd, self._directory_mode)
        return Directory(fd, os.path.join(self.path, name), self._shared)

    def open_file(self, name: str) -> int:
        """Open the regular file `name`, or make it; return its descriptor. Raises: UnsafePath, OSError."""
        while True:
            try:
                fd, is_new = os.open(name, _FILE_FLAGS, dir_fd=self.fd), False
            except FileNotFoundError:
                try:
                    made = _FILE_FLAGS | os.O_CREAT | os.O_EXCL
                    fd, is_new = os.open(name, made, self.file_mode, dir_fd=self.fd), True
                except FileExistsError:
                    continue  # another process was first
            except OSError as error:
                raise self._unsafe(name, "regular file", error) from None
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise UnsafePath(path=self.path, reason=f"{name} is no regular file")
            if is_new:
                self._hand_over(fd, self.file_mode)
            return fd

    def hand_over(self, name: str) -> None:
        """Give the new socket `name` the owner and the permissions of the directory's files."""
        if self._shared:
            os.chmod(name, self.file_mode, dir_fd=self.fd)
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=self.fd, follow_symlinks=False)

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.fd)

    def size_bytes(self, name: str) -> int:
        return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size

    def rename(self, name: str, to: str) -> None:
        os.rename(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def sync_entries(self) -> None:
        """Make the names in this directory durable, its own, and those of new directories above it."""
        _sync(self.fd)
        path = os.path.dirname(self.path)
        # A level with another entry is no new one. A process that was killed may have made the levels.
        while _sync_level(path) == 1 and path != "/":
            path = os.path.dirname(path)

    def close(self) -> None:
        os.close(self.fd)

    def _hand_over(self, fd: int, mode: int) -> None:
        if self._shared:
            os.fchmod(fd, mode)
        if self._owner is not None:
            os.fchown(fd, *self._owner)

    def _unsafe(self, name: str, wanted: str, error: OSError) -> Exception:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            return UnsafePath(path=self.path, reason=f"{name} is no {wanted}")
        return error


def walked(path: str) -> int:
    """Open the directory at `path`, and make missing levels. Raises: UnsafePath, OSError."""
    at = os.open("/" if path.startswith("/") else ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    parts, links = _parts(path), 0
    try:
        while parts:
            below = _open_part(parts.pop(), at)
            target = _target(below, path)
            if target is None:
                os.close(at)
                at = below
                continue
            os.close(below)
            links += 1
            if links > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            parts += _parts(target)
            if target.startswith("/"):
                os.close(at)
                at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return os.open(".", _DIRECTORY_FLAGS, dir_fd=at)
    finally:
        os.close(at)


def _sync_level(path: str) -> int:
    """Make the names in a directory durable; return their number (0 if it is unreadable: we made none)."""
    try:
        fd = os.open(path, _DIRECTORY_FLAGS)
    except (PermissionError, FileNotFoundError):
        return 0
    try:
        _sync(fd)
        with os.scandir(fd) as entries:
            return len(list(islice(entries, 2)))
    finally:
        os.close(fd)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _parts(path: str) -> list[str]:
    """Return the parts of a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _open_part(name: str, at: int) -> int:
    try:
        return os.open(name, _PART_FLAGS, dir_fd=at)
    except FileNotFoundError:
        try:
            os.mkdir(name, PRIVATE_MODE, dir_fd=at)
        except FileExistsError:
            return os.open(name, _PART_FLAGS, dir_fd=at)  # another process was first
        fd = os.open(name, _PART_FLAGS, dir_fd=at)
        if stat.S_IMODE(os.fstat(fd).st_mode) & PRIVATE_MODE != PRIVATE_MODE:
            os.chmod(by_descriptor(fd), PRIVATE_MODE)  # the umask may remove bits of the owner too
        return fd


def _target(fd: int, path: str) -> str | None:
    status = os.fstat(fd)
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISLNK(status.st_mode):
        os.close(fd)
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    if status.st_uid not in (0, os.geteuid()):
        os.close(fd)
        raise UnsafePath(path=path, reason=f"a link on the way was made by user {status.st_uid}")
    return os.readlink("", dir_fd=fd)


def _require_trusted(fd: int, path: str, shared: bool) -> None:
    if shared:
        return
    status, user = os.fstat(fd), os.geteuid()
    if status.st_mode & _OTHERS_WRITE:
        mode = f"{stat.S_IMODE(status.st_mode):04o}"
        reason = f"group or others may write to it (mode {mode}): run chmod go-w on it, or {_CURE}"
        raise UnsafePath(path=path, reason=reason)
    if user and status.st_uid not in (0, user):
        raise UnsafePath(path=path, reason=f"it belongs to user {status.st_uid}: {_CURE}")


def by_descriptor(fd: int) -> str:
    """Return a path of the open file `fd` that does not depend on its name."""
    return f"/proc/self/fd/{fd}"


_NOWHERE = (0, 0)
_MTIME_STEP_NS = 1_000_000_000  # two changes of a directory that are closer may have one modification time


class InPlace:
    """The names of open files in a directory, which must stay where they are. As long as the directory has
    not changed, one system call is enough. No written file may be asked for its state at each commit: Linux
    6.13 then gives the next write a time of its own, and the flush gets slower.
    """

    def __init__(
        self,
        directory: Directory,
        names: Sequence[str],
        runtime: Runtime,
        stat: Callable[[str], os.stat_result],
    ) -> None:
        opened = by_descriptor(directory.fd)
        self._directory = directory
        self._itself = _of(os.fstat(directory.fd))
        self._path = directory.path
        self._runtime = runtime
        self._stat = stat
        self._known = [(name, _identity(opened, name)) for name in names]
        self._looked_at = _NOWHERE
        self.looks = 0
        """Counts the times that the directory may have changed since the call of `require` before."""

    def require(self) -> None:
        """Check that each name still leads to the open file. Raises: StorageReplaced, DescriptorsClosed."""
        self._require_open()
        try:
            status = self._stat(self._path)
            looked_at = (status.st_ino, status.st_mtime_ns)
            if looked_at != self._looked_at:
                self._look(status.st_mtime_ns, looked_at)
        except (FileNotFoundError, NotADirectoryError):
            raise StorageReplaced(path=self._path, file=self._known[0][0]) from None
        except PermissionError:
            # The user may not search a parent directory, or the process has dropped its rights.
            self.looks += 1

    def _require_open(self) -> None:
        """Raises: DescriptorsClosed. The start of a daemon closes all descriptors. Their numbers go to other
        files then, and a commit would write into these.
        """
        fd = self._directory.fd
        try:
            is_open = fd < 0 or _of(os.fstat(fd)) == self._itself  # below 0: closed by us
        except OSError:
            is_open = False
        if not is_open:
            raise DescriptorsClosed(path=self._path, file=".")

    def _look(self, changed_ns: int, looked_at: tuple[int, int]) -> None:
        self.looks += 1
        for name, known in self._known:
            if _identity(self._path, name) != known:
                raise StorageReplaced(path=self._path, file=name)
        if self._runtime.now() * 1e9 - changed_ns > _MTIME_STEP_NS:
            self._looked_at = looked_at


def _identity(path: str, name: str) -> tuple[int, int]:
    try:
        return _of(os.stat(f"{path}/{name}"))
    except FileNotFoundError:
        return _NOWHERE


def _of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
