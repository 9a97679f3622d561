"""The result backend: results with an end, waited for by a watch."""

from typing import Any

from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing

from fdbqueue import limits
from fdbqueue.arguments import checked_payload
from fdbqueue.database import run
from fdbqueue.dramatiq.errors import as_dramatiq
from fdbqueue.dramatiq.opening import Opening, Place
from fdbqueue.dramatiq.store import Store
from fdbqueue.seam import Future, Transaction


class FdbQueueResults(ResultBackend):
    """Results of actors, for the middleware `dramatiq.results.Results`.

    `url`: as in FdbQueueBroker, or the broker itself, whose database it then uses.
    """

    def __init__(self, url: Place = None, **options: Any) -> None:
        """`options`: `namespace`, `encoder` and `use_namespace_prefix_keys` of dramatiq's ResultBackend."""
        super().__init__(**options)
        self._opening = Opening.of(url)
        self._store_of_keys = Store()

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message. With `block`, wait up to `timeout` milliseconds for it, on a watch.

        Raises: ResultMissing, ResultTimeout; the error of the actor, as ResultFailure.
        """
        name = self.build_message_key(message)
        if not block:
            return self._unwrapped(self._get(name), ResultMissing(message))
        found = self._wait(name, DEFAULT_TIMEOUT if timeout is None else timeout)
        return self._unwrapped(found, ResultTimeout(message))

    def _unwrapped(self, found: Any, otherwise: Exception) -> Any:
        if found is Missing:
            raise otherwise
        return self.unwrap_result(found)  # type: ignore[no-untyped-call]  # it has no types

    def _get(self, message_key: str) -> Any:
        return self._decoded(self._look(message_key, watches=False)[0])

    def _decoded(self, encoded: bytes | None) -> Any:
        return Missing if encoded is None else self.encoder.decode(encoded)

    def _wait(self, name: str, timeout_ms: int) -> Any:
        database = self._opening.database()
        until = database.runtime.monotonic() + timeout_ms / 1000
        with database.waiter(None) as waiter:
            while True:
                encoded, watch = self._look(name, watches=True)
                if encoded is not None or watch is None:
                    return self._decoded(encoded)
                left_s = until - database.runtime.monotonic()
                waiter.sleep([watch], min(limits.LOOK_EVERY_S, left_s))
                if left_s <= 0:
                    return Missing

    def _look(self, name: str, watches: bool) -> tuple[bytes | None, Future | None]:
        """The encoded result; without one, a watch for it."""
        database = self._opening.database()

        def body(tr: Transaction) -> tuple[bytes | None, Future | None]:
            found = self._store_of_keys.result(tr, name, database.runtime.now_us())
            watch = self._store_of_keys.watch_result(tr, name) if watches and found is None else None
            return found, watch

        with as_dramatiq():
            return run(database, body)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        """Store a result for `ttl` milliseconds. Storing it twice is storing it once.

        Raises: PayloadTooLarge, dramatiq.errors.ConnectionClosed.
        """
        database = self._opening.database()
        encoded = self.encoder.encode(result)
        checked_payload(encoded)

        def body(tr: Transaction) -> None:
            now_us = database.runtime.now_us()
            self._store_of_keys.sweep(tr, now_us)
            self._store_of_keys.set_result(tr, message_key, encoded, now_us + ttl * 1000)

        with as_dramatiq():
            run(database, body)
