"""The mutants of a piece of source; they are judged in a copy, by tests that run their lines, and once."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mutants.judges import Judgement, Judges, Ledger, Limits, chosen_tests, tally, verdicts
from tests.mutants.mutant import REPOSITORY, ROOMS, Mutant, files_of, mutants_in, mutants_of
from tests.mutants.readers import Workshop, spread, workshop
from tests.simulation.planted import PLANTS
from tests.support import wait_until

SAMPLE = "fdbqueue/core/line/decision.py"


def of(body: str, head: str = "def f(tr, a, b, c):") -> dict[str, set[str]]:
    """The mutants of a function by operator: each its changed text, without what it does to the whole."""
    found: dict[str, set[str]] = {}
    for mutant in mutants_of("m.py", f"{head}\n    {body}\n"):
        found.setdefault(mutant.operator, set()).add(mutant.new.strip("()"))
    return found


@pytest.mark.parametrize(
    ("body", "operator", "changed"),
    [
        ("g(a < b)", "compare", {"a <= b", "a > b"}),
        ("g(a == b)", "compare", {"a != b"}),
        ("g(a in b)", "compare", {"a not in b"}),
        ("g(a and b)", "boolean", {"a or b", "a", "b"}),
        ("g(not a)", "boolean", {"a"}),
        ("g(0)", "off by one", {"1"}),
        ("g(7)", "off by one", {"6", "8"}),
        ("g(a[:b])", "off by one", {"b) + 1"}),
        ("g(a + b)", "arithmetic", {"a - b"}),
        ("a += b", "arithmetic", {"a -= b"}),
        ("g(a, b)", "swap arguments", {"g(b, a"}),
        ("g(a, n=b, m=c)", "drop argument", {"g(a, n=b", "g(a, m=c"}),
        ("g(True)", "constant", {"False"}),
        ("g(max(a))", "constant", {"min"}),
        ("a.b = c", "drop", {"pass"}),
        ("g()", "drop", {"pass"}),
        ("tr.add_read_conflict_key(a)", "conflict", {"pass"}),
        ("g(tr.get(a))", "snapshot", {"tr.snapshot"}),
        ("g(tr.snapshot.get(a))", "snapshot", {"tr"}),
        ("g(a.get(b))", "snapshot", set()),
        ("return a", "return", {"None"}),
        ("raise a(b < c)", "swallow", {"pass"}),
        ("raise a(b < c)", "compare", set()),
        ("_log.info(a < b)", "compare", set()),
        ("assert a < b", "compare", set()),
        ('g(f"{a < b}")', "compare", set()),
        ("g([n for n in a if b])", "condition", {"True"}),
        ("g(a if b else c)", "condition", {"True", "False"}),
        ("while a: g()", "condition", {"False"}),
        ("while True: g()", "condition", set()),
    ],
)
def test_an_operator_makes_these_changes(body: str, operator: str, changed: set[str]) -> None:
    assert of(body).get(operator, set()) == changed


def test_a_predicate_returns_the_opposite() -> None:
    assert of("return a", "def f(a) -> bool:")["return"] == {"not (a", "None"}


def test_an_exception_is_swallowed_or_not_caught() -> None:
    body = "try:\n        g()\n    except ValueError:\n        h()\n        raise\n    finally:\n        i()"
    found = [(mutant.old, mutant.new) for mutant in mutants_of("m.py", f"def f():\n    {body}\n")]
    assert ("h()\n        raise", "pass") in found
    assert ("ValueError", "()") in found
    assert ("i()", "pass") in found


def test_a_loop_ends_early_and_a_function_at_once() -> None:
    source = 'def f(a):\n    """It."""\n    g()\n    for n in a:\n        h(n)\n'
    early = [m.planted_in(source) for m in mutants_of("m.py", source) if m.operator == "early return"]
    assert [ast.unparse(ast.parse(text)) for text in early] == [
        'def f(a):\n    """It."""\n    return None\n    g()\n    for n in a:\n        h(n)',
        'def f(a):\n    """It."""\n    g()\n    for n in a:\n        h(n)\n        break',
    ]


def test_types_decorators_and_modules_stay() -> None:
    source = "LIMIT = 1 + 2\n\n@cache(3)\ndef f(a: int = 4) -> list[5]:\n    b: T[6] = a\n"
    assert mutants_of("m.py", source) == []


def test_places_are_counted_in_bytes() -> None:
    source = 'def f():\n    g("é", 1 < n)\n'
    assert 'g("é", (1 <= n))' in [
        m.planted_in(source).splitlines()[1].strip() for m in mutants_of("m.py", source)
    ]


def sample() -> tuple[str, list[Mutant]]:
    source = (REPOSITORY / SAMPLE).read_text()
    return source, mutants_of(SAMPLE, source)


def test_every_mutant_of_a_module_compiles_and_has_an_id() -> None:
    source, found = sample()
    assert len({mutant.id for mutant in found}) == len(found) > 50
    for mutant in found:
        changed = mutant.planted_in(source)
        compile(changed, SAMPLE, "exec")
        assert changed != source


def test_ids_stay_if_lines_move() -> None:
    source, found = sample()
    moved = mutants_of(SAMPLE, source.replace("\n\n\n", "\n\n\nNEW = 1\n\n\n", 1))
    assert [mutant.id for mutant in moved] == [mutant.id for mutant in found]
    assert [mutant.lines.start for mutant in moved] != [mutant.lines.start for mutant in found]


def test_the_order_of_a_room_comes_from_its_seed() -> None:
    first, again, other = mutants_in("recipe", 1), mutants_in("recipe", 1), mutants_in("recipe", 2)
    assert first == again != other
    assert {mutant.id for mutant in first} == {mutant.id for mutant in other}


def test_planted_bugs_are_mutants_too() -> None:
    found = [mutant for mutant in mutants_in("recipe", 1) if mutant.operator == "planted"]
    assert len(found) == sum(plant.where.startswith("queues.recipe.") for plant in PLANTS) > 0
    for mutant in found:
        ast.parse(mutant.planted_in((REPOSITORY / mutant.file).read_text()))


def test_each_room_has_modules() -> None:
    assert all(files_of(room) for room in ROOMS)


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


@pytest.mark.parametrize(("new", "by"), [("(a >= b)", "test_least.py::test_the_least"), ("(a < b)", "")])
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
