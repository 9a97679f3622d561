"""What asynchronous code passes in place of a database or a transaction: the base of those of `fdbqueue.aio`.

The blocking calls know it only to refuse it in a sentence, and `transactional` to run its function for it.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Awaited(ABC):
    """A database or a transaction whose calls are awaited."""

    __slots__ = ()

    @abstractmethod
    def run_blocking(self, function: Callable[[Any], T]) -> Coroutine[Any, Any, T]:
        """Run blocking code on its blocking counterpart, and await the end of it."""
