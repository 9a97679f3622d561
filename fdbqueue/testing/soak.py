"""Kills and stops under load, then a count: python -m fdbqueue.testing.soak [--minutes M] [--writers N]

N processes put, take and ack on one directory of the embedded engine. At random moments one of them is
stopped (SIGSTOP) for a while, or killed (SIGKILL) and replaced. At the end all are killed, and their notes
are compared with the database (soak_count.py). The exit status is 1 if an acknowledged change is lost, a
change has happened twice, or a counter is wrong; then the directory stays. Ctrl-C ends it early, and counts.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from fdbqueue.testing.soak_count import Count, counted
from fdbqueue.testing.soak_writer import NOTES, prepare, url_in

WRITERS = 8
LOOK_EVERY_S = 0.02
BEGIN_TIMEOUT_S = 120.0
# Longer than a lease, so that tasks of a stopped process go to another one now and then.
STOPPED_MAX_S = 4.0


class Soak:
    """The writer processes of a soak, and the signals sent to them."""

    def __init__(self, directory: Path, writers: int, pause_s: float, seed: int) -> None:
        """Start the writers. `run` sends a signal about every `pause_s` seconds."""
        self.kills = self.stops = 0
        self._interrupted = False
        self._directory = directory
        self._pause_s = pause_s
        self._random = random.Random(seed)
        self._begun = 0
        self._stopped: dict[int, float] = {}  # for each stopped writer, the time at which it goes on
        self._writers = [self._begin() for _ in range(writers)]

    def _begin(self) -> "subprocess.Popen[bytes]":
        name = f"w{self._begun}"
        self._begun += 1
        command = [sys.executable, "-m", "fdbqueue.testing.soak_writer", str(self._directory), name]
        # In a session of its own, so that Ctrl-C reaches only the soak, which kills the writers.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_until_begun(self) -> None:
        """Return once each of the first writers has begun its notes, or after an interrupt.

        Raises: TimeoutError.
        """
        until = time.monotonic() + BEGIN_TIMEOUT_S
        while not self._interrupted and self._notes() < len(self._writers):
            if time.monotonic() > until:
                raise TimeoutError(f"the writers have not begun after {BEGIN_TIMEOUT_S:g} s")
            self._require_alive()
            time.sleep(LOOK_EVERY_S)

    def _notes(self) -> int:
        return len(list((self._directory / NOTES).iterdir()))

    def interrupt(self) -> None:
        """Make `run` return. A signal handler may call it: an exception there could lose a new writer."""
        self._interrupted = True

    def run(self, seconds: float) -> None:
        until = next_at = time.monotonic()
        until += seconds
        while not self._interrupted and (now := time.monotonic()) < until:
            self._require_alive()
            self._go_on(now)
            if now >= next_at:
                self._signal_one(now)
                next_at = now + self._random.uniform(0, 2 * self._pause_s)
            time.sleep(LOOK_EVERY_S)

    def _require_alive(self) -> None:
        """Raises: RuntimeError if a writer has ended by itself: no error may end one."""
        for writer in self._writers:
            status = writer.poll()
            if status is not None:
                raise RuntimeError(f"a writer has ended by itself, with status {status}")

    def _signal_one(self, now: float) -> None:
        place = self._random.randrange(len(self._writers))
        if self._random.random() < 0.5:
            self._kill(place)
            self._writers[place] = self._begin()
            self.kills += 1
        elif place not in self._stopped:
            self._writers[place].send_signal(signal.SIGSTOP)
            self._stopped[place] = now + self._random.uniform(0.0, STOPPED_MAX_S)
            self.stops += 1

    def _kill(self, place: int) -> None:
        self._stopped.pop(place, None)
        self._writers[place].kill()
        self._writers[place].wait()

    def _go_on(self, now: float) -> None:
        for place in [place for place, until in self._stopped.items() if until <= now]:
            del self._stopped[place]
            self._writers[place].send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill all writers in the middle of their work."""
        for place in range(len(self._writers)):
            self._kill(place)


@contextmanager
def interrupting(soak: Soak) -> Iterator[None]:
    """Let SIGINT end the soak early, and its count happen."""
    earlier = signal.signal(signal.SIGINT, lambda *_: soak.interrupt())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, earlier)


@contextmanager
def soaking(directory: Path, writers: int, pause_s: float, seed: int) -> Iterator[Soak]:
    """Run a soak, and kill all writers at its end, after an error too."""
    soak = Soak(directory, writers, pause_s, seed)
    try:
        yield soak
    finally:
        soak.end()


def soaked(
    directory: Path, seconds: float, writers: int = WRITERS, pause_s: float = 0.35, seed: int = 0
) -> tuple[Soak, Count]:
    """Soak a new database in `directory`, and count. An interrupt ends the soak early."""
    prepare(directory)
    with soaking(directory, writers, pause_s, seed) as soak, interrupting(soak):
        soak.wait_until_begun()
        soak.run(seconds)
    return soak, counted(directory)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="fdbqueue-soak-", dir=options.directory))
    print(f"seed {seed}, {url_in(directory)}", flush=True)
    soak, count = soaked(directory, options.minutes * 60, options.writers, options.pause, seed)
    print(f"{soak.kills} kills, {soak.stops} stops\n{count}")
    if count.errors:
        return 1
    shutil.rmtree(directory)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fdbqueue.testing.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--writers", type=int, default=WRITERS)
    parser.add_argument("--pause", type=float, default=0.35, help="seconds between two signals, on average")
    parser.add_argument("--seed", type=int, help="of the signals; the order of the writers is not repeatable")
    parser.add_argument("--directory", help="where to make the database; choose a disk to test flushes")
    return parser


if __name__ == "__main__":
    sys.exit(main())
