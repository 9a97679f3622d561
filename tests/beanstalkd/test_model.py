"""Two servers and a program on one database answer as a model of jobs; planted bugs are found."""

from pathlib import Path

import pytest

from tests.beanstalkd.model import run_world
from tests.commit import first_seed

SEEDS = 10


def test_answers_are_those_of_the_model() -> None:
    for seed in range(first_seed(), first_seed() + SEEDS):
        run_world(seed)
