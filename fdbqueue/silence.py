"""Silence: when a database has not answered, as one thread that asks it all the while knows it."""

from collections import deque

from fdbqueue import limits
from fdbqueue.runtime import Runtime


class Spells:
    """The last spells of something: when each ended, by the wall clock, and how long it had lasted."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=limits.SPELLS_KEPT)

    def add(self, ended_at: float, seconds: float) -> None:
        self._ended.append((ended_at, seconds))

    def longest_s(self, since: float) -> float:
        """Of those that ended after `since`; zero if there was none."""
        return max((seconds for ended_at, seconds in tuple(self._ended) if ended_at >= since), default=0.0)


class Silence:
    """From the first question that is not answered until one is."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._asked_at: float | None = None
        self._spells = Spells()

    def asked(self) -> None:
        if self._asked_at is None:
            self._asked_at = self._now()

    def answered(self) -> None:
        if self._asked_at is not None:
            self._spells.add(self._now(), self._now() - self._asked_at)
        self._asked_at = None

    def longest_s(self, since: float) -> float:
        """The longest that ended after `since`, wall clock, or goes on."""
        asked_at = self._asked_at
        lasts_s = 0.0 if asked_at is None else self._now() - asked_at
        return max(lasts_s, self._spells.longest_s(since))
