"""Mutants of a module, and the operators that make them: small changes, as a programmer might make them.

A rule is given a node of the syntax tree and its place, and yields edits. An edit replaces the text of a
node, or of several neighbours.
"""

import ast
import copy
import hashlib
import inspect
import random
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from tests.simulation.planted import PLANTS


@dataclass(frozen=True)
class Edit:
    """Replace the text from `first` to the end of `last` by `new`."""

    operator: str
    first: ast.AST
    last: ast.AST
    new: str


@dataclass(frozen=True)
class Place:
    """The place of a node: the function around it, and the source of the module."""

    function: ast.FunctionDef
    source: str


Rule = Callable[[Any, Place], Iterator[Edit]]

_FLIPS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_SUMS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}
_OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
_OTHER_BYTES = {b"\x00": b"", b"\xff": b"\xfe"}
_READS = {"get", "get_range"}
_ENDS = ast.Return | ast.Raise | ast.Break | ast.Continue


def _compare(node: ast.Compare, _: Place) -> Iterator[Edit]:
    if len(node.ops) == 1:
        for other in _FLIPS[type(node.ops[0])]:
            yield _instead("compare", node, _with(node, ops=[other()]))


def _boolean(node: ast.BoolOp, _: Place) -> Iterator[Edit]:
    yield _instead("boolean", node, _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And()))
    for n in range(len(node.values)):
        left = [*node.values[:n], *node.values[n + 1 :]]
        yield _instead("boolean", node, left[0] if len(left) == 1 else _with(node, values=left))


def _not(node: ast.UnaryOp, _: Place) -> Iterator[Edit]:
    if isinstance(node.op, ast.Not):
        yield _instead("boolean", node, node.operand)


def _constant(node: ast.Constant, _: Place) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield Edit("constant", node, node, str(not value))
    elif isinstance(value, int):
        for other in (value + 1, value - 1) if value else (1,):
            yield Edit("off by one", node, node, str(other))
    elif isinstance(value, bytes) and value in _OTHER_BYTES:
        yield Edit("constant", node, node, repr(_OTHER_BYTES[value]))


def _sum(node: ast.BinOp, _: Place) -> Iterator[Edit]:
    other = _SUMS.get(type(node.op))
    if other is not None:
        yield _instead("arithmetic", node, _with(node, op=other()))


def _slice(node: ast.Slice, _: Place) -> Iterator[Edit]:
    for end in (node.lower, node.upper):
        if end is not None and not isinstance(end, ast.Constant):
            yield Edit("off by one", end, end, f"({ast.unparse(end)}) + 1")


def _condition(node: ast.If | ast.IfExp | ast.While, _: Place) -> Iterator[Edit]:
    if not isinstance(node.test, ast.Constant):
        for value in ("False",) if isinstance(node, ast.While) else ("False", "True"):
            yield Edit("condition", node.test, node.test, value)


def _filter(node: ast.comprehension, _: Place) -> Iterator[Edit]:
    for test in node.ifs:
        yield Edit("condition", test, test, "True")


def _loop(node: ast.For, place: Place) -> Iterator[Edit]:
    last = node.body[-1]
    if not isinstance(last, _ENDS):
        indent = " " * last.col_offset
        yield Edit("early return", last, last, f"{_text(last, place)}\n{indent}break")


def _empty(node: ast.FunctionDef, place: Place) -> Iterator[Edit]:
    body = node.body[1:] if ast.get_docstring(node) else node.body
    if len(body) > 1:
        first = body[0]
        indent = " " * first.col_offset
        yield Edit("early return", first, first, f"return None\n{indent}{_text(first, place)}")


def _return(node: ast.Return, place: Place) -> Iterator[Edit]:
    if node.value is None or ast.unparse(node.value) in ("None", "True", "False"):
        return
    if _is_bool(place.function):
        yield Edit("return", node.value, node.value, f"not ({ast.unparse(node.value)})")
    yield Edit("return", node.value, node.value, "None")


def _expression(node: ast.Expr, _: Place) -> Iterator[Edit]:
    if isinstance(node.value, ast.Call):
        name = ast.unparse(node.value.func)
        yield Edit("conflict" if "_conflict_" in name else "drop", node, node, "pass")


def _assign(node: ast.Assign, _: Place) -> Iterator[Edit]:
    if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield Edit("drop", node, node, "pass")


def _add(node: ast.AugAssign, _: Place) -> Iterator[Edit]:
    yield Edit("drop", node, node, "pass")
    if type(node.op) in _SUMS:
        changed = _with(node, op=_SUMS[type(node.op)]())
        yield Edit("arithmetic", node, node, ast.unparse(changed))


def _call(node: ast.Call, _: Place) -> Iterator[Edit]:
    yield from _arguments(node)
    function = node.func
    if isinstance(function, ast.Name) and function.id in _OTHER_FUNCTION:
        yield Edit("constant", function, function, _OTHER_FUNCTION[function.id])
    if isinstance(function, ast.Attribute) and function.attr in _READS and _is_transaction(function.value):
        yield Edit("snapshot", function.value, function.value, f"{ast.unparse(function.value)}.snapshot")


