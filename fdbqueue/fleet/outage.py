"""Outage: how long a worker leaves alone what is not there, longer each time."""

from fdbqueue import limits
from fdbqueue.runtime import Runtime


class Outage:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self._pause_s = 0.0
        self._until = float("-inf")

    def met(self) -> float:
        """It is away, again; so long it is left alone. Those who meet it during a pause meet the same one:
        eight threads that failed at once are one outage, not eight.
        """
        with self._lock:
            now = self._runtime.monotonic()
            if now >= self._until:
                self._pause_s = min(2 * self._pause_s or limits.AWAY_FIRST_S, limits.AWAY_MAX_S)
                self._until = now + self._pause_s
            return self._pause_s

    def over(self) -> None:
        with self._lock:
            self._pause_s, self._until = 0.0, float("-inf")

    def left_s(self) -> float:
        return max(0.0, self._until - self._runtime.monotonic())
