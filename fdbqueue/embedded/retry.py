"""How long to wait before trying again, as FoundationDB's client does."""

import msgspec

from fdbqueue.fdberror import TRIED_AGAIN
from fdbqueue.limits import RETRY_DELAY_FIRST_S, RETRY_DELAY_GROWTH

_TOO_OLD, _FUTURE_VERSION = 1007, 1009


class Backoff(msgspec.Struct):
    """Exponential with full jitter; the growth is the transaction's, over all of its attempts."""

    _ceiling_s: float = RETRY_DELAY_FIRST_S

    def next_delay_s(self, code: int, delay_max_s: float, random: float) -> float | None:
        """Seconds to wait after error `code`; None when it is not one to retry."""
        if code not in TRIED_AGAIN:
            return None
        if code in (_TOO_OLD, _FUTURE_VERSION):
            return min(RETRY_DELAY_FIRST_S, delay_max_s)  # a new read version is all it takes
        delay_s = min(self._ceiling_s, delay_max_s) * random
        self._ceiling_s = min(self._ceiling_s * RETRY_DELAY_GROWTH, delay_max_s)
        return delay_s
