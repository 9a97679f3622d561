"""`python -m tests.mutants.workload_recorder FILE WORKLOAD...`: the lines that seeds of workloads run."""

import argparse
import time
from pathlib import Path

from fdbqueue.testing import Case
from tests.mutants.recorder import lines_by_context, measuring, write
from tests.system.workloads import all_workloads

SEEDS_RECORDED = 4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.workload_recorder", description=__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("workload", nargs="+")
    given = parser.parse_args()
    record(given.result, given.workload)


def record(result: Path, workloads: list[str]) -> None:
    measured, seconds = measuring(result.with_suffix(".coverage")), {}
    measured.start()
    for name in workloads:
        began = time.monotonic()
        measured.switch_context(name)
        for seed in range(SEEDS_RECORDED):
            Case.of(all_workloads()[name], seed).run()
        seconds[name] = round((time.monotonic() - began) / SEEDS_RECORDED, 3)
    measured.stop()
    write(result, lines_by_context(measured), seconds)


if __name__ == "__main__":
    main()
