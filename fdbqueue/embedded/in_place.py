"""Whether the files of a directory are still the ones that this process has open."""

import os
from collections.abc import Sequence

from fdbqueue.embedded.directory import Directory, by_descriptor
from fdbqueue.embedded.system import System
from fdbqueue.errors import StorageReplaced
from fdbqueue.runtime import Runtime

_NOWHERE = (0, 0)
_MTIME_STEP_NS = 1_000_000_000  # two changes of a directory that are closer may have one modification time


class InPlace:
    """The names of open files in a directory, which must stay where they are.

    As long as the directory has not changed, one system call is enough. No written file may be asked for its
    state at each commit: Linux 6.13 then gives the next write a time of its own, and the flush gets slower.
    """

    def __init__(self, directory: Directory, names: Sequence[str], runtime: Runtime, system: System) -> None:
        opened = by_descriptor(directory.fd)
        self._path = directory.path
        self._runtime = runtime
        self._system = system
        self._known = [(name, _identity(opened, name)) for name in names]
        self._looked_at = _NOWHERE
        self.looks = 0
        """Counts the times that the directory may have changed since the call of `require` before."""

    def require(self) -> None:
        """Check that each name still leads to the open file.

        Raises: StorageReplaced.
        """
        try:
            status = self._system.stat(self._path)
            looked_at = (status.st_ino, status.st_mtime_ns)
            if looked_at != self._looked_at:
                self._look(status.st_mtime_ns, looked_at)
        except (FileNotFoundError, NotADirectoryError):
            raise StorageReplaced(path=self._path, file=self._known[0][0]) from None
        except PermissionError:
            # The user may not search a parent directory, or the process has dropped its rights.
            self.looks += 1

    def _look(self, changed_ns: int, looked_at: tuple[int, int]) -> None:
        self.looks += 1
        for name, known in self._known:
            if _identity(self._path, name) != known:
                raise StorageReplaced(path=self._path, file=name)
        if self._runtime.now() * 1e9 - changed_ns > _MTIME_STEP_NS:
            self._looked_at = looked_at


def _identity(path: str, name: str) -> tuple[int, int]:
    try:
        status = os.stat(f"{path}/{name}")
    except FileNotFoundError:
        return _NOWHERE
    return status.st_dev, status.st_ino
