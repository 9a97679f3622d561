"""`make power`: cut the power at many moments of recorded runs, each of them a new one."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.power.judge import judge, main_folder, recorded

_CUTS_PER_RUN = 400
_PROCESSES, _STEPS = 3, 40


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.power", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    until, seed, broken = time.monotonic() + 60 * given.minutes, given.seed, 0
    while time.monotonic() < until:
        broken += _one(seed)
        seed += 1
    runs = seed - given.seed
    print(f"{runs} runs, {_CUTS_PER_RUN * runs} power cuts, {broken} broken promises")
    return int(broken > 0)


def _one(seed: int) -> int:
    with tempfile.TemporaryDirectory(dir=main_folder()) as made:
        folder = Path(made)
        run = recorded(folder, _PROCESSES, _STEPS)
        found = list(judge(run, folder, _CUTS_PER_RUN, seed))
    for one in found:
        print(f"seed {seed}, after {one.moment} records: {one.text}")
    return len(found)


if __name__ == "__main__":
    sys.exit(main())
