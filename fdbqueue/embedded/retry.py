"""The back-off between two attempts, as in FoundationDB's client."""

import msgspec

from fdbqueue.fdberror import TRIED_AGAIN
from fdbqueue.limits import RETRY_DELAY_FIRST_S, RETRY_DELAY_GROWTH

_TOO_OLD, _FUTURE_VERSION = 1007, 1009


class Backoff(msgspec.Struct):
    """Exponential back-off with full jitter; it grows over all attempts of a transaction."""

    _ceiling_s: float = RETRY_DELAY_FIRST_S

    def next_delay_s(self, code: int, delay_max_s: float, random: float) -> float | None:
        """Return the seconds to wait after error `code`; None if it is not retryable."""
        if code not in TRIED_AGAIN:
            return None
        if code in (_TOO_OLD, _FUTURE_VERSION):
            return min(RETRY_DELAY_FIRST_S, delay_max_s)  # a new read version is enough
        delay_s = min(self._ceiling_s, delay_max_s) * random
        self._ceiling_s = min(self._ceiling_s * RETRY_DELAY_GROWTH, delay_max_s)
        return delay_s
