"""Simulation catches bugs: each planted one is found within a stated number of seeds.

`python -m tests.simulation.test_planted` prints a table of them, with the number of seeds that each needs.
"""

import gc
from collections.abc import Callable, Iterable
from itertools import chain
from pathlib import Path

import pytest

from tests.simulation.planted import PLANTS, Plant, planted

PAGE = Path(__file__).parents[2] / "docs" / "tests.md"


def seed_that_finds(plant: Plant, seeds: Iterable[int]) -> int | None:
    """Return the first of `seeds` that finds the bug."""
    with planted(plant):
        for seed in seeds:
            if plant.case(seed).run().failed:
                return seed
    return None


@pytest.mark.in_turn(16)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.what.replace(" ", "-"))
def test_a_planted_bug_is_found(plant: Plant, rounds: Callable[[list[int], list[int]], list[int]]) -> None:
    """Without the bug, the seed that finds it is clean."""
    seed = seed_that_finds(plant, chain(rounds([plant.near], []), range(plant.seeds_max)))
    gc.collect()
    assert seed is not None, f"not found within {plant.seeds_max} seeds of {plant.workload}"
    assert plant.case(seed).run().violations == ()


def test_each_bug_has_its_line() -> None:
    for plant in PLANTS:
        with planted(plant):
            pass


def test_the_healthy_function_is_back_afterwards() -> None:
    plant = PLANTS[0]
    healthy = plant.function.__code__
    with planted(plant):
        assert plant.function.__code__ is not healthy
    assert plant.function.__code__ is healthy


def test_planting_into_a_missing_line_is_an_error() -> None:
    gone = Plant("nothing", PLANTS[0].function, "no such line", "", "recipe", 1)
    with pytest.raises(AssertionError, match="contains 'no such line' 0 times"), planted(gone):
        pass


def test_the_page_tells_the_number_of_planted_bugs() -> None:
    assert f"**{len(PLANTS)} planted bugs**" in PAGE.read_text()


def test_each_bug_has_a_description_of_its_own() -> None:
    assert len({plant.what for plant in PLANTS}) == len(PLANTS)


def main() -> None:
    """Print the table."""
    print("| bug | where | workload | seeds until found | at most |\n|---|---|---|---|---|")
    for plant in PLANTS:
        seed = seed_that_finds(plant, range(plant.seeds_max))
        found = None if seed is None else seed + 1
        print(f"| {plant.what} | `{plant.where}` | {plant.workload} | {found} | {plant.seeds_max} |")


if __name__ == "__main__":
    main()
