"""Faults for the demo's workers: SIGKILL at any moment, SIGSTOP for longer than a lease."""

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

FIRST_STALL_S, FIRST_KILL_S = 0.5, 1.0
STALLED_EVERY_S, KILLED_EVERY_S = 9.0, 4.0
STALL_S = 6.0


class FaultInjector:
    """Kills and stalls processes. Call `tick` several times a second with the working processes."""

    def __init__(self) -> None:
        self.kills = 0
        self.stalls = 0
        """Number of processes that were stopped for longer than their leases, and went on."""
        self._kill_at_s = self._stall_at_s = float("inf")
        self._stopped: dict[int, float] = {}

    def tick(self, processes: Sequence[int]) -> None:
        now_s = time.monotonic()
        self._go_on(now_s)
        if processes and self._stall_at_s == float("inf"):
            self._stall_at_s, self._kill_at_s = now_s + FIRST_STALL_S, now_s + FIRST_KILL_S
        running = [process for process in processes if process not in self._stopped]
        if running and now_s >= self._stall_at_s:
            self._stall_at_s = now_s + _about(STALLED_EVERY_S)
            self._stop(random.choice(running), now_s)
        elif running and now_s >= self._kill_at_s:
            self._kill_at_s = now_s + _about(KILLED_EVERY_S)
            self.kills += _signalled(random.choice(running), signal.SIGKILL)

    def end(self) -> None:
        """Let all stopped processes go on."""
        self._go_on(float("inf"))

    def _stop(self, process: int, now_s: float) -> None:
        if _signalled(process, signal.SIGSTOP):
            self._stopped[process] = now_s + STALL_S

    def _go_on(self, now_s: float) -> None:
        for process, until_s in list(self._stopped.items()):
            if now_s >= until_s:
                del self._stopped[process]
                self.stalls += _signalled(process, signal.SIGCONT)


def _about(seconds: float) -> float:
    return seconds * random.uniform(0.5, 1.5)


def _signalled(process: int, number: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, number)
        return True
    return False
