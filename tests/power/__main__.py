"""`make power`: cut the power at many moments of recorded runs, and of the openings after them."""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from tests.power import runs
from tests.power.promises import SHAPES
from tests.power.runs import OPENED_AGAIN, judge, main_folder

CUTS = (400, 60, 20)
PROCESSES, STEPS, STEPS_OF_UPGRADE = 3, 40, 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", choices=SHAPES, help="of the journal's files; all in turn by default")
    given = parser.parse_args()
    until, seed, broken = time.monotonic() + 60 * given.minutes, given.seed, 0
    for shape in cycle([given.shape] if given.shape else SHAPES):
        broken += one(seed, shape)
        seed += 1
        if time.monotonic() > until:
            break
    print(f"{seed - given.seed} runs, {broken} broken promises")
    return int(broken > 0)


def one(seed: int, shape: str) -> int:
    """Judge one run; the number of broken promises."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        folder = Path(made)
        is_upgrade = seed % 5 == 4
        run = (
            runs.upgraded(folder, STEPS_OF_UPGRADE, shape)
            if is_upgrade
            else runs.recorded(folder, PROCESSES, STEPS, shape)
        )
        found = list(judge(run, folder, seed, *CUTS))
    what = "upgrade" if is_upgrade else "run"
    took_s = time.monotonic() - began_s
    print(f"seed {seed}: {what}, {shape}, {len(run.records)} moments, {images(CUTS)} images, {took_s:.0f} s")
    for each in found:
        print(f"seed {seed}, after {each.moments} records: {each.text}")
    return len(found)


def images(cuts: Sequence[int]) -> int:
    """The number of disks that are opened."""
    first, *later = cuts
    return first + (OPENED_AGAIN * images(later) if later else 0)


if __name__ == "__main__":
    sys.exit(main())
