"""Kills and stops under load, then a count: python -m fdbqueue.testing.soak [--minutes M] [--writers N]

N processes put, take and ack on one directory of the embedded engine. Each of them is killed (SIGKILL) and
stopped (SIGSTOP) at random moments, and another takes its place. At the end all are killed, and the
journals of the processes are compared with the database (soak_count.py). The exit status is 1 if an
acknowledged change is lost, a change has happened twice, or a counter is not exact; then the directory stays.
Ctrl-C ends it early, and counts.
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
from contextlib import contextmanager, suppress
from pathlib import Path

from fdbqueue.testing.soak_count import Count, counted
from fdbqueue.testing.soak_writer import JOURNALS, prepare, url_in

WRITERS = 8
LOOK_EVERY_S = 0.02
BEGIN_TIMEOUT_S = 120.0
# Longer than the leases at times: then the tasks of a stopped process go to others.
STOPPED_MAX_S = 4.0


class Soak:
    """The writers, and the signals that they are sent."""

    def __init__(self, directory: Path, writers: int, pause_s: float, seed: int) -> None:
        """One signal about every `pause_s` seconds."""
        self.kills = self.stops = 0
        self._directory = directory
        self._pause_s = pause_s
        self._random = random.Random(seed)
        self._begun = 0
        self._stopped: dict[int, float] = {}  # when the writer in that place is to go on
        self._writers = [self._begin() for _ in range(writers)]

    def _begin(self) -> "subprocess.Popen[bytes]":
        name = f"w{self._begun}"
        self._begun += 1
        command = [sys.executable, "-m", "fdbqueue.testing.soak_writer", str(self._directory), name]
        # In a session of its own: an interrupt of the terminal is for the soak, which kills the writers.
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def wait_until_begun(self) -> None:
        """Until each of the first writers has had an answer. Raises TimeoutError."""
        until = time.monotonic() + BEGIN_TIMEOUT_S
        while len(list((self._directory / JOURNALS).iterdir())) < len(self._writers):
            if time.monotonic() > until:
                raise TimeoutError(f"the writers have not begun after {BEGIN_TIMEOUT_S:g} s")
            self._require_alive()
            time.sleep(LOOK_EVERY_S)

    def run(self, seconds: float) -> None:
        until = next_at = time.monotonic()
        until += seconds
        while (now := time.monotonic()) < until:
            self._require_alive()
            self._go_on(now)
            if now >= next_at:
                self._signal_one(now)
                next_at = now + self._random.uniform(0, 2 * self._pause_s)
            time.sleep(LOOK_EVERY_S)

    def _require_alive(self) -> None:
        """Raises RuntimeError: a writer ends by no error."""
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
        """Kill all of them, in the middle of their work."""
        for place in range(len(self._writers)):
            self._kill(place)


@contextmanager
def soaking(directory: Path, writers: int, pause_s: float, seed: int) -> Iterator[Soak]:
    """No writer is left, however it ends."""
    soak = Soak(directory, writers, pause_s, seed)
    try:
        yield soak
    finally:
        soak.end()


def soaked(
    directory: Path, seconds: float, writers: int = WRITERS, pause_s: float = 0.35, seed: int = 0
) -> tuple[Soak, Count]:
    """Soak a new database in `directory`, and count. An interrupt ends it early."""
    prepare(directory)
    with soaking(directory, writers, pause_s, seed) as soak, suppress(KeyboardInterrupt):
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
    parser.add_argument("--seed", type=int, help="of the signals; not of the writers, which run as they may")
    parser.add_argument("--directory", help="where the database is made; a disk, to soak fsync, too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
