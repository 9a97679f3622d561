"""The planted bugs of the simulator fit their lines, and their findings are told. No server is needed."""

from pathlib import Path

import pytest

from tests.simulation.planted import PLANTS, planted
from tests.simulator.__main__ import FILES
from tests.simulator.plants import findings, own_plants
from tests.system.workloads import all_workloads

PAGE = Path(__file__).parents[2] / "docs" / "tests.md"
OWN = own_plants()
FOUND_BY_OURS = [plant for plant in OWN if plant.near >= 0]


@pytest.mark.parametrize("plant", OWN, ids=lambda plant: plant.what.replace(" ", "-"))
def test_a_planted_bug_fits_its_line(plant):
    healthy = plant.function.__code__
    with planted(plant):
        assert plant.function.__code__ is not healthy
    assert plant.function.__code__ is healthy
    assert plant.workload in all_workloads()


@pytest.mark.parametrize("plant", FOUND_BY_OURS, ids=lambda plant: plant.what.replace(" ", "-"))
def test_our_simulation_finds_the_bug_at_its_seed(plant):
    with planted(plant):
        assert plant.case(plant.near).run().failed
    assert not plant.case(plant.near).run().failed


def test_each_bug_has_its_findings():
    told = [one.plant.what for one in findings()]
    assert len(told) == len(set(told))
    assert {plant.what for plant in OWN} < set(told)
    assert not {plant.what for plant in OWN} & {plant.what for plant in PLANTS}


def test_a_finding_names_a_file_of_the_simulator():
    assert all((FILES / f"{one.file}.toml").is_file() for one in findings() if one.is_found)


def test_the_page_tells_how_many_are_found():
    told = list(findings())
    ours, simulator = sum(one.ours is not None for one in told), sum(one.is_found for one in told)
    words = " ".join(PAGE.read_text().split())
    assert f"It finds {simulator} of {len(told)}, our simulation {ours}:" in words
