"""The long fuzz: `make fuzz MINUTES=60`, or `python -m tests.fuzz --minutes 60 --seed 7`.

First each option of the command line and each argument of the calls, in turn, with every hostile value; then
several arguments at once, chosen by the seed.
"""

import argparse
import faulthandler
import logging
import os
import random
import secrets
import sys
import tempfile
from functools import partial
from itertools import chain
from pathlib import Path
from time import monotonic

from tests.fuzz.commands import Program, lines
from tests.fuzz.search import at_random, in_turn, run, search
from tests.fuzz.world import World

HANGS_AFTER_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    logging.disable()  # of the troubles that callbacks and threads meet in the meantime
    with tempfile.TemporaryDirectory(prefix="fdbqueue-fuzz-", ignore_cleanup_errors=True) as folder:
        return searched(Path(folder), given.seed, given.minutes * 60)


def searched(folder: Path, seed: int, seconds: float) -> int:
    """The exit status: 1 if there are violations."""
    (folder / "working" / "directory" / "of").mkdir(parents=True)
    os.chdir(folder / "working" / "directory" / "of")
    began, chosen = monotonic(), random.Random(seed)

    def goes_on(end_s: float = seconds) -> bool:
        faulthandler.dump_traceback_later(HANGS_AFTER_S, exit=True)
        return monotonic() - began < end_s

    # In half of the time at most: a short run has to reach the calls.
    said = search(Program(folder).run, lines(chosen), partial(goes_on, seconds / 2))
    print(f"commands: {said}", flush=True)
    world = World(folder)
    found = search(partial(run, world), chain(in_turn(chosen), at_random(chosen)), goes_on)
    print(f"calls: {found}", flush=True)
    world.close()
    faulthandler.cancel_dump_traceback_later()
    return 1 if found.violations or said.violations else 0


if __name__ == "__main__":
    sys.exit(main())
