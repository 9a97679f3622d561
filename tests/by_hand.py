"""Tests that make transactions themselves: they, or functions of the tests that they use, call
`create_transaction`.

Such a test commits without a retry, or gives commits their results. A fault of the client library fails it.
"""

import ast
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent
CALL = "create_transaction"


def makes_transactions(path: Path, name: str) -> bool:
    """True if the function or class `name` of a file of the tests makes transactions."""
    places, seen = [(path, name)], set()
    while places:
        place = places.pop()
        if place in seen:
            continue
        seen.add(place)
        if _calls_it(*place):
            return True
        places += _used_by(*place)
    return False


@cache
def _calls_it(path: Path, name: str) -> bool:
    node = _parts(path).get(name)
    nodes = [] if node is None else ast.walk(node)
    return any(isinstance(each, ast.Attribute) and each.attr == CALL for each in nodes)


@cache
def _used_by(path: Path, name: str) -> set[tuple[Path, str]]:
    """The functions, classes and fixtures of the tests that a function or a class names."""
    found = set()
    node = _parts(path).get(name)
    for each in [] if node is None else ast.walk(node):
        if isinstance(each, ast.Name):
            found.add(_place_of(path, each.id))
        elif isinstance(each, ast.arg):
            found.add(_fixture(path, each.arg))
    return {place for place in found if place is not None}


def _place_of(path: Path, name: str) -> tuple[Path, str] | None:
    return (path, name) if name in _parts(path) else _imported(path).get(name)


def _fixture(path: Path, name: str) -> tuple[Path, str] | None:
    """A fixture of the file, or of the nearest conftest.py above it."""
    above = [folder / "conftest.py" for folder in path.parents if folder.is_relative_to(TESTS)]
    places = (_place_of(file, name) for file in (path, *above) if file.exists())
    return next((place for place in places if place is not None), None)


@cache
def _parts(path: Path) -> dict[str, ast.AST]:
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    return {node.name: node for node in _tree(path).body if isinstance(node, kinds)}


@cache
def _imported(path: Path) -> dict[str, tuple[Path, str]]:
    found = {}
    for node in _tree(path).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("tests."):
            file = TESTS.parent.joinpath(*str(node.module).split(".")).with_suffix(".py")
            if file.exists():
                found |= {alias.asname or alias.name: (file, alias.name) for alias in node.names}
    return found


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
