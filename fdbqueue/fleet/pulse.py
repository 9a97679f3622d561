"""Pulse: measures the time for which this process was stalled.

One thread does nothing but wake at fixed times. If it wakes late, the process was stopped or starved, or its
machine slept. Without it, a stall could not be told from a wait for the database: in both, time passes.
"""

from fdbqueue import limits
from fdbqueue.runtime import Runtime
from fdbqueue.sessions.silence import Spells


class Pulse:
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
            self._beat_until_ended()
        except BaseException:
            # GreenletExit ends this thread. Without a successor the process would seem stalled.
            self._runtime.spawn(self._run, "fdbqueue-pulse")
            raise

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(limits.PULSE_S):
            if late_s := self._late_s():
                self._still.add(self._runtime.now(), late_s)
            self._beat_at = self._runtime.now()

    def _late_s(self) -> float:
        # By the wall clock, as leases end by it. The monotonic clock stops while a machine sleeps.
        late_s = self._runtime.now() - self._beat_at - limits.PULSE_S
        return late_s if late_s >= limits.LATE_MIN_S else 0.0
