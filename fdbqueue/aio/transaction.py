"""Transactions with awaited reads. Writes are buffered by the client, so they wait for nothing."""

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fdbqueue.aio.futures import Future, Range
from fdbqueue.aio.hub import Hub
from fdbqueue.core.arguments import require_finished
from fdbqueue.core.seam import Awaited, Key, Value

T = TypeVar("T")

AWAIT_IT = "Await a coroutine function itself: with aio.transactional, it runs in a transaction."


class Reads:
    """The reads of a transaction or of its snapshot."""

    __slots__ = ("_hub", "_raw")

    def __init__(self, hub: Hub, raw: Any) -> None:
        self._hub = hub
        self._raw = raw

    def get_read_version(self) -> Future[int]:
        return Future(self._hub, self._raw.get_read_version(), self._raw)

    def get(self, key: Key) -> Future[Value]:
        """The value of a key: `(await tr.get(key)).present()`, `.value`; it is also usable as bytes."""
        return Future(self._hub, self._raw.get(key), self._raw)

    def get_key(self, key_selector: Any) -> Future[Value]:
        return Future(self._hub, self._raw.get_key(key_selector), self._raw)

    def get_range(
        self, begin: Key, end: Key, limit: int = 0, reverse: bool = False, streaming_mode: int = -1
    ) -> Range:
        """The rows of a range: await it for a list, or iterate with `async for`."""
        return Range(self._hub, self._raw.get_range(begin, end, limit, reverse, streaming_mode), self._raw)

    def get_range_startswith(self, prefix: Key, *args: Any, **kwargs: Any) -> Range:
        return Range(self._hub, self._raw.get_range_startswith(prefix, *args, **kwargs), self._raw)

    def get_estimated_range_size_bytes(self, begin_key: Key, end_key: Key) -> Future[int]:
        return Future(self._hub, self._raw.get_estimated_range_size_bytes(begin_key, end_key), self._raw)

    def get_range_split_points(self, begin_key: Key, end_key: Key, chunk_size: int) -> Future[list[bytes]]:
        return Future(self._hub, self._raw.get_range_split_points(begin_key, end_key, chunk_size), self._raw)

    def __getitem__(self, key: Any) -> Any:
        """`await tr[key]`, or the rows of `tr[begin:end]`."""
        found = self._raw[key]
        return (
            Range(self._hub, found, self._raw)
            if isinstance(key, slice)
            else Future(self._hub, found, self._raw)
        )


class Transaction(Reads, Awaited):
    """A transaction on an event loop: the methods of the binding's, with reads and the commit to be awaited.

    The parameter of a function with `aio.transactional`, and the first argument of the verbs of fdbqueue.aio.
    """

    __slots__ = ()

    @property
    def blocking(self) -> Any:
        """The engine's own transaction, for blocking code that runs in `run_blocking`."""
        return self._raw

    def run_blocking(self, function: Callable[[Any], T]) -> Coroutine[Any, Any, T]:
        """Run blocking code with this transaction, beside the loop. Raises: its errors, WrongLoop."""
        return self._hub.call(
            lambda: require_finished("The function of run_blocking", function(self._raw), AWAIT_IT)
        )

    @property
    def hub(self) -> Hub:
        """What runs its blocking code."""
        return self._hub

    @property
    def options(self) -> Any:
        return self._raw.options

    @property
    def snapshot(self) -> Reads:
        return Reads(self._hub, self._raw.snapshot)

    def set(self, key: Key, value: Any) -> None:
        self._raw.set(key, value)

    def clear(self, key: Key) -> None:
        self._raw.clear(key)

    def clear_range(self, begin: Key, end: Key) -> None:
        self._raw.clear_range(begin, end)

    def clear_range_startswith(self, prefix: Key) -> None:
        self._raw.clear_range_startswith(prefix)

    def watch(self, key: Key) -> Future[None]:
        """Ready when the value of `key` has changed after the commit of this transaction."""
        return Future(self._hub, self._raw.watch(key), self._raw)

    def commit(self) -> Future[None]:
        """Raises WrongLoop at once, as an engine may commit before the future is awaited."""
        self._hub.require_here()
        return Future(self._hub, self._raw.commit(), self._raw)

    def on_error(self, error: Any) -> Future[None]:
        """Ready when the transaction may be tried again. Raises: an error that is not retryable."""
        return Future(self._hub, self._raw.on_error(error), self._raw)

    def get_versionstamp(self) -> Future[Value]:
        return Future(self._hub, self._raw.get_versionstamp(), self._raw)

    def get_approximate_size(self) -> Future[int]:
        return Future(self._hub, self._raw.get_approximate_size(), self._raw)

    def get_committed_version(self) -> int:
        version: int = self._raw.get_committed_version()
        return version

    def set_read_version(self, version: int) -> None:
        self._raw.set_read_version(version)

    def reset(self) -> None:
        self._raw.reset()

    def cancel(self) -> None:
        self._raw.cancel()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._raw[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._raw[key]

    def __getattr__(self, name: str) -> Any:
        # The others wait for nothing: atomic operations, and conflict ranges.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._raw, name)
