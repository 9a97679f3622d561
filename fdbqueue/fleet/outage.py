"""Outage: the growing pauses of a worker while something is away; and which lost leases an outage excuses."""

from fdbqueue.core import limits
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.sessions.silence import Spells


def is_to_blame(unanswered_s: float, stood_still_s: float, lease_s: float) -> bool:
    """True if the database, not this process, lost a lease of `lease_s`.

    The database was silent for `unanswered_s`. This process was stalled for `stood_still_s` in all.

    1. A lease is renewed after a third of its length. If the database answers, the lease ends only if the
       process stalls for the other two thirds. A silence of a sixth is enough, as a question may come half a
       beat after its time.
    2. A process that was stalled for half of a silence may have missed the answer: then it is to blame.
    3. A silence shorter than limits.SILENCE_MIN_S is not recorded. If two thirds of the lease are shorter,
       only the stall counts.
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
        """Start a pause; return its length, or that of the pause under way: eight failures are one outage."""
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


class Pulse:
    """Measures the time for which this process was stalled. One thread does nothing but wake at fixed times.
    If it wakes late, the process was stopped or starved, or its machine slept. Without it, a stall could not
    be told from a wait for the database: in both, time passes.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._ended = runtime.event()
        self._beat_at = runtime.now()
        self._still = Spells()

    def start(self) -> None:
        self._beat_at = self._runtime.now()
        self._runtime.spawn(self._run, "fdbqueue-pulse")

    def end(self) -> None:
        self._ended.set()

    def stood_still_s(self, since: float) -> float:
        """Return the total time for which this process was stalled after `since`, by the wall clock."""
        # After a stall, the calling thread may wake before the thread of the pulse.
        return self._late_s() + self._still.total_s(since)

    def _run(self) -> None:
        try:
            while not self._ended.wait(limits.PULSE_S):
                if late_s := self._late_s():
                    self._still.add(self._runtime.now(), late_s)
                self._beat_at = self._runtime.now()
        except BaseException:
            # GreenletExit ends this thread. Without a successor the process would seem stalled.
            self._runtime.spawn(self._run, "fdbqueue-pulse")
            raise

    def _late_s(self) -> float:
        # By the wall clock, as leases end by it. The monotonic clock stops while a machine sleeps.
        late_s = self._runtime.now() - self._beat_at - limits.PULSE_S
        return late_s if late_s >= limits.LATE_MIN_S else 0.0
