"""Rooms stand in an order: a room imports only rooms below it (docs/design.md, "Parts")."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import fdbqueue

PACKAGE = Path(fdbqueue.__file__).parent
MODULES = {
    ".".join(("fdbqueue", *path.relative_to(PACKAGE).with_suffix("").parts)): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
ENTRIES = ("core", "embedded", "tasks", "queues", "fleet", "operate", "aio", "integrations", "testing")
"""The folders of the package: each imports only itself and those before it."""
MAY_IMPORT_LATE = {
    "fdbqueue.core.open": "the binding of a cluster, which an embedded engine does without",
    "fdbqueue.tasks.firing": "the library of cron expressions, which `every` does without",
    "fdbqueue.operate.cli": "the commands, which need an extra: without it the command line says so",
    "fdbqueue.operate.cli.serving": "the dashboard and the metrics, which need another extra each",
}
MAY_IMPORT_ABOVE = {
    "fdbqueue.core.open": {"embedded"},  # it chooses the engine
    "fdbqueue.operate.cli.serving": {"integrations"},  # late
}


@cache
def trees() -> dict[str, ast.Module]:
    """Not made at import: each process of a run collects this file, and one of them runs it."""
    return {module: ast.parse(path.read_text()) for module, path in MODULES.items()}


def entry_of(module: str) -> str:
    """The folder, or the file, of a module below the package."""
    return module.removesuffix(".__init__").partition(".")[2].partition(".")[0]


def room_of(module: str) -> str:
    """The folder of a module. A file that may import above it is a room of its own."""
    name = module.removesuffix(".__init__")
    is_folder = f"{name}.__init__" in MODULES or name in MAY_IMPORT_ABOVE or name == "fdbqueue.__main__"
    folder = name if is_folder else name.rpartition(".")[0]
    return "fdbqueue.testing" if entry_of(name) == "testing" else folder


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The modules of fdbqueue that a piece of code imports, but for types.

    A file that is used as an attribute of its room is imported, too: later (core/lazy.py).
    """
    return _imported(_run(tree))


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    rooms: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if f"{name}.__init__" in MODULES:
                    rooms[alias.asname or alias.name] = name
                yield name if is_module(name) else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            first, _, path = ast.unparse(node).partition(".")
            if first in rooms and is_module(f"{rooms[first]}.{path}"):
                yield f"{rooms[first]}.{path}"


def is_module(name: str) -> bool:
    return name in MODULES or f"{name}.__init__" in MODULES


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of the code that runs."""
    yield tree
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield from _run(node)


def is_ours(module: str) -> bool:
    return module.split(".")[0] == "fdbqueue"


@cache
def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {}
    for module, tree in trees().items():
        room = room_of(module)
        below = {room_of(name) for name in imports_of(tree) if is_ours(name)}
        found.setdefault(room, set()).update(below - {room})
    return found


def test_no_room_imports_a_room_that_imports_it() -> None:
    """Over any number of steps: a CycleError names the circle."""
    TopologicalSorter(arrows()).prepare()


def test_no_file_imports_a_file_that_imports_it() -> None:
    """Late imports count, and those for types: a reader follows them, too. The `__init__` of a room names its
    late files for type checkers alone.
    """
    files = {
        module.removesuffix(".__init__"): set(filter(is_ours, _imported(nodes_of(module, tree)))) - {module}
        for module, tree in trees().items()
    }
    TopologicalSorter(files).prepare()


def nodes_of(module: str, tree: ast.AST) -> Iterable[ast.AST]:
    return _run(tree) if module.endswith(".__init__") else ast.walk(tree)


def test_the_files_of_core_are_below_all_rooms() -> None:
    assert arrows()["fdbqueue.core"] == set()


def test_the_package_has_twelve_entries() -> None:
    found = {path.name for path in PACKAGE.iterdir()} - {"__pycache__"}
    assert found == {*ENTRIES, "__init__.py", "__main__.py", "py.typed"}


def above(module: str) -> set[str]:
    """The entries above its own that a file imports, but for those that it may."""
    entry = entry_of(module)
    if entry not in ENTRIES:
        return set()
    found = {entry_of(name) for name in imports_of(trees()[module]) if is_ours(name)} & set(ENTRIES)
    return found - set(ENTRIES[: ENTRIES.index(entry) + 1]) - MAY_IMPORT_ABOVE.get(module, set())


def test_no_file_imports_an_entry_above_its_own() -> None:
    assert {module: found for module in MODULES if (found := above(module))} == {}


def test_no_import_stands_inside_a_function() -> None:
    """It would hide a circle."""
    late = {
        module.removesuffix(".__init__")
        for module, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for _ in imports_of(function)
    }
    assert late - MAY_IMPORT_LATE.keys() == set()


def test_the_design_names_files_that_exist() -> None:
    repository = PACKAGE.parent
    known = {
        path.name for room in ("fdbqueue", "tests", "docs") for path in (repository / room).rglob("*.py")
    }
    named = set(re.findall(r"\b[a-z_]+\.py\b", (repository / "docs" / "design.md").read_text()))
    assert named - known == set()
