"""Outage: how long a worker leaves alone what is not there, longer each time; and what an outage excuses."""

from fdbqueue import limits
from fdbqueue.runtime import Runtime


def is_to_blame(unanswered_s: float, stood_still_s: float, lease_s: float) -> bool:
    """Whether a database is to blame for the end of a lease, as it left its holder unanswered for so long,
    and not the holder, as he stood still for no more than so long in all.

    A lease is renewed when a third of it is over, and so is a session: nobody to whom the database answers
    loses either, unless he stands still for the two thirds that are left. Half a beat in vain is enough, as
    those who ask are out of step. Who was starved for half of a silence may have missed the answer.
    Where those two thirds are shorter than any silence that is noted, as of a lease that was all but over
    when its holder was told of it, only standing still can be known.
    """
    is_too_short_to_tell = lease_s * 2 / 3 < limits.SILENCE_MIN_S
    was_silent = unanswered_s >= lease_s / 6 or is_too_short_to_tell
    return was_silent and stood_still_s <= min(lease_s, unanswered_s) / 2


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
