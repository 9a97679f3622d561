"""Style is a test: modules that may use clock, randomness, threads and environment; sizes of modules."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fdbqueue

PACKAGE = Path(fdbqueue.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

# Time, randomness and threads come from a Runtime, so that simulation can put a seed in charge.
RUNTIME = {"time", "random", "secrets", "threading", "multiprocessing", "uuid", "os.urandom"}
MAY_USE_RUNTIME: dict[str, str] = {
    "core/runtime.py": "it is the one place",
    "testing/": "it is what puts a seed in charge, with seeded generators, and times its own runs",
    "operate/demo.py": "a program of its own, whose fleet is real processes",
}
# The environment is read where a program begins.
MAY_READ_ENVIRONMENT: dict[str, str] = {
    "core/open.py": "the URL of a program that names none",
    "core/binding.py": "a variable that the client library reads by itself, and that goes first",
    "operate/cli/": "the program itself",
    "operate/demo.py": "a program as well",
}

FUNCTION_LINES_MAX = 60
MODULE_LINES_MAX = 700


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse((PACKAGE / module).read_text(), module)


def trees(modules: list[str]) -> Iterator[tuple[str, ast.Module]]:
    for module in modules:
        yield module, tree_of(module)


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


def users_of(names: set[str], table: dict[str, str]) -> dict[str, set[str]]:
    """Return the modules that use one of `names`, but for those that the table allows."""
    used = {module: dotted_uses(tree) & names for module, tree in trees(MODULES)}
    return {module: found for module, found in used.items() if found and not allowed(module, table)}


def test_time_randomness_and_threads_come_from_the_runtime():
    """Only core/runtime.py imports the modules that a simulation replaces."""
    assert users_of(RUNTIME, MAY_USE_RUNTIME) == {}, "ask the Runtime instead"


def test_the_environment_is_read_where_programs_begin():
    """Other modules read no setting from it."""
    assert users_of({"os.environ", "os.getenv", "os.environb"}, MAY_READ_ENVIRONMENT) == {}


def test_the_package_is_only_its_public_names():
    """__init__ tells where they are, for types and for the first use, and does nothing else."""
    ((_, tree),) = trees(["__init__.py"])
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert len((PACKAGE / "__init__.py").read_text().splitlines()) <= 270


def test_types_and_first_uses_find_the_same_names():
    """A checker reads the imports and `__all__` under TYPE_CHECKING, a program the table."""
    ((_, tree),) = trees(["__init__.py"])
    (for_types,) = [node for node in tree.body if isinstance(node, ast.If) and not node.orelse][:1]
    imported = [node for node in for_types.body if isinstance(node, ast.ImportFrom)]
    (listed,) = [ast.literal_eval(node.value) for node in for_types.body if isinstance(node, ast.Assign)]
    homes = {one.asname or one.name: node.module for node in imported for one in node.names}
    del homes["*"], homes["errors"]
    table = {n: f"fdbqueue.{home}" for home, names in fdbqueue._HOMES.items() for n in names.split()}
    assert (table, sorted(listed)) == (homes, sorted(homes.keys() - {"open"}))
    assert fdbqueue.__all__ == sorted({*listed, *fdbqueue.errors.__all__})


def test_modules_and_functions_stay_readable():
    """A number that is over is a question to answer, not a rule to game."""
    lines = {module: len((PACKAGE / module).read_text().splitlines()) for module in MODULES}
    assert {module: count for module, count in lines.items() if count > MODULE_LINES_MAX} == {}
    functions = [
        (module, node)
        for module, tree in trees(MODULES)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [(module, f.name) for module, f in functions if f.end_lineno - f.lineno >= FUNCTION_LINES_MAX]
    assert long == []


def test_every_module_has_a_docstring():
    """An empty __init__ has nothing to say, and __main__ has none."""
    spoken = [(module, tree) for module, tree in trees(MODULES) if not module.endswith("__main__.py")]
    assert [module for module, tree in spoken if tree.body and not ast.get_docstring(tree)] == []


def test_the_engine_knows_nothing_of_queues():
    """The seam is the transaction: fdbqueue.embedded imports no queue code."""
    below = {
        "fdbqueue.core.binding",
        "fdbqueue.embedded",
        "fdbqueue.core.errors",
        "fdbqueue.core.seam",
        "fdbqueue.core.limits",
        "fdbqueue.core.logger",
        "fdbqueue.core.runtime",
        "fdbqueue.core.visible",
    }
    for module, tree in trees([m for m in MODULES if m.startswith("embedded/")]):
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fdbqueue"):
                whole = node.module in ("fdbqueue", "fdbqueue.core")
                named = [f"{node.module}.{one.name}" for one in node.names] if whole else [node.module or ""]
                assert all(any(f"{one}.".startswith(f"{name}.") for name in below) for one in named), (
                    module,
                    named,
                )


def test_only_the_cluster_path_needs_the_client_library():
    """fdb.impl and fdb.directory_impl load libfdb_c: only core/open.py may ask for them."""
    for module, tree in trees([m for m in MODULES if m != "core/open.py"]):
        for node in ast.walk(tree):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not {"fdb.impl", "fdb.directory_impl"} & set(names), module
