"""The real runtime: it must share no random state with its program."""

import random

from fdbqueue.core.runtime import RealRuntime


def test_its_randomness_is_its_own() -> None:
    """A program's seed does not set it, and it does not use up the program's sequence."""
    before = random.getstate()
    drawn = {RealRuntime.random() for _ in range(10)}
    assert random.getstate() == before
    assert len(drawn) == 10
    assert all(0.0 <= number < 1.0 for number in drawn)
