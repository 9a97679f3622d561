"""A number in a message stands before the right form of its noun."""

import pytest

from fdbqueue.core.errors import LimitInUse, QueueFull
from fdbqueue.core.visible import counted


@pytest.mark.parametrize(("count", "told"), [(0, "0 tasks"), (1, "1 task"), (2_000, "2,000 tasks")])
def test_only_one_thing_has_the_singular(count: int, told: str) -> None:
    assert counted(count, "task") == told


def test_the_message_of_an_error_counts_its_nouns() -> None:
    full = QueueFull(name="q", current_size=1, capacity=2, wanted=2)
    assert "no room for 2 tasks: it holds 1 task, its capacity is 2" in str(full)
    assert "is in use by 3 tasks:" in str(LimitInUse(name="q", used=3))
