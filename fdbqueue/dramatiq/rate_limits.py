"""The backend of Dramatiq's rate limiters and barriers: counters with an end."""

import struct
from collections.abc import Callable, Iterable

from dramatiq.rate_limits import RateLimiterBackend

from fdbqueue.calls.once import run_once
from fdbqueue.database import Database
from fdbqueue.dramatiq.errors import as_dramatiq
from fdbqueue.frameworks.opening import Opening, Place
from fdbqueue.frameworks.results import Results
from fdbqueue.frameworks.store import Store
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.seam import Transaction

COUNTERS, EVENTS = "dramatiq-counters", "dramatiq-events"
"""The spaces of counters, and of events: an event is the number of its calls, and each wakes its waits."""

_NUMBER = struct.Struct(">q")


class FdbQueueRateLimits(RateLimiterBackend):
    """Counters for `dramatiq.rate_limits`, exact among any number of processes."""

    def __init__(self, url: Place = None) -> None:
        """`url`: as in FdbQueueBroker, or the broker itself, whose database it then uses."""
        self._opening = Opening.of(url)
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
    """`number`, or None beyond a bound."""
    is_beyond = (low is not None and number < low) or (high is not None and number > high)
    return None if is_beyond else number
