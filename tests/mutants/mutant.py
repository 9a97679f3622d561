"""Mutants of a module: all of them, and the source with one of them."""

import ast
import hashlib
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tests.mutants.operators import Edit, Place, children, edits_of


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
