"""What the handles of all queues have, awaited: names and options, and the values that were set aside."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fdbqueue.aio.verbs import Face, awaited
from fdbqueue.core.seam import Subspace
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.tasks.handle import TaskHandle

B = TypeVar("B")
H = TypeVar("H", bound=TaskHandle)


class HandleFace(Face[H]):
    __slots__ = ()

    @property
    def name(self) -> str:
        return self._blocking.name

    @property
    def kind(self) -> str:
        return self._blocking.kind

    @property
    def contents(self) -> Subspace:
        """The subspace that holds everything of the queue."""
        contents: Subspace = self._blocking.contents
        return contents

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the queue was created with."""
        return self._blocking.options

    def require_codec(self) -> None:
        """Raises: UnknownCodec if this process has not registered the codec of the queue."""
        self._blocking.require_codec()


class AsideFace(Face[B]):
    """The awaited face of a `KeepsAside`."""

    __slots__ = ()

    aside = awaited(KeepsAside.aside)
    remove_aside = awaited(KeepsAside.remove_aside)
    unreadable = awaited(KeepsAside.unreadable)
