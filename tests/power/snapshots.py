"""`make snapshots`: file-system snapshots under load are opened, as another machine would, and in place.

Processes work on a directory, and are killed at random moments. Changes that were acknowledged before a
snapshot must be in it, and none that began after it. It needs root, btrfs and loop devices.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, cycle
from pathlib import Path

from tests.power import disk, recording, volumes
from tests.power.child import told_by_child
from tests.power.promises import SHAPES, Expected
from tests.power.runs import DATA, opened
from tests.power.volumes import Volume

PROCESSES, STEPS = 3, 1 << 30
SNAPSHOTS = 8
KILLS_MAX = 3
"""Before each snapshot."""
PAUSE_MAX_S = 0.6
BEGIN_LIMIT_S = 60.0
_DATA_FILE = "data.mdb"


@dataclass(frozen=True)
class Snapshot:
    """A snapshot, and the sizes of the notes before and after it was taken."""

    name: str
    before_bytes: int
    after_bytes: int


class Load:
    """Processes that work on a directory until they are killed."""

    def __init__(self, directory: Path, log: Path, shape: str, rng: random.Random) -> None:
        self._words = [str(directory), str(log)]
        self._shape = shape
        self._rng = rng
        self._begun = count()
        self.kills = 0
        self._processes = [self._begin() for _ in range(PROCESSES)]

    def _begin(self) -> "subprocess.Popen[bytes]":
        name = f"process-{next(self._begun)}"
        words = [sys.executable, "-m", "tests.power.program", *self._words, name, str(STEPS), self._shape]
        return subprocess.Popen(words, cwd=recording.REPOSITORY, env=recording.importing())

    def kill_some(self) -> None:
        """Kill some processes, after a pause each; others begin in their places."""
        for _ in range(self._rng.randint(1, KILLS_MAX)):
            time.sleep(self._rng.uniform(0, PAUSE_MAX_S))
            place = self._rng.randrange(PROCESSES)
            self._kill(place)
            self._processes[place] = self._begin()
            self.kills += 1

    def end(self) -> None:
        for place in range(PROCESSES):
            self._kill(place)

    def _kill(self, place: int) -> None:
        status = self._processes[place].poll()
        if status is not None:
            raise RuntimeError(f"a process has ended by itself, with status {status}")
        self._processes[place].kill()
        self._processes[place].wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power.snapshots", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=volumes.KINDS, help="of the file system; all in turn by default")
    parser.add_argument("--snapshots", type=int, default=SNAPSHOTS, help="of each run")
    parser.add_argument("--apart", action="store_true", help="in namespaces of its own already")
    given = parser.parse_args()
    reason = volumes.missing()
    if reason is not None:
        print(f"no snapshots can be taken: {reason}")
        return 0
    if not given.apart:
        return _apart(sys.argv[1:])
    kinds = [given.kind] if given.kind else [kind for kind in volumes.KINDS if not volumes.missing(kind)]
    until, seed, broken = time.monotonic() + 60 * given.minutes, given.seed, 0
    for kind in cycle(kinds):
        broken += one(seed, kind, given.snapshots)
        seed += 1
        if time.monotonic() > until:
            break
    print(f"{seed - given.seed} runs, {broken} broken promises")
    return int(broken > 0)


def _apart(words: Sequence[str]) -> int:
    """Run this program where its mounts and processes end with it, however it ends."""
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    program = [*apart, sys.executable, "-m", "tests.power.snapshots", "--apart", *words]
    return subprocess.run(program, cwd=recording.REPOSITORY, env=recording.importing()).returncode


def one(seed: int, kind: str, snapshots: int) -> int:
    """Judge the snapshots of one run; the number of broken promises."""
    began_s, shape = time.monotonic(), sorted(SHAPES)[seed % len(SHAPES)]
    with tempfile.TemporaryDirectory(prefix="fdbqueue-snapshots-") as made:
        found = list(judged(Path(made), kind, shape, seed, snapshots))
    took_s = time.monotonic() - began_s
    print(f"seed {seed}: {kind}, {shape}, {snapshots} snapshots, {took_s:.0f} s", flush=True)
    for text in found:
        print(f"seed {seed}: {text}", flush=True)
    return len(found)


def judged(folder: Path, kind: str, shape: str, seed: int, snapshots: int) -> Iterator[str]:
    """Take snapshots of a run, and tell the promises that they break."""
    log = folder / "log"
    with volumes.made(kind, folder) as volume:
        taken = _taken(volume, log, shape, random.Random(seed), snapshots)
        for one in taken:
            with volume.opened(one.name) as place:
                for path in (_copied(place / DATA, folder / one.name), place / DATA):
                    yield from _broken(path, _expected(log, one), shape)
        volume.roll_back(taken[-1].name)
        yield from _broken(volume.path / DATA, _expected(log, taken[-1]), shape)


def _copied(path: Path, to: Path) -> Path:
    """Copy a directory to another file system."""
    subprocess.run(["cp", "-a", path, to], check=True)
    return to


def _broken(path: Path, expected: Expected, shape: str) -> Iterator[str]:
    """Open a directory; its file of LMDB must not be believed, so a recovery makes it anew."""
    found = (path / _DATA_FILE).stat().st_ino
    texts = told_by_child(partial(opened, path, expected, shape))
    if (path / _DATA_FILE).stat().st_ino == found:
        texts.append(f"{_DATA_FILE} was believed")
    return (f"{path}: {text}" for text in texts)


def _taken(volume: Volume, log: Path, shape: str, rng: random.Random, number: int) -> list[Snapshot]:
    load = Load(volume.path / DATA, log, shape, rng)
    try:
        _wait_for_notes(log)
        # A load of an hour would have its mark of the boot on the disk, although no flush covers that.
        subprocess.run(["sync", "--file-system", volume.path], check=True)
        return [_take(volume, log, load, f"snapshot-{n}") for n in range(number)]
    finally:
        load.end()


def _wait_for_notes(log: Path) -> None:
    until = time.monotonic() + BEGIN_LIMIT_S
    while not log.exists() or b'"done"' not in log.read_bytes():
        if time.monotonic() > until:
            raise TimeoutError("the load has not begun")
        time.sleep(0.05)


def _take(volume: Volume, log: Path, load: Load, name: str) -> Snapshot:
    load.kill_some()
    before_bytes = log.stat().st_size
    volume.snap(name)
    return Snapshot(name, before_bytes, log.stat().st_size)


def _expected(log: Path, snapshot: Snapshot) -> Expected:
    """What was done before the snapshot is there; what had begun by its end may be there."""
    expected, at = Expected(), 0
    for record in disk.read(log):
        at += record.size_bytes
        state, *rest = record.note
        if at <= (snapshot.before_bytes if state == "done" else snapshot.after_bytes):
            expected.hear(state, *rest)
    return expected


if __name__ == "__main__":
    sys.exit(main())