def _arguments(node: ast.Call) -> Iterator[Edit]:
    first = node.args[:2]
    if len(first) == 2 and not any(isinstance(one, ast.Starred) for one in first):
        yield _instead("swap arguments", node, _with(node, args=[first[1], first[0], *node.args[2:]]))
    for n, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            left = [*node.keywords[:n], *node.keywords[n + 1 :]]
            yield _instead("drop argument", node, _with(node, keywords=left))


def _snapshot(node: ast.Attribute, _: Place) -> Iterator[Edit]:
    if node.attr == "snapshot" and _is_transaction(node.value):
        yield _instead("snapshot", node, node.value)


def _raise(node: ast.Raise, _: Place) -> Iterator[Edit]:
    yield Edit("swallow", node, node, "pass")


def _handler(node: ast.ExceptHandler, _: Place) -> Iterator[Edit]:
    if not isinstance(node.body[0], ast.Pass | ast.Raise):
        yield Edit("swallow", node.body[0], node.body[-1], "pass")
    if node.type is not None:
        yield Edit("swallow", node.type, node.type, "()")


def _finally(node: ast.Try, _: Place) -> Iterator[Edit]:
    if node.finalbody:
        yield Edit("drop", node.finalbody[0], node.finalbody[-1], "pass")


RULES: dict[type[ast.AST], tuple[Rule, ...]] = {
    ast.Compare: (_compare,),
    ast.BoolOp: (_boolean,),
    ast.UnaryOp: (_not,),
    ast.Constant: (_constant,),
    ast.BinOp: (_sum,),
    ast.Slice: (_slice,),
    ast.If: (_condition,),
    ast.IfExp: (_condition,),
    ast.While: (_condition,),
    ast.comprehension: (_filter,),
    ast.For: (_loop,),
    ast.FunctionDef: (_empty,),
    ast.Return: (_return,),
    ast.Expr: (_expression,),
    ast.Assign: (_assign,),
    ast.AugAssign: (_add,),
    ast.Call: (_call,),
    ast.Attribute: (_snapshot,),
    ast.Raise: (_raise,),
    ast.ExceptHandler: (_handler,),
    ast.Try: (_finally,),
}


def edits_of(node: ast.AST, place: Place) -> Iterator[Edit]:
    for rule in RULES.get(type(node), ()):
        yield from rule(node, place)


