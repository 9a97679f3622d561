"""Style is a test: modules that may use clock, randomness, threads and environment; sizes of modules."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue

PACKAGE = Path(fdbqueue.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# Time, randomness and threads come from a Runtime, so that simulation can put a seed in charge.
RUNTIME = {"time", "random", "secrets", "threading", "multiprocessing", "uuid", "os.urandom"}
MAY_USE_RUNTIME: dict[str, str] = {
    "runtime.py": "it is the one place",
    "testing/": "it is what puts a seed in charge, with seeded generators, and times its own runs",
    "demo/": "a program of its own, whose fleet is real processes",
}
# The environment is read where a program begins.
MAY_READ_ENVIRONMENT: dict[str, str] = {
    "open.py": "the URL of a program that names none",
    "client_knobs.py": "a variable that the client library reads by itself, and that goes first",
    "cli/": "the program itself",
    "demo/": "a program as well",
    "testing/soak/__main__.py": "a program, whose processes get variables that it must not have",
}

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 450


def trees(modules: list[str]) -> Iterator[tuple[str, ast.Module]]:
    for module in modules:
        yield module, ast.parse((PACKAGE / module).read_text(), module)


def allowed(module: str, table: dict[str, str]) -> bool:
    return any(module == name or (name.endswith("/") and module.startswith(name)) for name in table)


def dotted_uses(tree: ast.Module) -> set[str]:
    """Names imported, and attributes of names: `time`, `os.urandom`, `os.environ`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
    return found


@pytest.mark.parametrize("module", MODULES)
def test_time_randomness_and_threads_come_from_the_runtime(module):
    """Only runtime.py imports the modules that a simulation replaces."""
    ((_, tree),) = trees([module])
    used = {use for use in dotted_uses(tree) if use in RUNTIME}
    assert not used or allowed(module, MAY_USE_RUNTIME), f"ask the Runtime instead of {sorted(used)}"


@pytest.mark.parametrize("module", MODULES)
def test_the_environment_is_read_where_programs_begin(module):
    """Other modules read no setting from it."""
    ((_, tree),) = trees([module])
    used = dotted_uses(tree) & {"os.environ", "os.getenv", "os.environb"}
    assert not used or allowed(module, MAY_READ_ENVIRONMENT)


def test_the_package_is_only_its_public_names():
    """__init__ imports, and does nothing else."""
    ((_, tree),) = trees(["__init__.py"])
    statements = tree.body[1:] if ast.get_docstring(tree) else tree.body
    assert all(
        isinstance(node, ast.Import | ast.ImportFrom | ast.Assign | ast.AugAssign) for node in statements
    )
    assigned = [t.id for node in statements if isinstance(node, ast.Assign) for t in node.targets]
    assigned += [node.target.id for node in statements if isinstance(node, ast.AugAssign)]
    assert set(assigned) <= {"__all__", "__version__"}
    assert len((PACKAGE / "__init__.py").read_text().splitlines()) <= 200


@pytest.mark.parametrize("module", MODULES)
def test_modules_and_functions_stay_readable(module):
    """A number that is over is a question to answer, not a rule to game."""
    ((_, tree),) = trees([module])
    assert len((PACKAGE / module).read_text().splitlines()) <= MODULE_LINES_MAX
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    long = {
        f.name: f.end_lineno - f.lineno + 1
        for f in functions
        if f.end_lineno - f.lineno >= FUNCTION_LINES_MAX
    }
    assert not long


@pytest.mark.parametrize("module", MODULES)
def test_every_module_has_a_docstring(module):
    """In a docstring; an empty __init__ has nothing to say, nor has __main__."""
    ((_, tree),) = trees([module])
    assert module.endswith("__main__.py") or ast.get_docstring(tree) or not tree.body


def test_the_engine_knows_nothing_of_queues():
    """The seam is the transaction: fdbqueue.embedded imports no queue code."""
    below = {
        "fdbqueue.binding",
        "fdbqueue.embedded",
        "fdbqueue.errors",
        "fdbqueue.fdberror",
        "fdbqueue.limits",
        "fdbqueue.logger",
        "fdbqueue.runtime",
        "fdbqueue.trouble",
    }
    for module, tree in trees([m for m in MODULES if m.startswith("embedded/")]):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fdbqueue"):
                whole = node.module == "fdbqueue"
                named = [f"fdbqueue.{one.name}" for one in node.names] if whole else [node.module or ""]
                assert all(any(f"{one}.".startswith(f"{name}.") for name in below) for one in named), (
                    module,
                    named,
                )


def test_only_the_cluster_path_needs_the_client_library():
    """fdb.impl and fdb.directory_impl load libfdb_c: only open.py may ask for them."""
    for module, tree in trees([m for m in MODULES if m != "open.py"]):
        for node in ast.walk(tree):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {"fdb.impl", "fdb.directory_impl"} & set(names), module
