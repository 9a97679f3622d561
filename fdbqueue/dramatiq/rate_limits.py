"""The backend of Dramatiq's rate limiters and barriers: counters with an end."""

from collections.abc import Callable, Iterable

from dramatiq.rate_limits import RateLimiterBackend

from fdbqueue import limits
from fdbqueue.calls.once import run_once
from fdbqueue.database import run
from fdbqueue.dramatiq.errors import as_dramatiq
from fdbqueue.dramatiq.opening import Opening, Place
from fdbqueue.dramatiq.store import COUNTER, EVENT, Store
from fdbqueue.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.seam import Future, Transaction


class FdbQueueRateLimits(RateLimiterBackend):
    """Counters for `dramatiq.rate_limits`, exact among any number of processes."""

    def __init__(self, url: Place = None) -> None:
        """`url`: as in FdbQueueBroker, or the broker itself, whose database it then uses."""
        self._opening = Opening.of(url)
        self._store = Store()
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
            now_us = self._opening.database().runtime.now_us()
            asked = [self._store.ask_count(tr, COUNTER, name, now_us) for name in names]
            total = sum(reply() or 0 for reply in asked) + amount
            return None if total > maximum else _within((now or 0) + amount, high=maximum)

        return self._change(key, ttl, decide)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Wait up to `timeout` milliseconds, None for ever, for `wait_notify`; True if it has been called.

        A call before this one counts, too: it may come between the count of a barrier and its wait.
        """
        database = self._opening.database()
        until = None if timeout is None else database.runtime.monotonic() + timeout / 1000
        with database.waiter(None) as waiter:
            while True:
                told, watch = self._look(key)
                left_s = limits.LOOK_EVERY_S if until is None else until - database.runtime.monotonic()
                if told is not None or left_s <= 0:
                    watch.cancel()
                    return told is not None
                waiter.sleep([watch], min(limits.LOOK_EVERY_S, left_s))

    def wait_notify(self, key: str, ttl: int) -> None:
        self._change(key, ttl, lambda _, told: (told or 0) + 1, EVENT)

    def _look(self, key: str) -> tuple[int | None, Future]:
        database = self._opening.database()

        def body(tr: Transaction) -> tuple[int | None, Future]:
            told = self._store.ask_count(tr, EVENT, key, database.runtime.now_us())
            return told(), self._store.watch_count(tr, EVENT, key)

        with as_dramatiq():
            return run(database, body)

    def _change(
        self,
        key: str,
        ttl_ms: int,
        decide: Callable[[Transaction, int | None], int | None],
        column: int = COUNTER,
    ) -> bool:
        """Give a counter the number that `decide` returns for its present one. None changes nothing."""
        database = self._opening.database()

        def body(tr: Transaction) -> bool:
            now_us = database.runtime.now_us()
            number = decide(tr, self._store.ask_count(tr, column, key, now_us)())
            if number is None:
                return False
            self._store.sweep(tr, now_us)
            self._store.set_count(tr, column, key, number, now_us + ttl_ms * 1000)
            return True

        with as_dramatiq():
            return run_once(database, self._root, body)


def _within(number: int, *, low: int | None = None, high: int | None = None) -> int | None:
    """`number`, or None beyond a bound."""
    is_beyond = (low is not None and number < low) or (high is not None and number > high)
    return None if is_beyond else number
