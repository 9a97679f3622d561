"""`python -m tests.system`: `python -m fdbqueue.testing.simulate` with the workloads of fdbqueue.

`--near PATH` names a changed file: the workloads near to it have two thirds of the time for themselves.
`--list` prints each workload with the first sentence about it.
"""

import argparse
import inspect
import sys
from collections.abc import Iterator, Sequence

from fdbqueue.testing.simulate import main
from tests.system.nearness import NEAR_P, ROOMS, near, shares_of
from tests.system.workloads import all_workloads


def run(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.system", add_help=False)
    parser.add_argument("--near", action="append", default=[])
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--list", action="store_true")
    options, others = parser.parse_known_args(arguments)
    if options.list:
        print("\n".join(listed()))
        return 0
    far = [path for path in options.near if not near([path])]
    if far:
        parser.error(f"no workload is near to {far[0]!r}: name a file below one of {', '.join(ROOMS)}")
    all_workloads()
    minutes = options.minutes or 1.0
    if not options.near:
        return main(others if options.minutes is None else [*others, f"--minutes={minutes}"], shares_of)
    names = [f"--workload={name}" for name in sorted(near(options.near))]
    return main([*others, *names, f"--minutes={minutes * NEAR_P}"], shares_of) or main(
        [*others, f"--minutes={minutes * (1 - NEAR_P)}"], shares_of
    )


def listed() -> Iterator[str]:
    """Each workload with the first paragraph of its docstring, or else of its module's."""
    for name, workload in sorted(all_workloads().items()):
        text = inspect.getdoc(workload.build) or inspect.getdoc(inspect.getmodule(workload.build)) or ""
        paragraph, _, _ = text.partition("\n\n")
        yield f"{name:<20} {' '.join(paragraph.split())}"


if __name__ == "__main__":
    sys.exit(run())
