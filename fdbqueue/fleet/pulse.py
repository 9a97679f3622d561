"""Pulse: whether this process has been running all the while, or stood still.

One thread that does nothing but wake. What it wakes late, the process was stopped, or starved, or its machine
asleep. Only so can waiting for a database be told from not having run: both are time that has passed.
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
        """For how long this process has not been running, in all, by what it woke late after `since`, wall
        clock.
        """
        # Who asks may have woken before the pulse did.
        return self._late_s() + self._still.total_s(since)

    def _run(self) -> None:
        try:
            self._beat_until_ended()
        except BaseException:
            # GreenletExit, say: without another the process would seem to stand still.
            self._runtime.spawn(self._run, "fdbqueue-pulse")
            raise

    def _beat_until_ended(self) -> None:
        while not self._ended.wait(limits.PULSE_S):
            if late_s := self._late_s():
                self._still.add(self._runtime.now(), late_s)
            self._beat_at = self._runtime.now()

    def _late_s(self) -> float:
        # By the wall clock, as leases end by it: the other one stops while a machine sleeps.
        late_s = self._runtime.now() - self._beat_at - limits.PULSE_S
        return late_s if late_s >= limits.LATE_MIN_S else 0.0
