"""The names and options of a task queue, which need no database."""

from collections.abc import Mapping
from typing import Any, TypeVar

from fdbqueue.aio.verbs import Face
from fdbqueue.core.subspace import Subspace
from fdbqueue.tasks.handle import TaskHandle

B = TypeVar("B", bound=TaskHandle)


class HandleFace(Face[B]):
    """Base of the handles of a task queue."""

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