def children(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node that may change: no types, no texts, no decorators, no texts of errors."""
    skipped: Sequence[ast.AST | None] = ()
    if isinstance(node, ast.FunctionDef):
        skipped = (node.args, node.returns, *node.decorator_list)
    elif isinstance(node, ast.AnnAssign):
        skipped = (node.annotation,)
    elif isinstance(node, ast.Raise):
        skipped = (node.exc, node.cause)
    elif isinstance(node, ast.JoinedStr | ast.Assert) or _logs(node):
        return
    yield from (child for child in ast.iter_child_nodes(node) if child not in skipped)


def _logs(node: ast.AST) -> bool:
    """True for a call of a logger: a record is no promise."""
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("_log.")


def _is_transaction(node: ast.AST) -> bool:
    return ast.unparse(node) in ("tr", "self.tr", "change.tr", "self._tr")


def _is_bool(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "bool"


def _with(node: ast.AST, **changed: Any) -> ast.AST:
    other = copy.copy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return other


def _instead(operator: str, node: ast.AST, other: ast.AST) -> Edit:
    text = ast.unparse(other)
    return Edit(
        operator, node, node, text if isinstance(other, ast.Name | ast.Attribute | ast.Call) else f"({text})"
    )


def _text(node: ast.AST, place: Place) -> str:
    text = ast.get_source_segment(place.source, node)
    assert text is not None
    return text


@dataclass(frozen=True)
class Mutant:
    """A change of one function. Its id stays as long as the statement around it and its function do."""

    id: str
    file: str
    """The path of the module, from the root of the repository."""
    function: str
    operator: str
    lines: range
    """The lines that a reader of the change runs."""
    start: int
    stop: int
    old: str
    new: str

    def planted_in(self, source: str) -> str:
        """The source of the module with the change."""
        raw = source.encode()
        assert raw[self.start : self.stop].decode() == self.old, f"{self.file} has changed"
        return (raw[: self.start] + self.new.encode() + raw[self.stop :]).decode()


@dataclass(frozen=True)
class _Found:
    """A node with its function and the statement around it."""

    node: ast.AST
    function: ast.FunctionDef
    name: str
    statement: ast.stmt


def mutants_of(file: str, source: str) -> list[Mutant]:
    """All mutants of a module."""
    offsets, seen = _line_offsets(source), Counter[str]()
    found = []
    for at in _found_in(ast.parse(source)):
        for edit in edits_of(at.node, Place(at.function, source)):
            mutant = _mutant(file, source, offsets, seen, at, edit)
            if mutant is not None:
                found.append(mutant)
    return found


def planted(file: str, source: str, function: Callable[..., object], what: str, old: str, new: str) -> Mutant:
    """The mutant of a planted bug: `old` is a part of the dedented source of the function."""
    lines, first = inspect.getsourcelines(function)
    text = textwrap.dedent("".join(lines))
    assert text.count(old) == 1, what
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    whole, changed = "".join(lines), textwrap.indent(text.replace(old, new), indent)
    start = _line_offsets(source)[first - 1]
    covered = range(first + 1, first + len(lines))
    id_ = f"{file}:{function.__qualname__}:planted:{_digest(what)}"
    return Mutant(
        id_,
        file,
        function.__qualname__,
        "planted",
        covered,
        start,
        start + len(whole.encode()),
        whole,
        changed,
    )


def _mutant(
    file: str, source: str, offsets: list[int], seen: Counter[str], at: _Found, edit: Edit
) -> Mutant | None:
    """None if the edit changes nothing."""
    start, stop = _offset(offsets, edit.first, ""), _offset(offsets, edit.last, "end_")
    old = source.encode()[start:stop].decode()
    statement = ast.unparse(at.statement) if not hasattr(at.statement, "body") else ""
    told = "\n".join((at.name, edit.operator, statement, old, edit.new))
    seen[told] += 1
    id_ = f"{file.removeprefix('fdbqueue/')}:{at.name}:{edit.operator}:{_digest(f'{told}{seen[told]}')}"
    end = edit.last.end_lineno if not hasattr(edit.last, "body") else edit.first.lineno
    lines = range(edit.first.lineno, (end or edit.first.lineno) + 1)
    mutant = Mutant(id_, file, at.name, edit.operator, lines, start, stop, old, edit.new)
    return mutant if old != edit.new else None


def _found_in(tree: ast.Module) -> Iterator[_Found]:
    """Every node inside a function."""

    def inside(
        node: ast.AST, name: str, function: ast.FunctionDef | None, statement: ast.stmt
    ) -> Iterator[_Found]:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            name = f"{name}.{node.name}" if name else node.name
        if isinstance(node, ast.FunctionDef):
            function = node
        if isinstance(node, ast.stmt):
            statement = node
        if function is not None and not _is_text(node):
            yield _Found(node, function, name, statement)
        for child in children(node):
            yield from inside(child, name, function, statement)

    for node in tree.body:
        yield from inside(node, "", None, node)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _line_offsets(source: str) -> list[int]:
    """The place of each line, in bytes."""
    offsets = [0]
    for line in source.encode().splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets


def _offset(offsets: list[int], node: ast.AST, which: str) -> int:
    line: int = getattr(node, f"{which}lineno")
    column: int = getattr(node, f"{which}col_offset")
    return offsets[line - 1] + column


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


REPOSITORY = Path(__file__).parents[2]

ROOMS: Mapping[str, str] = {
    "line": "core/line/*.py core/calls.py",
    "tasks": "tasks/*.py tasks/stored/*.py",
    "recipe": "queues/recipe/*.py",
    "sessions": "core/sessions/*.py",
    "commit": "embedded/commit.py embedded/processes.py embedded/steps.py embedded/w*.py",
    "journal": "embedded/durability.py embedded/journal.py",
    "dead": "tasks/dead_letters.py tasks/redrive.py",
    "elements": "queues/elements/*.py",
    "fair": "queues/fair.py",
    "fleet": "fleet/*.py",
    "groups": "tasks/group*.py",
    "limiting": "tasks/limits/*.py",
    "partitions": "core/partitions.py tasks/parted.py tasks/repartition.py",
    "persistent": "queues/persistent.py queues/unacked.py",
    "schedules": "tasks/schedules.py tasks/firing.py",
}
"""The files of each room below `fdbqueue`. Those of `journal` keep commits over a power cut."""


def files_of(room: str) -> list[str]:
    """The modules of a room, as paths from the root of the repository."""
    patterns = (f"fdbqueue/{pattern}" for pattern in ROOMS[room].split())
    paths = chain.from_iterable(map(REPOSITORY.glob, patterns))
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in paths)


def mutants_in(room: str, seed: int) -> list[Mutant]:
    """All mutants of a room, one of each operator after the other; planted bugs count as one operator.

    The seed decides the order within an operator. So any first part is a sample that leans towards rare
    operators, as those of conflicts.
    """
    by_operator: defaultdict[str, list[Mutant]] = defaultdict(list)
    by_operator["planted"] += _planted_in(room)
    for file in files_of(room):
        for mutant in mutants_of(file, (REPOSITORY / file).read_text()):
            by_operator[mutant.operator].append(mutant)
    for operator, found in by_operator.items():
        random.Random(f"{seed} {operator}").shuffle(found)
    rows = zip_longest(*(by_operator[operator] for operator in sorted(by_operator)))
    return [mutant for row in rows for mutant in row if mutant is not None]


def _planted_in(room: str) -> Sequence[Mutant]:
    files = {file: (REPOSITORY / file).read_text() for file in files_of(room)}
    homes = [(plant, f"{plant.function.__module__.replace('.', '/')}.py") for plant in PLANTS]
    return [
        planted(home, files[home], plant.function, plant.what, plant.old, plant.new)
        for plant, home in homes
        if home in files
    ]
