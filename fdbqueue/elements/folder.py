"""Directory queues on disk, as dirq keeps them, for a mover that may be killed at any moment (moving.py).

    PATH/DDDDDDDD/EEEEEEEEEEEEEE   an element: a directory with a file for each piece, or just a file
    PATH/fdbqueue/id               this directory's identity; locked (flock) while somebody moves
    PATH/fdbqueue/in-MARK-D-E      an element that has been taken out, and may not be in the database yet
    PATH/fdbqueue/out-MARK-D-E     an element that is to appear; it counts once the database says so

MARK is the queue's that the element moves to or from. dirq takes no notice of PATH/fdbqueue. What leads from
one place to another is a rename, which happens or does not; where others add too, it replaces nothing. Before
anybody is told of one it is on the disk.
"""

import fcntl
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fdbqueue import limits
from fdbqueue.elements.keys import FOLDER_BYTES
from fdbqueue.elements.names import following, is_name
from fdbqueue.elements.renaming import rename_new
from fdbqueue.elements.schema import NAMELESS, Pieces
from fdbqueue.errors import DirectoryQueueInUse, NotADirectoryQueue

_AREA, _ID = "fdbqueue", "id"
_TEMPORARY, _OBSOLETE, _LOCKED, _LOCK_SUFFIX = "temporary", "obsolete", "locked", ".lck"
_DIRECTORY, _PIECE = re.compile("[0-9a-f]{8}"), re.compile("[0-9a-zA-Z]+")
# Roughly: what the pieces' names and lengths add to them.
_OVERHEAD_BYTES = 300


class Folder(ABC):
    """What the two layouts share."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.id = self._mark = b""
        self._area = self.path / _AREA

    @contextmanager
    def exclusively(self, new_id: bytes, mark: bytes) -> Iterator[None]:
        """Nobody else moves elements meanwhile; the folder has an `id`, `new_id` if there was none. What is
        taken and prepared is that of the queue with this `mark`.

        Raises DirectoryQueueInUse, OSError.
        """
        self._mark = mark
        self._area.mkdir(parents=True, exist_ok=True)
        with open(self._area / _ID, "a+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DirectoryQueueInUse(path=str(self.path)) from None
            file.seek(0)
            self.id = file.read()
            if len(self.id) != FOLDER_BYTES:  # new, or its maker was killed
                file.truncate(0)
                file.write(new_id)
                file.flush()
                self.id = new_id
            os.fsync(file.fileno())
            _sync(self._area, self.path)
            yield

    # Out of the folder.

    def names(self) -> list[str]:
        """The elements, locked or not, in order."""
        directories = [entry.name for entry in os.scandir(self.path) if _DIRECTORY.fullmatch(entry.name)]
        found = (
            f"{directory}/{name}" for directory in directories for name in _listed(self.path / directory)
        )
        return sorted(name for name in found if is_name(name))

    def taken(self) -> list[str]:
        """What has been taken out, and not been discarded."""
        return self._waiting("in")

    def problem(self, name: str) -> str:
        """Why the element cannot be moved, "" if it can."""
        try:
            sizes_bytes = self._sizes(self.path / name)
        except (FileNotFoundError, NotADirectoryError):
            return "it is gone"
        if sizes_bytes is None:
            return "it is no element, by what lies in it"
        too_large = sum(sizes_bytes) + _OVERHEAD_BYTES * len(sizes_bytes) > limits.PAYLOAD_BYTES_MAX
        return "it is too large" if too_large else ""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Lock the element and take it out; False if somebody else has locked it, or it is gone."""

    def read(self, name: str) -> Pieces:
        """What was taken out."""
        return self._read(self._coming(name))

    def discard(self, name: str) -> None:
        """Forget what was taken out, for good: it is known to be elsewhere."""
        self._delete(self._coming(name))
        self._sync_move(name)

    # Into the folder.

    def prepare(self, name: str, pieces: Pieces) -> None:
        """Write the element, not yet to be seen. Raises OSError."""
        self.forget(name)
        self._write(self._going(name), pieces)
        _sync(self._area)

    def prepared(self) -> list[str]:
        return self._waiting("out")

    def forget(self, name: str) -> None:
        """Undo `prepare`."""
        self._delete(self._going(name))

    def publish(self, name: str) -> None:
        """Let the prepared element appear, under its name or the first one after it that is free."""
        place = name
        while not self._appear(name, self.path / place):
            place = following(place)
        self._sync_move(place)

    def _appear(self, name: str, place: Path) -> bool:
        place.parent.mkdir(exist_ok=True)
        try:
            rename_new(self._going(name), place)
        except FileExistsError:
            return False
        return True

    def _waiting(self, way: str) -> list[str]:
        begin = f"{way}-{self._mark.hex()}-"
        return sorted(
            name.removeprefix(begin).replace("-", "/")
            for name in _listed(self._area)
            if name.startswith(begin)
        )

    def _coming(self, name: str) -> Path:
        return self._area / f"in-{self._mark.hex()}-{name.replace('/', '-')}"

    def _going(self, name: str) -> Path:
        return self._area / f"out-{self._mark.hex()}-{name.replace('/', '-')}"

    def _sync_move(self, name: str) -> None:
        _sync(self._area, *(place for place in ((self.path / name).parent, self.path) if place.is_dir()))

    # The layout's.

    @abstractmethod
    def _sizes(self, place: Path) -> list[int] | None:
        """The sizes of its pieces; None for what is no element."""

    @abstractmethod
    def _read(self, place: Path) -> Pieces: ...

    @abstractmethod
    def _write(self, place: Path, pieces: Pieces) -> None: ...

    @abstractmethod
    def _delete(self, place: Path) -> None:
        """Also what is left of one; nothing if there is nothing."""


