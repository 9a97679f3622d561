"""Judging mutants: in a copy, by tests that run the changed lines, and never twice."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.judges import Judgement, Judges, Limits, chosen_tests
from tests.mutants.ledger import Ledger, tally, verdicts
from tests.mutants.mutant import Mutant, mutants_of
from tests.mutants.readers import spread
from tests.mutants.rooms import REPOSITORY
from tests.mutants.workshop import Workshop, workshop
from tests.support import wait_until

FILE = "fdbqueue/__init__.py"
SOURCE = """def least(a, b):
    return a if a <= b else b
"""
TEST = """from fdbqueue import least

def test_the_least():
    assert least(1, 2) == 1
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One module, and one test that does not find all of its mutants."""
    made = tmp_path / "repository"
    (made / "fdbqueue").mkdir(parents=True)
    (made / FILE).write_text(SOURCE)
    (made / "test_least.py").write_text(TEST)
    return made


@pytest.fixture
def copy(repository: Path) -> Iterator[Workshop]:
    with workshop(repository) as made:
        yield made


class Known:
    """Readers that were recorded before."""

    def tests_of(self, mutant: Mutant) -> list[tuple[str, float]]:
        return [("test_least.py::test_the_least", 0.1)] if 2 in mutant.lines else []

    def workloads_of(self, _: Mutant) -> list[tuple[str, float]]:
        return []


def mutant(new: str) -> Mutant:
    [found] = [one for one in mutants_of(FILE, SOURCE) if one.new == new]
    return found


def test_a_mutant_is_planted_in_the_copy_only(repository: Path, copy: Workshop) -> None:
    program = ["-c", "import fdbqueue; print(fdbqueue.least(1, 2))"]
    assert copy.run(program, 60).output == "1\n"
    with copy.holding(mutant("(a >= b)")):
        assert copy.run(program, 60).output == "2\n"
        assert (repository / FILE).read_text() == SOURCE
    assert copy.run(program, 60).output == "1\n"
    assert sorted(path.name for path in repository.iterdir()) == ["fdbqueue", "test_least.py"]


def test_a_program_ends_with_its_time_and_its_children_too(copy: Workshop, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"import os, time; os.fork(); print(os.getpid(), file=open({str(pids)!r}, 'a')); time.sleep(60)"
    assert copy.run(["-c", program], 2).status is None
    started = [Path("/proc", pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(path.exists() for path in started))


@pytest.mark.parametrize(
    ("new", "by"),
    [
        ("(a >= b)", "test_least.py::test_the_least"),
        ("(a < b)", ""),
    ],
)
def test_tests_judge_a_mutant(copy: Workshop, new: str, by: str) -> None:
    changed, judges = mutant(new), Judges(copy, Known(), Limits())
    with copy.holding(changed):
        found = judges.tests(changed)
    assert (found.by, found.readers) == (by, 1)
    assert judges.simulation(changed).by == ""


def test_tests_that_fit_into_the_time_are_chosen() -> None:
    a, b, c = readers = [("a", 1.0), ("b", 4.0), ("c", 2.0)]
    assert chosen_tests(readers, 3.5) == [a, c]
    assert chosen_tests(readers, 0.5) == [a]
    assert chosen_tests([b, c], 0.5) == [b]


def test_a_test_of_each_file_comes_before_the_second_of_any() -> None:
    names = ["tests/a.py::1", "tests/a.py::2", "tests/home/b.py::1", "tests/home/b.py::2", "tests/home/c.py"]
    found = spread([(name, 0.1) for name in names], "tests/home/")
    assert [name for name, _ in found] == [names[2], names[4], names[3], names[0], names[1]]


def test_the_ledger_knows_the_last_judgement(tmp_path: Path) -> None:
    ledger, changed = Ledger(tmp_path / "new" / "ledger.jsonl"), mutant("(a >= b)")
    assert ledger.rows() == {}
    for by in ("", "a test"):
        ledger.add("line", changed, Judgement("tests", by, 1.0, 2))
    with (tmp_path / "new" / "ledger.jsonl").open("a") as file:
        file.write('{"id": "cut')
    [row] = ledger.rows().values()
    assert (row["id"], row["by"], row["old"], row["new"]) == (changed.id, "a test", "a <= b", "(a >= b)")


def test_a_tally_leaves_equivalent_survivors_out() -> None:
    def row(by: str) -> dict[str, Any]:
        return {"by": by}

    rows = {
        ("a", "tests"): row("t"),
        ("b", "tests"): row(""),
        ("b", "simulation"): row("w"),
        ("c", "tests"): row(""),
        ("d", "tests"): row(""),
    }
    found = tally("abcde", rows, {"c": {"verdict": "equivalent"}})
    assert (found.judged, found.by_tests, found.by_simulation, found.by_either) == (4, 1, 1, 2)
    assert (found.equivalent, found.open, found.share) == (1, ("d",), "67%")


def test_a_tally_without_a_judgement_has_no_share() -> None:
    assert tally("ab", {}, {}).share == "-"


def test_each_verdict_is_about_a_mutant_and_has_a_reason() -> None:
    said = verdicts()
    files = {f"fdbqueue/{id_.split(':')[0]}" for id_ in said}
    known = {one.id: one for file in files for one in mutants_of(file, (REPOSITORY / file).read_text())}
    assert [id_ for id_ in said if id_ not in known] == []
    for id_, verdict in said.items():
        assert (verdict["old"], verdict["new"]) == (known[id_].old, known[id_].new)
        assert verdict["verdict"] in ("equivalent", "test")
        assert len(verdict["why"]) > 10
