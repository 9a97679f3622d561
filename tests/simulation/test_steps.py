"""The simulation replaces the engine's named steps, and touches nothing private of the engine."""

import ast
import inspect
from pathlib import Path

import fdbqueue.testing
from fdbqueue.embedded import Transaction
from fdbqueue.testing import engine

SOURCES = sorted(Path(fdbqueue.testing.__file__).parent.glob("*.py"))
ENGINE = "fdbqueue.embedded."


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(cls: type) -> set[str]:
    """Names that the source of a class defines, assigns to `self`, or reads from `self`."""
    tree = ast.parse(inspect.getsource(cls))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            names.add(node.attr)
    return {name for name in names if is_private(name)}


def engine_classes(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith(ENGINE)]


def simulated_classes() -> list[type]:
    """Classes of the simulation that derive from a class of the engine."""
    found = [
        cls for _, cls in inspect.getmembers(engine, inspect.isclass) if cls.__module__ == engine.__name__
    ]
    return [cls for cls in found if engine_classes(cls)]


def test_the_simulation_uses_no_private_name_of_its_bases() -> None:
    assert {cls.__name__ for cls in simulated_classes()} >= {"FaultyTransaction", "FaultyDatabase"}
    for cls in simulated_classes():
        theirs = set().union(*(private_names(base) for base in engine_classes(cls)))
        assert private_names(cls) & theirs == set(), cls


def test_a_private_name_is_used_through_self_only() -> None:
    """No module of the simulation reaches into another object."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                assert isinstance(node.value, ast.Name), f"{path.name}:{node.lineno}"
                assert node.value.id in ("self", "cls"), f"{path.name}:{node.lineno}"


def test_the_simulation_replaces_every_step_of_the_engine() -> None:
    """A step without faults would never be tested under them."""
    steps = {name for name in dir(Transaction) if name.startswith("step_")}
    assert steps
    assert steps <= set(vars(engine.FaultyTransaction))