class PiecesFolder(Folder):
    """A dirq.queue.Queue: an element is a directory, a piece is a file in it, a lock another directory.

    Our own locks are made with the sticky bit, in the system call that makes them, and nobody else's has it:
    that is how a lock which a killed import has left is told from a consumer's.
    """

    @classmethod
    def made(cls, path: str | Path) -> "PiecesFolder":
        """The folder, created if it is not there."""
        for name in (_TEMPORARY, _OBSOLETE):
            (Path(path) / name).mkdir(parents=True, exist_ok=True)
        return cls(path)

    def take(self, name: str) -> bool:
        place, taken = self.path / name, self._coming(name)
        try:
            with suppress(FileExistsError):
                os.mkdir(place / _LOCKED, 0o777 | stat.S_ISVTX)
            if not self._is_ours(place):
                return False
            os.utime(place)  # by this time dirq's purge judges a lock
            os.rename(place, taken)
        except (FileNotFoundError, NotADirectoryError):
            return False
        # Purged at the last moment, our lock is gone: then nobody has it, or another has locked it.
        with suppress(FileNotFoundError):
            if not self._is_ours(taken):
                os.rename(taken, place)
                return False
        return True

    def _is_ours(self, place: Path) -> bool:
        return bool((place / _LOCKED).stat().st_mode & stat.S_ISVTX)

    def _sizes(self, place: Path) -> list[int] | None:
        pieces = [entry for entry in os.scandir(place) if entry.name != _LOCKED]
        if all(_PIECE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False) for entry in pieces):
            return [entry.stat().st_size for entry in pieces]
        return None

    def _read(self, place: Path) -> Pieces:
        return {name: (place / name).read_bytes() for name in _listed(place) if name != _LOCKED}

    def _write(self, place: Path, pieces: Pieces) -> None:
        place.mkdir()
        for name, data in pieces.items():
            _write(place / name, data)
        _sync(place)

    def _delete(self, place: Path) -> None:
        for name in _listed(place):
            if name != _LOCKED:
                (place / name).unlink()
        for directory in (place / _LOCKED, place):
            with suppress(FileNotFoundError):
                directory.rmdir()


class SimpleFolder(Folder):
    """A dirq.QueueSimple: an element is a file, a lock another with ".lck" at the end.

    Our own locks are hard links to the file `id`, and nobody else's are.
    """

    @classmethod
    def made(cls, path: str | Path) -> "SimpleFolder":
        """The folder, created if it is not there."""
        Path(path).mkdir(parents=True, exist_ok=True)
        return cls(path)

    def take(self, name: str) -> bool:
        place, lock, own = self.path / name, self._lock(name), self._area / _ID
        os.utime(own)  # by this time dirq's purge judges a lock
        try:
            with suppress(FileExistsError):
                os.link(own, lock)
            if not lock.samefile(own):
                return False
            os.rename(place, self._coming(name))
        except (FileNotFoundError, NotADirectoryError):
            self._unlock(name)
            return False
        return True

    def discard(self, name: str) -> None:
        self._unlock(name)
        super().discard(name)

    def _lock(self, name: str) -> Path:
        return self.path / f"{name}{_LOCK_SUFFIX}"

    def _unlock(self, name: str) -> None:
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._lock(name).samefile(self._area / _ID):
                self._lock(name).unlink()

    def _sizes(self, place: Path) -> list[int] | None:
        status = place.lstat()
        return [status.st_size] if stat.S_ISREG(status.st_mode) else None

    def _read(self, place: Path) -> Pieces:
        return {NAMELESS: place.read_bytes()}

    def _write(self, place: Path, pieces: Pieces) -> None:
        _write(place, pieces[NAMELESS])

    def _delete(self, place: Path) -> None:
        place.unlink(missing_ok=True)


def folder_at(path: str | Path) -> Folder:
    """The directory queue that is there, of either layout. Raises NotADirectoryQueue, OSError."""
    names = os.listdir(path)
    if _TEMPORARY in names:
        return PiecesFolder(path)
    if any(_DIRECTORY.fullmatch(name) for name in names):
        return SimpleFolder(path)
    raise NotADirectoryQueue(path=str(path))


def _listed(place: Path) -> list[str]:
    try:
        return os.listdir(place)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _write(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(*directories: Path) -> None:
    for directory in directories:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
