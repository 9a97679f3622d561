"""The marker fdbqueue_simulation: a workload is a test."""

import pytest

pytest_plugins = ["pytester"]

PROGRAM = """
import pytest
from fdbqueue import Queue, Subspace
from fdbqueue.testing import total_queue

letters = Queue(Subspace(("letters",)))

@pytest.mark.fdbqueue_simulation({options})
def test_letters(simulation, size):
    def sender(client):
        for step in range(size.steps):
            client.call("letters", "enqueue", [step], lambda step=step: letters.enqueue(client.db, step))

    for number in range(size.clients):
        simulation.client(sender, f"sender-{{number}}")
    return [{checker}]

def none_is_sent(trace, db):
    if list(letters.items(db, 1)):
        yield "a letter was sent"
"""
SOUND = 'lambda trace, db: [] if size.clients == 2 else ["not two clients"]'


def program(pytester: pytest.Pytester, checker: str, options: str = "seeds=3, clients=2, steps=1") -> None:
    pytester.makepyfile(PROGRAM.format(options=options, checker=checker))


def test_a_workload_that_holds_passes(pytester: pytest.Pytester) -> None:
    program(pytester, SOUND)

    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_workload_that_fails_shows_its_seed_and_its_trace(pytester: pytest.Pytester) -> None:
    program(pytester, "none_is_sent", 'seeds=50, clients=1, steps=1, never=("die",)')

    result = pytester.runpytest_subprocess()

    result.assert_outcomes(failed=1)
    result.stdout.re_match_lines(
        [r"seed \d+", r"pytest .*::test_letters --fdbqueue-seed \d+", ".*a letter was sent"]
    )
    assert "fdbqueue/testing" not in result.stdout.str()


def test_one_seed_is_repeated(pytester: pytest.Pytester) -> None:
    program(pytester, "lambda trace, db: [str(simulation.seed)]")

    result = pytester.runpytest_subprocess("--fdbqueue-seed", "7777")

    result.stdout.re_match_lines(["seed 7777"])


def test_the_number_of_seeds_is_an_option(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import pytest

seeds = []

@pytest.mark.fdbqueue_simulation(seeds=100, first=5, clients=1, steps=1)
def test_counted(simulation, size):
    seeds.append(simulation.seed)
    return []

def test_number():
    assert seeds == [5, 6, 7]
"""
    )

    pytester.runpytest_subprocess("--fdbqueue-seeds", "3").assert_outcomes(passed=2)


def test_an_unknown_option_of_the_marker_is_an_error(pytester: pytest.Pytester) -> None:
    program(pytester, SOUND, "tries=3")

    result = pytester.runpytest_subprocess()

    assert result.ret != 0
    assert "tries" in result.stdout.str()


def test_a_run_without_the_marker_loads_no_simulation(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import sys

def test_nothing():
    assert "fdbqueue.testing.simulation" not in sys.modules
    assert "greenlet" not in sys.modules
"""
    )

    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_the_marker_is_known_under_strict_markers(pytester: pytest.Pytester) -> None:
    program(pytester, SOUND)

    pytester.runpytest_subprocess("--strict-markers", "-m", "fdbqueue_simulation").assert_outcomes(passed=1)
