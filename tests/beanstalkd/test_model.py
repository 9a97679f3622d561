"""Two servers and a program on one database answer as a model of jobs. Planted bugs are found.

`planted.txt` has the form of that of the simulation (tests/simulation/planted.py); its seeds are those of
`run_world`.
"""

from itertools import chain
from pathlib import Path

import pytest

from tests.beanstalkd.model import run_world
from tests.commit import first_seed
from tests.simulation.planted import Plant, listed, planted

SEEDS = 10
PLANTS = list(listed(Path(__file__).with_name("planted.txt")))


def test_answers_are_those_of_the_model() -> None:
    for seed in range(first_seed(), first_seed() + SEEDS):
        run_world(seed)


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.what.replace(" ", "-") for plant in PLANTS])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    with planted(plant):
        assert any(map(_fails, chain([plant.near], range(plant.seeds_max))))


def _fails(seed: int) -> bool:
    try:
        run_world(seed)
    except Exception:  # that of an answer, or of the library
        return True
    return False
