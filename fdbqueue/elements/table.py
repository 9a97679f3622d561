"""A table as text, in the form of directory queues (elements.md 3): each side reads the other's tables.

A line for each key, sorted: key, tab, value, newline; a backslash, tab or newline within them is escaped.
"""

import re
from collections.abc import Mapping

from fdbqueue.visible import told

_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n"}
_ESCAPED = {escape: plain for plain, escape in _ESCAPES.items()}
_TO_ESCAPE = re.compile(r"[\\\t\n]")
_TO_UNESCAPE = re.compile(r"\\[\\tn]")
_LINE = re.compile("([^\t\n]*)\t([^\t\n]*)")


def text_of(table: Mapping[str, str]) -> str:
    return "".join(f"{_escape(key)}\t{_escape(table[key])}\n" for key in sorted(table))


def table_of(text: str) -> dict[str, str]:
    """Parse a table; the last of two equal keys counts. Raises ValueError for a malformed line."""
    lines = text.strip("\n").split("\n") if text else []
    return dict(map(_pair, lines))


def _pair(line: str) -> tuple[str, str]:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"unexpected hash line: {told(line)}")
    return _unescape(match[1]), _unescape(match[2])


def _escape(text: str) -> str:
    return _TO_ESCAPE.sub(lambda match: _ESCAPES[match[0]], text)


def _unescape(text: str) -> str:
    return _TO_UNESCAPE.sub(lambda match: _ESCAPED[match[0]], text)
