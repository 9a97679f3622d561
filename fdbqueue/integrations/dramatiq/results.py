"""The result backend, and the backend of rate limiters and barriers: values and counters with an end."""

import struct
from collections.abc import Callable, Iterable
from typing import Any

from dramatiq.rate_limits import RateLimiterBackend
from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing

from fdbqueue.core.database import Database
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.integrations.common.opening import Opening, Place
from fdbqueue.integrations.common.results import Results, Store
from fdbqueue.integrations.dramatiq.broker import FdbQueueBroker
from fdbqueue.integrations.dramatiq.consumer import as_dramatiq

SPACE = "dramatiq"


class FdbQueueResults(ResultBackend):
    """Results of actors, for the middleware `dramatiq.results.Results`; a watch waits for them.

    `url`: as in FdbQueueBroker, or a broker, to use its database.
    """

    def __init__(self, url: Place | FdbQueueBroker = None, **options: Any) -> None:
        """`options`: `namespace`, `encoder` and `use_namespace_prefix_keys` of dramatiq's ResultBackend."""
        super().__init__(**options)
        self._opening = url.opening if isinstance(url, FdbQueueBroker) else Opening(url)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message. With `block`, wait up to `timeout` milliseconds for it, on a watch.

        Raises: ResultMissing, ResultTimeout; the error of the actor, as ResultFailure.
        """
        name = self.build_message_key(message)
        if not block:
            return self._unwrapped(self._get(name), ResultMissing(message))
        with as_dramatiq():
            found = self._results().wait_for(
                name.encode(), (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
            )
        return self._unwrapped(self._decoded(found), ResultTimeout(message))

    def _unwrapped(self, found: Any, otherwise: Exception) -> Any:
        if found is Missing:
            raise otherwise
        return self.unwrap_result(found)  # type: ignore[no-untyped-call]  # it has no types

    def _get(self, message_key: str) -> Any:
        with as_dramatiq():
            return self._decoded(self._results().get([message_key.encode()])[0])

    def _decoded(self, encoded: bytes | None) -> Any:
        return Missing if encoded is None else self.encoder.decode(encoded)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        """Store a result for `ttl` milliseconds. Storing it twice is storing it once."""
        encoded = self.encoder.encode(result)
        with as_dramatiq():
            self._results().store(message_key.encode(), encoded, ttl / 1000)

    def _results(self) -> Results:
        return Results(self._opening.database(), SPACE)


COUNTERS, EVENTS = "dramatiq-counters", "dramatiq-events"
"""The spaces of counters, and of events: an event is the number of its calls, and each wakes its waits."""

_NUMBER = struct.Struct(">q")


class FdbQueueRateLimits(RateLimiterBackend):
    """Counters for `dramatiq.rate_limits`, exact among any number of processes."""

    def __init__(self, url: Place | FdbQueueBroker = None) -> None:
        """`url`: as in FdbQueueBroker, or a broker, to use its database."""
        self._opening = url.opening if isinstance(url, FdbQueueBroker) else Opening(url)
        self._root = RootKeys(DEFAULT_ROOT)

    def add(self, key: str, value: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda _, now: value if now is None else None)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda _, now: _within((now or 0) + amount, high=maximum))

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        return self._change(key, ttl, lambda _, now: _within((now or 0) - amount, low=minimum))

    def incr_and_sum(
        self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int
    ) -> bool:
        """Increase a counter, unless it or the sum of all `keys` would be above `maximum`.

        Conflicts: a change of any of these keys, so the sum is exact.
        """
        names = list(keys())

        def decide(tr: Transaction, now: int | None) -> int | None:
            now_us, counters = self._opening.database().runtime.now_us(), Store(COUNTERS)
            asked = [counters.ask(tr, name.encode(), now_us) for name in names]
            total = sum(_number(value()) or 0 for value in asked) + amount
            return None if total > maximum else _within((now or 0) + amount, high=maximum)

        return self._change(key, ttl, decide)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Wait up to `timeout` milliseconds, None for ever, for `wait_notify`; True if it has been called.

        A call before this one counts, too: it may come between the count of a barrier and its wait.
        """
        timeout_s = None if timeout is None else timeout / 1000
        with as_dramatiq():
            return Results(self._opening.database(), EVENTS).wait_for(key.encode(), timeout_s) is not None

    def wait_notify(self, key: str, ttl: int) -> None:
        self._change(key, ttl, lambda _, told: (told or 0) + 1, EVENTS)

    def _change(
        self,
        key: str,
        ttl_ms: int,
        decide: Callable[[Transaction, int | None], int | None],
        space: str = COUNTERS,
    ) -> bool:
        """Give a counter the number that `decide` returns for its present one. None changes nothing."""
        with as_dramatiq():
            database = self._opening.database()
            return run_once(database, self._root, _changed(database, Store(space), key, ttl_ms, decide))


def _changed(
    database: Database,
    store: Store,
    key: str,
    ttl_ms: int,
    decide: Callable[[Transaction, int | None], int | None],
) -> Callable[[Transaction], bool]:
    """The body of a change of a counter. True if it has changed."""
    name = key.encode()

    def body(tr: Transaction) -> bool:
        now_us = database.runtime.now_us()
        number = decide(tr, _number(store.ask(tr, name, now_us)()))
        if number is None:
            return False
        store.sweep(tr, now_us)
        store.write(tr, name, _NUMBER.pack(number), now_us + ttl_ms * 1000)
        return True

    return body


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(_NUMBER.unpack(value)[0])


def _within(number: int, *, low: int | None = None, high: int | None = None) -> int | None:
    is_beyond = (low is not None and number < low) or (high is not None and number > high)
    return None if is_beyond else number
