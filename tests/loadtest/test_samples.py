"""Samples and counters on their way to a plot."""

from fdbqueue.core.observing import Counters
from loadtest.samples import Sample, conflicts_by_consumers, rates_of, together


def sample(second, consumers, operations, conflicts):
    return Sample(second, consumers, consumers, 0.0, 0.0, 0.0, operations, conflicts)


def test_conflicts_are_set_against_the_consumers_that_were_there():
    """A second in which consumers came or went belongs to neither number."""
    samples = [
        sample(0, 1, 0, 0),
        sample(1, 1, 100, 0),
        sample(2, 4, 200, 90),
        sample(3, 4, 300, 140),
        sample(4, 4, 400, 190),
    ]
    assert conflicts_by_consumers(samples) == [(1, 0.0), (4, 0.5)]


def test_a_rate_is_taken_over_three_seconds():
    """From the first sample on, as far back as there is one."""
    samples = [sample(second, 1, operations, 0) for second, operations in enumerate([0, 90, 90, 90, 90, 400])]
    assert rates_of(samples) == [0, 90, 45, 30, 0, 310 / 3]


def test_counters_of_processes_add_up():
    """Field by field."""
    one, other = Counters(conflicts=2, retries=3, wake_ups=1), Counters(conflicts=1, requests=5)
    assert together([one, other]) == Counters(conflicts=3, retries=3, requests=5, wake_ups=1)
