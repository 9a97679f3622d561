"""A database on an event loop, and its transactions with awaited reads.

Writes are buffered by the client, so they wait for nothing.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from fdbqueue.aio import engines as aio_engines
from fdbqueue.aio.engines import Future, Range, Underneath
from fdbqueue.aio.hub import Hub, Unheard, hub_of
from fdbqueue.aio.runtime import LoopRuntime
from fdbqueue.core import database as blocking
from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_span, require_finished
from fdbqueue.core.database import Handle
from fdbqueue.core.open import Engines, checked_url, grant, open_url, wished, with_query
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


class Database(Handle, Awaited):
    """An open database of one event loop; an async context manager that closes it. `aio.open` makes it."""

    __slots__ = ("_blocking", "_hub")

    def __init__(self, hub: Hub, blocking_database: blocking.Database) -> None:
        self._hub = hub
        self._blocking = blocking_database

    def __repr__(self) -> str:
        return f"aio.{super().__repr__()}"

    def _shown(self) -> dict[str, Any]:
        return self._blocking._shown()

    @property
    def blocking(self) -> blocking.Database:
        """The blocking database underneath, for blocking code that runs in `run` or `run_blocking`."""
        return self._blocking

    def lent(self) -> "Database":
        """This database, for code that did not open it: to close it does nothing there."""
        return Database(self._hub, self._blocking.lent())

    @property
    def hub(self) -> Hub:
        """What runs its blocking code."""
        return self._hub

    @property
    def options(self) -> Any:
        return self._blocking.options

    @property
    def counters(self) -> Any:
        """Counts of commits, conflicts and others: see `fdbqueue.Database.counters`."""
        return self._blocking.counters

    @property
    def closed(self) -> bool:
        """True as soon as closing has begun."""
        return self._blocking.closed

    def create_transaction(self) -> Transaction:
        """A fresh transaction. Raises DatabaseClosed, WrongLoop."""
        self._hub.require_here()
        return Transaction(self._hub, self._blocking.create_transaction())

    async def run(self, body: Callable[[Any], T]) -> T:
        """Run blocking code in a transaction until it commits: `await db.run(lambda tr: place(tr, 17))`.

        Raises: the errors of the body; the engine's FDBError; DeferredResult for a coroutine function;
        WrongLoop.
        """

        def finished(tr: Any) -> T:
            return require_finished("The function of db.run", body(tr), AWAIT_IT)

        return await self._hub.call(lambda: blocking.run(self._blocking, finished))

    def run_blocking(self, function: Callable[[Any], T]) -> Coroutine[Any, Any, T]:
        """Run blocking code with the blocking database, beside the loop. Raises: its errors, WrongLoop."""
        return self._hub.call(
            lambda: require_finished("The function of run_blocking", function(self._blocking), AWAIT_IT)
        )

    async def close(self) -> None:
        """End the calls that wait, this process's session and all services; twice is once.

        It first waits for cancelled calls that give back results. If it is cancelled, it goes on to its end.
        A lent database stays open.
        """
        if not self._blocking.is_lent:
            await self._hub.call(self._close, Unheard())

    def _close(self) -> None:
        self._hub.outlast_cancelled_calls(limits.CLOSE_TIMEOUT_S)
        self._blocking.close()

    async def __aenter__(self) -> "Database":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # One transaction each, as the binding's database has them. `__getattr__` has the others.

    async def get(self, key: Any) -> bytes | None:
        value: bytes | None = await self._each("get", key)
        return value

    async def set(self, key: Any, value: Any) -> None:
        await self._each("set", key, value)

    async def clear(self, key: Any) -> None:
        await self._each("clear", key)

    async def clear_range(self, begin: Any, end: Any) -> None:
        await self._each("clear_range", begin, end)

    async def get_range(
        self, begin: Any, end: Any, limit: int = 0, reverse: bool = False, streaming_mode: int = -2
    ) -> list[Any]:
        rows: list[Any] = await self._each("get_range", begin, end, limit, reverse, streaming_mode)
        return rows

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith("_") or not callable(getattr(self._blocking, name)):
            raise AttributeError(name)
        return partial(self._each, name)

    def _each(self, name: str, *args: Any) -> Coroutine[Any, Any, Any]:
        return self._hub.call(partial(getattr(self._blocking, name), *args))


class Opening:
    """Await it, or enter it: `db = await aio.open(url)`, `async with aio.open(url) as db`."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Database]]) -> None:
        self._opened = opened
        self._database: Database | None = None

    def __await__(self) -> Generator[Any, None, Database]:
        return self._opened().__await__()

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"aio.open() has no {name!r}, its result has: db = await aio.open(url)")

    async def __aenter__(self) -> Database:
        self._database = await self._opened()
        return self._database

    async def __aexit__(self, *exc: object) -> None:
        assert self._database is not None
        await self._database.close()


def open(
    url: str | None = None,
    *,
    create: bool = True,
    session_ttr_s: float = limits.SESSION_TTR_S,
    shared_directory: bool = False,
    tags: Sequence[str] = (),
    priority: Literal["default", "batch"] | None = None,
    transaction_timeout_s: float | None = None,
    transaction_retry_limit: int | None = None,
) -> Opening:
    """Open a database on the running event loop: `async with aio.open(url) as db`, or `await aio.open(url)`.

    URLs, arguments and errors are those of `fdbqueue.open`.
    """
    asked = (tags, priority, transaction_timeout_s, transaction_retry_limit)
    return Opening(partial(_open, url, create, session_ttr_s, shared_directory, asked))


async def _open(
    url: str | None, create: bool, session_ttr_s: float, shared_directory: bool, asked: tuple[Any, ...]
) -> Database:
    wishes = wished(*asked)
    session_ttr_s = checked_span("session_ttr_s", session_ttr_s)
    named = with_query(checked_url(url, shared_directory), wishes)
    hub = hub_of(asyncio.get_running_loop())
    opened_on = partial(aio_engines.open_on, hub)
    engines = Engines(opened_on, aio_engines.open_directory, aio_engines.open_private, Underneath)
    opened = partial(open_url, named, create, LoopRuntime(hub), session_ttr_s, engines)
    # A cancelled opening goes on to its end: only then there is a database to be closed.
    database = await hub.call(opened, Unheard(), blocking.Database.close)
    return Database(hub, database if wishes is None else grant(database, wishes))
