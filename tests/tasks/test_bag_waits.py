"""No task of a bag waits for ever, and takers of a bag rarely conflict: short runs of benchmarks/bag.py."""

import math

import pytest

from benchmarks.bag import conflicts_each, longest_wait

BACKLOG = 300


@pytest.mark.parametrize("seed", range(4))
def test_a_walk_meets_the_bound_of_the_page(seed: int) -> None:
    """The mean is at most e times the backlog, and the variance of each delay at most 0.77."""
    most = math.e * BACKLOG + 10 * math.sqrt(0.77 * BACKLOG)
    assert longest_wait(seed, 20 * BACKLOG, BACKLOG) <= most


@pytest.mark.parametrize("takers", [4, 16])
def test_many_walks_leave_no_task_behind(takers: int) -> None:
    assert longest_wait(0, 40 * BACKLOG, BACKLOG, takers) <= 15 * BACKLOG


def test_random_starts_would_leave_tasks_behind() -> None:
    waits = [longest_wait(seed, 40 * BACKLOG, BACKLOG, walks=False) for seed in range(3)]
    assert min(waits) > 10 * BACKLOG


def test_takers_of_a_bag_rarely_conflict() -> None:
    assert conflicts_each("fifo", 4, 100, 80) == 3
    assert conflicts_each("bag", 4, 1_000, 400) < 0.05
