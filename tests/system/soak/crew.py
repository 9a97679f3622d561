"""The processes of a soak, and the signals that are sent to them."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.system.soak.client import NOTES
from tests.system.soak.rules import Strike

LOOK_EVERY_S = 0.02
BEGIN_TIMEOUT_S = 240.0
# Longer than a lease, so that tasks of a stopped process go to another one now and then.
STOPPED_MAX_S = 4.0


class Crew:
    """Processes. About every `pause_s` seconds one is stopped or killed; a killed one is replaced."""

    def __init__(
        self,
        directory: Path,
        processes: int,
        pause_s: float,
        seed: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: the variables of the processes, instead of those of this one."""
        self.strikes: list[Strike] = []
        self._interrupted = False
        self._directory = directory
        self._pause_s = pause_s
        self._environment = environment
        self._random = random.Random(seed)
        self._begun = 0
        self._stopped: dict[int, tuple[float, int]] = {}
        """For each place of a stopped process, the time at which it goes on, and the begin of its stop."""
        self._names = [""] * processes
        self._processes = [self._begin(place) for place in range(processes)]

    @property
    def kills(self) -> int:
        return sum(strike.end_us is None for strike in self.strikes)

    @property
    def stops(self) -> int:
        return len(self.strikes) - self.kills

    def _begin(self, place: int) -> "subprocess.Popen[bytes]":
        name = self._names[place] = f"w{self._begun}"
        self._begun += 1
        program = [sys.executable, "-m", "tests.system.soak.process"]
        command = [*program, str(self._directory), name, str(os.getpid())]
        # In a session of its own, so that Ctrl-C reaches only the soak, which kills the processes.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, env=self._environment, start_new_session=True
        )

    def wait_until_begun(self) -> None:
        """Return once each of the first processes has begun its notes, or after an interrupt.

        Raises: TimeoutError.
        """
        until = time.monotonic() + BEGIN_TIMEOUT_S
        while not self._interrupted and not all(map(self._has_begun, self._names)):
            if time.monotonic() > until:
                raise TimeoutError(f"the processes have not begun after {BEGIN_TIMEOUT_S:g} s")
            self._require_alive()
            time.sleep(LOOK_EVERY_S)

    def _has_begun(self, name: str) -> bool:
        return (self._directory / NOTES / name).exists()

    def interrupt(self) -> None:
        """Make `run` return. A signal handler may call it: an exception there could lose a new process."""
        self._interrupted = True

    def run(self, seconds: float) -> None:
        now = time.monotonic()
        until, next_at = now + seconds, now + self._next_s()
        while not self._interrupted and (now := time.monotonic()) < until:
            self._require_alive()
            self._go_on(now)
            if now >= next_at:
                self._strike_one(now)
                next_at = now + self._next_s()
            time.sleep(LOOK_EVERY_S)

    def _next_s(self) -> float:
        return self._random.uniform(0, 2 * self._pause_s)

    def _require_alive(self) -> None:
        """Raises: RuntimeError if a process has ended by itself: no error may end one."""
        for name, process in zip(self._names, self._processes, strict=True):
            status = process.poll()
            if status is not None:
                raise RuntimeError(f"the process {name} has ended by itself, with status {status}")

    def _strike_one(self, now: float) -> None:
        begun = [place for place, name in enumerate(self._names) if self._has_begun(name)]
        if not begun:
            return  # on a busy machine, a process might else be killed whenever it begins
        place = self._random.choice(begun)
        if self._random.random() < 0.5:
            self._kill(place)
            self._processes[place] = self._begin(place)
        elif place not in self._stopped:
            self._stopped[place] = now + self._random.uniform(0.0, STOPPED_MAX_S), _now_us()
            self._processes[place].send_signal(signal.SIGSTOP)

    def _kill(self, place: int) -> None:
        self._note_end_of_stop(place)
        self.strikes.append(Strike(self._names[place], _now_us()))
        self._processes[place].kill()
        self._processes[place].wait()

    def _note_end_of_stop(self, place: int) -> None:
        if place in self._stopped:
            _, begin_us = self._stopped.pop(place)
            self.strikes.append(Strike(self._names[place], begin_us, _now_us()))

    def _go_on(self, now: float) -> None:
        for place in [place for place, (until, _) in self._stopped.items() if until <= now]:
            self._processes[place].send_signal(signal.SIGCONT)
            self._note_end_of_stop(place)

    def end(self) -> None:
        """Kill all processes in the middle of their work."""
        for place in range(len(self._processes)):
            self._kill(place)


def _now_us() -> int:
    return round(time.monotonic() * 1_000_000)


@contextmanager
def working(crew: Crew) -> Iterator[Crew]:
    """Kill all processes at the end, after an error too. SIGINT ends the run early."""
    earlier = signal.signal(signal.SIGINT, lambda *_: crew.interrupt())
    try:
        yield crew
    finally:
        signal.signal(signal.SIGINT, earlier)
        crew.end()
