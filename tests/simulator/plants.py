"""Planted bugs in the simulator: those of our own simulation, and those of fresh eyes.

The second ones stand in `planted.txt` here, in the same form. `seeds_max` and `near` are those of our own
simulation; if none of these seeds finds the bug, `near` is -1. `simulator=` tells the first seed that finds
it in FoundationDB's simulator, behind the name of its file, or `none/40` after 40 seeds. Two lines, the first
with `=`, tell that of a bug of our own simulation.

`python -m tests.simulator.plants` prints a table of both, with the options that repeat a seed.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from tests.simulation.planted import PLANTS, Plant, listed, planted

VARIABLE = "FDBQUEUE_SIMULATOR_PLANT"
NONE = "none"
OWN_FILE = Path(__file__).with_name("planted.txt")
_sown = ExitStack()


class Finding(NamedTuple):
    """What found a planted bug: a seed of each world, or None."""

    plant: Plant
    file: str
    """The test file of `seed`; NONE if no seed found it, and then `seed` is their number."""
    seed: int

    @property
    def is_found(self) -> bool:
        return self.file != NONE

    @property
    def ours(self) -> int | None:
        return None if self.plant.near < 0 else self.plant.near

    @property
    def options(self) -> str:
        """Those of `python -m tests.simulator` that repeat the seed."""
        seed = f"--first {self.seed} --seeds 1 --files {self.file} --workloads {self.plant.workload}"
        return f"{seed} --plant {self.plant.what!r}"


def all_plants() -> Mapping[str, Plant]:
    return {plant.what: plant for plant in (*PLANTS, *own_plants())}


def own_plants() -> tuple[Plant, ...]:
    return tuple(listed(OWN_FILE))


def findings() -> Iterator[Finding]:
    """Of the bugs in `planted.txt` here, and of those of our own simulation that it names."""
    plants = all_plants()
    fields = re.findall(r"^(?:= )?(\w.*)\n  .*simulator=(\w+)/(\d+)", OWN_FILE.read_text(), re.MULTILINE)
    for what, file, seed in fields:
        yield Finding(plants[what], file, int(seed))


def sow() -> None:
    """Plant the bug that the environment of this process names, for good."""
    if what := os.environ.get(VARIABLE):
        _sown.enter_context(planted(all_plants()[what]))


def main() -> None:
    """Print the table."""
    print("| planted bug | our simulation | FoundationDB's simulator | to repeat it |\n|---|---|---|---|")
    for one in findings():
        ours = f"{NONE}/{one.plant.seeds_max}" if one.ours is None else one.ours
        options = one.options if one.is_found else ""
        print(f"| {one.plant.what} | {ours} | {one.file}/{one.seed} | {options} |")


if __name__ == "__main__":
    main()
