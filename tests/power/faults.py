"""`make faults`: each change of a disk fails in turn, and then the power is cut, too."""

import argparse
import errno
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, product
from pathlib import Path

from tests.power.judge import judge, main_folder, opened
from tests.power.records import Kind
from tests.power.runs import DATA, Run, failing
from tests.power.shape import SHAPES

CUTS = 10
ERRORS = (errno.EIO, errno.ENOSPC)
TIMES = (1, 3)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    parser.add_argument("--first", type=int, default=1, help="the number of the first change that fails")
    given = parser.parse_args()
    until, runs, broken, fails = time.monotonic() + 60 * given.minutes, 0, 0, True
    for at in count(given.first):
        for error, times in product(ERRORS, TIMES):
            fails, found = fault(at, error, times, given.shape)
            for text in found:
                print(text, flush=True)
            runs, broken = runs + 1, broken + len(found)
        if not fails or time.monotonic() > until:
            break
    print(f"{runs} runs up to change {at}, {CUTS * runs} power cuts, {broken} broken promises")
    return int(broken > 0)


def fault(at: int, error: int, times: int, shape: str) -> tuple[bool, list[str]]:
    """Let a disk fail. True if the run has had such a change; and the promises that it breaks."""
    name = f"change {at}, {errno.errorcode[error]}, {times} in a row"
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        run, status = failing(Path(made), at, error, times, shape)
        found = [f"{name}: {text}" for text in broken_by(run, status, Path(made), at)]
    return Kind.FAILED in {record.kind for record in run.records}, found


def broken_by(run: Run, status: int, folder: Path, seed: int) -> Iterator[str]:
    """Tell the promises that a run on a failing disk breaks, at its end and after power cuts."""
    if status:
        yield f"exit status {status}: {run.failure[-1000:]}"
    yield from opened(run.root / DATA, run.expected, run.shape)
    for found in judge(replace(run, failure=""), folder, seed, CUTS):
        yield f"power cut after {found.moments} records: {found.text}"


if __name__ == "__main__":
    sys.exit(main())
