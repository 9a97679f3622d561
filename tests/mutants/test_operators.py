"""The mutants of a piece of source, and the source with one of them."""

import ast

import pytest

from tests.mutants.mutant import Mutant, mutants_of
from tests.mutants.rooms import REPOSITORY, ROOMS, files_of, mutants_in
from tests.simulation.planted import PLANTS

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
