"""Rooms stand in an order: a room imports only rooms below it (docs/design.md, section 4)."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import fdbqueue

PACKAGE = Path(fdbqueue.__file__).parent
MODULES = {
    ".".join(("fdbqueue", *path.relative_to(PACKAGE).with_suffix("").parts)): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
}
FACE = {"__init__", "__main__", "open"}
"""Root modules that stand above rooms: the public names, the program, and the choice of an engine."""
MAY_IMPORT_LATE = {
    "fdbqueue.open": "the binding of a cluster, which an embedded engine does without",
    "fdbqueue.schedules.times": "the library of cron expressions, which `every` does without",
    "fdbqueue.cli": "the commands, which need an extra: without it the command line says so",
    "fdbqueue.cli.metrics": "the metrics, which need another extra",
    "fdbqueue.cli.dashboard": "the dashboard, which needs yet another one",
}


def room_of(module: str) -> str:
    """The folder of a module. The modules of the root, but the face, count as one room: `root`."""
    parts = module.removesuffix(".__init__").split(".")
    if len(parts) > 1 and (PACKAGE / parts[1]).is_dir():
        return parts[1]
    name = parts[1] if len(parts) > 1 else "__init__"
    return name if name in FACE else "root"


def imports_of(tree: ast.AST) -> Iterator[str]:
    """The modules of fdbqueue that a piece of code imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for name in [f"{node.module}.{alias.name}" for alias in node.names]:
                known = name in MODULES or f"{name}.__init__" in MODULES
                yield name if known else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_ours(module: str) -> bool:
    return module.split(".")[0] == "fdbqueue"


def arrows() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    found: dict[str, set[str]] = {}
    for module, tree in MODULES.items():
        room = room_of(module)
        below = {room_of(name) for name in imports_of(tree) if is_ours(name)}
        found.setdefault(room, set()).update(below - {room})
    return found


def test_no_room_imports_a_room_that_imports_it() -> None:
    """Over any number of steps: a CycleError names the circle."""
    order = list(TopologicalSorter(arrows()).static_order())
    assert order[0] == "root"


def test_the_root_is_below_all_rooms() -> None:
    """A root module that needs a room belongs into a room."""
    assert arrows()["root"] == set()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_import_stands_inside_a_function(module: str) -> None:
    """It would hide a circle."""
    late = [
        name
        for function in ast.walk(MODULES[module])
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for name in imports_of(function)
    ]
    assert not late or module.removesuffix(".__init__") in MAY_IMPORT_LATE
