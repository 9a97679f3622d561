"""Our replies are those of beanstalkd, over random sequences of commands.

FDBQUEUE_TEST_BEANSTALKD=10000 sets the number of sequences.
"""

import os
from random import Random

import pytest

from tests.beanstalkd.client import Served
from tests.beanstalkd.compared import differences
from tests.commit import first_seed

SEQUENCES = int(os.environ.get("FDBQUEUE_TEST_BEANSTALKD", "40"))
STEPS = 60


@pytest.mark.timeout(300 + SEQUENCES)
def test_replies_are_those_of_beanstalkd(served: Served, original: Served) -> None:
    for seed in range(first_seed(), first_seed() + SEQUENCES):
        found = differences(served, original, Random(seed), STEPS)
        assert not found, (seed, *found)
