"""NullQueue: takes everything, has nothing (elements.md 9)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from fdbqueue.core.arguments import checked_path
from fdbqueue.core.handle import Handle
from fdbqueue.core.seam import AnyDatabase, DatabaseOrTransaction


class NullQueue(Handle):
    """An element queue that is always empty, for tests, or as a /dev/null."""

    __slots__ = ("id", "path")

    def __init__(self) -> None:
        self.id = self.path = f"null:{id(self)}"

    def _shown(self) -> dict[str, Any]:
        return {"path": self.path}

    def copy(self) -> "NullQueue":
        twin = NullQueue()
        twin.id = twin.path = self.id
        return twin

    def add(self, tr: DatabaseOrTransaction, data: Any) -> str:  # noqa: ARG002  # the interface of element queues
        """Discard `data`."""
        return ""

    enqueue = add_ref = add

    def add_path(self, db: AnyDatabase, path: str | Path) -> str:  # noqa: ARG002  # the interface of element queues
        """Unlink the file. Raises OSError, InvalidArgument."""
        checked_path("path", path).unlink()
        return ""

    def count(self, tr: DatabaseOrTransaction) -> int:  # noqa: ARG002  # the interface of element queues
        return 0

    def first(self, tr: DatabaseOrTransaction) -> str:  # noqa: ARG002  # the interface of element queues
        return ""

    next = first

    def names(self, tr: DatabaseOrTransaction) -> Iterator[str]:  # noqa: ARG002  # the interface of element queues
        return iter(())

    def touch(self, tr: DatabaseOrTransaction, name: str) -> None:
        """Nothing to touch."""

    def purge(self, tr: DatabaseOrTransaction, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Nothing to purge."""

    def get(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("get")

    get_ref = get

    def get_path(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("get_path")

    def lock(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("lock")

    def acquire(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("acquire")

    def unlock(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("unlock")

    def remove(self, *_: Any, **__: Any) -> NoReturn:
        raise _unsupported("remove")


def _unsupported(method: str) -> NotImplementedError:
    return NotImplementedError(f"unsupported method: {method}()")
