"""A runtime for tests of programs: its clock can be set forward, so that no test waits for a delay."""

from fdbqueue.core.runtime import RealRuntime


class ShiftedRuntime(RealRuntime):
    """Tells the wall-clock time, and after `skip_to` a later one. Intervals stay real ones."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def now(self) -> float:
        return RealRuntime.now() + self._ahead_s

    def skip_to(self, time: float) -> None:
        """Set the clock forward to `time`, in seconds since the epoch. It never goes back."""
        self._ahead_s += max(0.0, time - self.now())
