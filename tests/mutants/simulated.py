"""`python -m tests.mutants.simulated PATH SECONDS FIRST_SEED WORKLOAD...`: run seeds until one fails.

PATH is the file with the mutant: workloads near to it have more seeds. It ends after these seconds of CPU.
Exit status 1 if a seed failed; then the last line names the workload.
"""

import argparse
import gc
import sys
import time

from fdbqueue.testing.simulate import new_cases
from tests.system.nearness import NEAR_P, near, shares_of
from tests.system.workloads import all_workloads

_COLLECT_EVERY_RUNS = 50


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.simulated", description=__doc__)
    parser.add_argument("path")
    parser.add_argument("seconds", type=float)
    parser.add_argument("first", type=int)
    parser.add_argument("workload", nargs="+")
    given = parser.parse_args()
    return searched(given.path, given.seconds, given.first, given.workload)


def searched(path: str, seconds: float, first: int, workloads: list[str]) -> int:
    """The workloads share the time as those of `make simulate` do."""
    close = [name for name in workloads if name in near([path])]
    near_s = NEAR_P * seconds if close else 0.0
    return _searched(near_s, first, close) or _searched(seconds - near_s, first, workloads)


def _searched(seconds: float, first: int, workloads: list[str]) -> int:
    until = time.process_time() + seconds
    chosen = [all_workloads()[name] for name in workloads]
    for number, case in enumerate(new_cases(chosen, first, shares=shares_of) if chosen else ()):
        if time.process_time() >= until:
            break
        if case.run().failed:
            print(f"{case.workload.name}, {case.seed - first + 1} seeds", flush=True)
            return 1
        if number % _COLLECT_EVERY_RUNS == 0:
            gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
