"""Stored results: values by name, each with an end. A wait for them is a watch, and polls nothing.

Each store removes some results that have ended, so no process has to clean up.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from fdbqueue.arguments import checked_payload
from fdbqueue.database import Database, run
from fdbqueue.frameworks.store import Store
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.seam import Future, Transaction

Names = Sequence[bytes]

WATCHED = 100
"""Results that a wait looks at and watches at a time."""

LOOK_S = 10.0
"""The longest sleep of a wait, as a database may refuse further watches."""


class Results:
    def __init__(self, database: Database, space: str, root: Any = DEFAULT_ROOT) -> None:
        """`space`: tells the results of one framework from those of another."""
        self._database = database
        self._store = Store(space, root)

    def store(
        self, name: bytes, value: bytes, ttl_s: float | None, keeps: Callable[[bytes], bool] | None = None
    ) -> None:
        """Store a value for `ttl_s` seconds, None for ever. `keeps(value)`: true if the stored value stays.

        Reads: the value. Writes: the value; clears a few others that have ended. Conflicts: its change.
        Raises: PayloadTooLarge.
        """
        checked_payload(value)

        def body(tr: Transaction) -> None:
            now_us = self._database.runtime.now_us()
            self._store.sweep(tr, now_us)
            if keeps is not None:
                found = self._store.ask(tr, name, now_us)()
                if found is not None and keeps(found):
                    return
            self._store.write(tr, name, value, _end_us(now_us, ttl_s))

        run(self._database, body)

    def get(self, names: Names) -> list[bytes | None]:
        """The values; None for one that is not there, or has ended."""
        found: list[bytes | None] = []
        for start in range(0, len(names), WATCHED):
            found += run(self._database, partial(self._values, names=names[start : start + WATCHED]))
        return found

    def expire(self, name: bytes, ttl_s: float | None) -> None:
        """Give a value another end. Reads: the value. Conflicts: its change."""

        def body(tr: Transaction) -> None:
            now_us = self._database.runtime.now_us()
            found = self._store.ask(tr, name, now_us)()
            if found is not None:
                self._store.write(tr, name, found, _end_us(now_us, ttl_s))

        run(self._database, body)

    def delete(self, name: bytes) -> None:
        run(self._database, lambda tr: self._store.clear(tr, name))

    def wait(
        self,
        names: Names,
        is_ready: Callable[[bytes], bool],
        timeout_s: float | None,
        tick: Callable[[], object] | None = None,
        tick_s: float = LOOK_S,
    ) -> dict[bytes, bytes]:
        """The values that are ready, of the first WATCHED of `names`; waits up to `timeout_s` for the first.

        May return none before that time is over: then the caller looks again. Calls `tick` every `tick_s`.
        """
        few = list(names[:WATCHED])
        values, watches = run(self._database, lambda tr: self._look(tr, few, is_ready))
        try:
            if not values:
                self._sleep(watches, LOOK_S if timeout_s is None else min(LOOK_S, timeout_s), tick, tick_s)
        finally:  # a watch with a callback outlives its last reference
            for watch in watches:
                watch.cancel()
        return values

    def wait_for(self, name: bytes, timeout_s: float | None) -> bytes | None:
        """The value, as soon as there is one; None after `timeout_s`, which is None for ever."""
        clock = self._database.runtime.monotonic
        until = None if timeout_s is None else clock() + timeout_s
        while True:
            left_s = None if until is None else max(0.0, until - clock())
            ready = self.wait([name], lambda _: True, left_s)
            if ready or left_s == 0:
                return ready.get(name)

    def _sleep(
        self, watches: Sequence[Future], patience_s: float, tick: Callable[[], object] | None, tick_s: float
    ) -> None:
        """Wait for one of the watches. Raises: DatabaseClosed; the errors of `tick`."""
        runtime = self._database.runtime
        until = runtime.monotonic() + patience_s
        with self._database.waiter() as waiter:
            while (left := until - runtime.monotonic()) > 0:
                woken = runtime.wait_any([*watches, waiter], left if tick is None else min(left, tick_s))
                waiter.check()
                if woken:
                    return
                if tick is not None:
                    tick()

    def _look(
        self, tr: Transaction, names: Names, is_ready: Callable[[bytes], bool]
    ) -> tuple[dict[bytes, bytes], list[Future]]:
        found = dict(zip(names, self._values(tr, names), strict=True))
        ready = {name: value for name, value in found.items() if value is not None and is_ready(value)}
        watches = [] if ready else [self._store.watch(tr, name) for name in names]
        return ready, watches

    def _values(self, tr: Transaction, names: Names) -> list[bytes | None]:
        now_us = self._database.runtime.now_us()
        asked = [self._store.ask(tr.snapshot, name, now_us) for name in names]
        return [value() for value in asked]


def _end_us(now_us: int, ttl_s: float | None) -> int:
    return 0 if ttl_s is None else now_us + round(ttl_s * 1_000_000)
