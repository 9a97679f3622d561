"""`python -m tests.mutants.simulated SECONDS FIRST_SEED WORKLOAD...`: run seeds until one fails.

It ends after these seconds of CPU. Exit status 1 if a seed failed; then the last line names the workload.
"""

import argparse
import gc
import sys
import time
from itertools import count

from fdbqueue.testing import Case, all_workloads


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.simulated", description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("first", type=int)
    parser.add_argument("workload", nargs="+")
    given = parser.parse_args()
    return searched(given.seconds, given.first, given.workload)


def searched(seconds: float, first: int, workloads: list[str]) -> int:
    until = time.process_time() + seconds
    for seed in count(first):
        for name in workloads:
            if time.process_time() >= until:
                return 0
            if Case.of(all_workloads()[name], seed).run().failed:
                print(f"{name}, {seed - first + 1} seeds", flush=True)
                return 1
        gc.collect()
    raise AssertionError  # `count` has no end


if __name__ == "__main__":
    sys.exit(main())
