"""Silence: for how long a database has not answered, although it was asked all the time."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import TypeVar

from fdbqueue.core import limits
from fdbqueue.core.database import is_away
from fdbqueue.core.runtime import Runtime

T = TypeVar("T")


class Spells:
    """The last spells of something: the end of each, by the wall clock, and its length."""

    def __init__(self) -> None:
        self._ended: deque[tuple[float, float]] = deque(maxlen=limits.SPELLS_KEPT)

    def add(self, ended_at: float, seconds: float) -> None:
        self._ended.append((ended_at, seconds))

    def longest_s(self, since: float) -> float:
        """The longest of the spells that ended after `since`; zero if there was none."""
        return max((seconds for ended_at, seconds in tuple(self._ended) if ended_at >= since), default=0.0)

    def total_s(self, since: float) -> float:
        """The total length of the spells that ended after `since`."""
        return sum(seconds for ended_at, seconds in tuple(self._ended) if ended_at >= since)


class Silence:
    """For each asker, the time from its first unanswered question to the next answer."""

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._asked_at: dict[Hashable, float] = {}
        self._running: dict[object, Hashable] = {}
        self._spells = Spells()

    def ask(self, who: Hashable, question: Callable[[], T]) -> T:
        """Run one transaction, or several. An error is an answer, too, except that of a database that is
        away: then the question stays open.

        An asker may ask within a question, or in two threads: the answer to one leaves the other open.
        """
        mark, is_answered = object(), True
        self._running[mark] = who
        self.asked(who)
        try:
            return question()
        except BaseException as error:
            is_answered = not is_away(error)
            raise
        finally:
            del self._running[mark]
            if is_answered:
                self.answered(who)

    def asked(self, who: Hashable) -> None:
        self._asked_at.setdefault(who, self._now())

    def answered(self, who: Hashable) -> None:
        now = self._now()
        lasted_s = now - self._asked_at.pop(who, now)
        if lasted_s >= limits.SILENCE_MIN_S:
            self._spells.add(now, lasted_s)
        if who in tuple(self._running.values()):
            self._asked_at[who] = now

    def longest_s(self, since: float) -> float:
        """The longest silence that goes on, or that ended after `since` (wall clock)."""
        lasts_s = self._now() - min(tuple(self._asked_at.values()), default=self._now())
        return max(lasts_s, self._spells.longest_s(since))
