"""The result backend: results with an end, waited for by a watch."""

from typing import Any

from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing

from fdbqueue.dramatiq.errors import as_dramatiq
from fdbqueue.frameworks.opening import Opening, Place
from fdbqueue.frameworks.results import Results

SPACE = "dramatiq"


class FdbQueueResults(ResultBackend):
    """Results of actors, for the middleware `dramatiq.results.Results`.

    `url`: as in FdbQueueBroker, or the broker itself, whose database it then uses.
    """

    def __init__(self, url: Place = None, **options: Any) -> None:
        """`options`: `namespace`, `encoder` and `use_namespace_prefix_keys` of dramatiq's ResultBackend."""
        super().__init__(**options)
        self._opening = Opening.of(url)

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
        """Store a result for `ttl` milliseconds. Storing it twice is storing it once.

        Raises: PayloadTooLarge, dramatiq.errors.ConnectionClosed.
        """
        encoded = self.encoder.encode(result)
        with as_dramatiq():
            self._results().store(message_key.encode(), encoded, ttl / 1000)

    def _results(self) -> Results:
        return Results(self._opening.database(), SPACE)
