"""Stored results: values by name, each with an end. A wait for them is a watch, and polls nothing.

Each store removes some results that have ended, so no process has to clean up.
"""

from collections.abc import Callable, Sequence
from functools import partial

from fdbqueue import limits
from fdbqueue.arguments import checked_payload
from fdbqueue.celery import keys
from fdbqueue.database import Database, run
from fdbqueue.pieces import pieces_of
from fdbqueue.seam import Future, Transaction

Names = Sequence[bytes]

SWEPT = 4
"""Ended results that one store removes: twice the number that a busy store adds."""

WATCHED = 100
"""Results that a wait looks at and watches at a time."""

LOOK_S = 10.0
"""The longest sleep of a wait, as a database may refuse further watches."""


class Results:
    def __init__(self, database: Database) -> None:
        self._database = database

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
            _sweep(tr, now_us)
            old = tr.get(keys.result(name)).value
            if old is not None and keeps is not None:
                found = _value_in(tr, name, old, now_us)
                if found is not None and keeps(found):
                    return
            _clear(tr, name, old)
            _write(tr, name, value, 0 if ttl_s is None else now_us + round(ttl_s * 1_000_000))

        run(self._database, body)

    def get(self, names: Names) -> list[bytes | None]:
        """The values; None for one that is not there, or has ended."""
        found: list[bytes | None] = []
        for start in range(0, len(names), WATCHED):
            found += run(self._database, partial(self._values, names=names[start : start + WATCHED]))
        return found

    def expire(self, name: bytes, ttl_s: float | None) -> None:
        """Give a value another end."""
        found = self.get([name])[0]
        if found is not None:
            self.store(name, found, ttl_s)

    def delete(self, name: bytes) -> None:
        run(self._database, lambda tr: _clear(tr, name, tr.get(keys.result(name)).value))

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
        watches = [] if ready else [tr.watch(keys.result(name)) for name in names]
        return ready, watches

    def _values(self, tr: Transaction, names: Names) -> list[bytes | None]:
        now_us = self._database.runtime.now_us()
        asked = [(name, tr.snapshot.get(keys.result(name))) for name in names]
        return [_value_in(tr, name, found.value, now_us) for name, found in asked]


def _write(tr: Transaction, name: bytes, value: bytes, ends_us: int) -> None:
    pieces = list(pieces_of(value)) if len(value) > limits.PAYLOAD_PIECE_BYTES_MAX else []
    tr.set(keys.result(name), keys.stored(ends_us, len(pieces), b"" if pieces else value))
    for number, piece in enumerate(pieces):
        tr.set(keys.piece(name, number), piece)
    if ends_us:
        tr.set(keys.end(ends_us, name), b"")


def _value_in(tr: Transaction, name: bytes, stored: bytes | None, now_us: int) -> bytes | None:
    if stored is None:
        return None
    ends_us, pieces, value = keys.stored_parts(stored)
    if ends_us and ends_us <= now_us:
        return None
    if not pieces:
        return value
    under = keys.pieces(name)
    return b"".join(bytes(row.value) for row in tr.snapshot.get_range(under.start, under.stop, limit=pieces))


def _clear(tr: Transaction, name: bytes, stored: bytes | None) -> None:
    if stored is None:
        return
    ends_us, pieces, _ = keys.stored_parts(stored)
    tr.clear(keys.result(name))
    if pieces:
        under = keys.pieces(name)
        tr.clear_range(under.start, under.stop)
    if ends_us:
        tr.clear(keys.end(ends_us, name))


def _sweep(tr: Transaction, now_us: int) -> None:
    """Clear the first results that have ended. Conflicts: a change of one of them."""
    under = keys.ends_until(now_us)
    for row in tr.snapshot.get_range(under.start, under.stop, limit=SWEPT).to_list():
        name = keys.end_of(row.key)[1]
        tr.clear(row.key)
        stored = tr.get(keys.result(name)).value
        if stored is not None and 0 < keys.stored_parts(stored)[0] <= now_us:
            _clear(tr, name, stored)
