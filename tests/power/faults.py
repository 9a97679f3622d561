"""`make faults`: each change of a disk fails in turn, and then the power is cut, too.

With `--again`, the disks are those that a power cut has left, so the recovery of the next opening fails.
"""

import argparse
import errno
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from pathlib import Path

from tests.power.disk import Kind
from tests.power.promises import SHAPES
from tests.power.runs import (
    DATA,
    Run,
    failing,
    failing_again,
    judge,
    main_folder,
    moments,
    opened,
    played,
    recorded,
)

CUTS = 10
ERRORS = (errno.EIO, errno.ENOSPC)
TIMES = (1, 3)
PROCESSES, STEPS = 2, 8
"""Of a run before its power cut."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--first", type=int, default=1, help="the number of the first change that fails")
    parser.add_argument("--again", action="store_true", help="in the opening after a power cut")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        before = recorded(Path(made), PROCESSES, STEPS, given.shape) if given.again else None
        return explored(given.first, given.minutes, given.shape, before)


def explored(first: int, minutes: float, shape: str, before: Run | None) -> int:
    """Let each change fail in turn, from the first one on; the exit status."""
    until, runs, broken, fails = time.monotonic() + 60 * minutes, 0, 0, True
    for at in count(first):
        for error, times in product(ERRORS, TIMES):
            fails, found = fault(at, error, times, shape, before)
            for text in found:
                print(text, flush=True)
            runs, broken = runs + 1, broken + len(found)
        if not fails or time.monotonic() > until:
            break
    print(f"{runs} runs up to change {at}, {CUTS * runs} power cuts, {broken} broken promises")
    return int(broken > 0)


def fault(at: int, error: int, times: int, shape: str, before: Run | None = None) -> tuple[bool, list[str]]:
    """Let a disk fail: a new one, or one that a power cut in the run `before` has left.

    Return whether the run has had such a change, and the promises that it breaks.
    """
    name = f"change {at}, {errno.errorcode[error]}, {times} in a row"
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        folder, given = Path(made), (at, error, times, shape)
        run, status = failing(folder, *given) if before is None else cut_and_failing(before, folder, *given)
        found = [f"{name}: {text}" for text in broken_by(run, status, Path(made), at)]
    return Kind.FAILED in {record.kind for record in run.records}, found


def cut_and_failing(
    before: Run, folder: Path, at: int, error: int, times: int, shape: str
) -> tuple[Run, int]:
    """Cut the power of a run at a moment that depends on the fault; then let the disk fail."""
    root = folder / "cut" / "disk"
    root.mkdir(parents=True)
    choose = random.Random(f"{at} {error} {times}")
    _, disk, known = next(played(before, moments(before.records, 1, choose)))
    disk.cut(choose, root, before.pages)
    return failing_again(folder, root, known, at, error, times, shape)


def broken_by(run: Run, status: int, folder: Path, seed: int) -> Iterator[str]:
    """Tell the promises that a run on a failing disk breaks, at its end and after power cuts."""
    if status:
        yield f"exit status {status}: {run.failure[-1000:]}"
    yield from opened(run.root / DATA, run.expected, run.shape)
    for found in judge(replace(run, failure=""), folder, seed, CUTS):
        yield f"power cut after {found.moments} records: {found.text}"


if __name__ == "__main__":
    sys.exit(main())
