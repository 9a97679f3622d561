"""Sentences of code and pages, and the mark of one that has to be read twice. Rules of words: docs/words.md.

A sentence is marked if its subject is an anonymous person, if a free "what" stands for a thing that has a
name, or if "so many" stands for a number that has one. An unmarked sentence can still be unclear.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PEOPLE = (
    r"who|whom|whose|whoever|whomever|he|his|him|(?:no|some|every|any)body|someone|everyone|anyone|no one"
)
_VERBS = "is has was were lies comes came becomes became does did can could may must"
_NOUNS = "it they that there this those we others a an the"
_MARK = re.compile(
    rf"""\b(?:{_PEOPLE})\b
    | \bso\ (?:many|much|long|few)\b
    | \bwhat\ (?:{"|".join(f"{_VERBS} {_NOUNS}".split())})\b (?! [^.]*\? )
    | \b(?:the\ own|of\ which|those\ (?:of|that)\ (?:who|which))\b
    | (?: ^ | [.;:]\  ) (?:the\ same\ of|nor\ do|neither\ do)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z']+")
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+(?=[A-Z`(])")
_FOR_TOOLS = re.compile(r"noqa(?:: [A-Z0-9, ]+)?|type: ignore(?:\[[^]]*\])?|pragma: no cover|fmt: (?:on|off)")
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:\\.|[^\\])*?""" | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | (?P<comment>\#[^\n]*)''',
    re.DOTALL | re.VERBOSE,
)
_TEST = re.compile(r"^ *(?:async )?def (?P<name>test_\w+)", re.MULTILINE)
_ENTRY = re.compile(r" *(?:[-*]|\d+\.) |#")
_WORDS_MIN = 4


class Text(NamedTuple):
    """A docstring, a block of comments, a message, a paragraph, or a cell of a table."""

    line: int
    text: str


class Sentence(NamedTuple):
    line: int
    text: str

    @property
    def marked(self) -> bool:
        return _MARK.search(self.text) is not None


def sentences_of(path: Path, messages: bool) -> list[Sentence]:
    """The sentences of a page or a module, its `messages` included: the strings that are no docstrings."""
    source = path.read_text(encoding="utf8")
    texts = _of_page(source) if path.suffix == ".md" else _of_module(source, messages)
    return [Sentence(line, sentence) for line, text in texts for sentence in _split(text)]


def names_of_tests(path: Path) -> list[str]:
    return [name for _, name in _names(path.read_text(encoding="utf8"))]


def _split(text: str) -> Iterator[str]:
    for sentence in _SENTENCE_END.split(" ".join(text.split())):
        if len(_WORD.findall(sentence)) >= _WORDS_MIN:
            yield sentence


def _of_page(source: str) -> Iterator[Text]:
    """Paragraphs, entries of lists, and cells of tables, without code."""
    paragraph, start, fenced = list[str](), 1, False
    for number, line in enumerate([*source.splitlines(), ""], 1):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        is_code = fenced or fence or (line.startswith("    ") and not paragraph)
        is_row = line.startswith("|") and not is_code
        if paragraph and (is_code or is_row or not line.strip() or _ENTRY.match(line)):
            yield Text(start, " ".join(paragraph))
            paragraph = []
        if is_row:
            yield from (Text(number, cell) for cell in line.split("|"))
        elif line.strip() and not is_code:
            start = start if paragraph else number
            paragraph.append(line.strip())


def _of_module(source: str, messages: bool) -> Iterator[Text]:
    tree = ast.parse(source)
    yield from _strings(tree) if messages else _docstrings(tree)
    yield from _comments(source)
    yield from (Text(line, name.removeprefix("test_").replace("_", " ")) for line, name in _names(source))


def _names(source: str) -> Iterator[Text]:
    for match in _TEST.finditer(source):
        yield Text(source.count("\n", 0, match.start()) + 1, match["name"])


def _docstrings(node: ast.AST) -> Iterator[Text]:
    """Strings that are statements: those behind an attribute, too."""
    for statement in getattr(node, "body", ()):
        yield from _docstrings(statement)
        value = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield Text(statement.lineno, value.value)


def _strings(tree: ast.Module) -> Iterator[Text]:
    """All strings: docstrings, messages, help texts, lines of a log."""
    parts = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(id(part) for part in node.values)
            yield Text(node.lineno, "".join(map(_plain, node.values)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield Text(node.lineno, node.value)


def _plain(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "…"


def _comments(source: str) -> Iterator[Text]:
    """Blocks of comments; lines that follow each other are one block."""
    block, start, last = list[str](), 0, -1
    for match in _STRING_OR_COMMENT.finditer(source):
        if match["comment"] is None:
            continue
        line = source.count("\n", 0, match.start()) + 1
        if line != last + 1 and block:
            yield Text(start, " ".join(block))
            block = []
        start, last = (start if block else line), line
        block.append(_FOR_TOOLS.sub("", match["comment"]).lstrip("# "))
    if block:
        yield Text(start, " ".join(block))
