"""The transaction of the program, in which a block of code puts its messages."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class Within:
    """The blocks of one broker, in each thread and each task of asyncio."""

    def __init__(self) -> None:
        self._current: ContextVar[Any] = ContextVar("fdbqueue_transaction", default=None)

    @contextmanager
    def block(self, tr: Any) -> Iterator[None]:
        """Put the messages that this block sends within `tr`: they are there if and only if `tr` commits.

        `tr` is a transaction of the database of the broker. The block may run again, with the whole body of
        `tr`: then the messages of the earlier run are gone, and the new ones have new ids.
        """
        token = self._current.set(tr)
        try:
            yield
        finally:
            self._current.reset(token)

    def current(self) -> Any:
        """The transaction of the block around the caller; None outside."""
        return self._current.get()
