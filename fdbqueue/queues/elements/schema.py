"""Schemas: the pieces of an element, and the encoding of each (elements.md 2 and 3).

A piece is stored as the bytes that a directory queue writes into its file. So a reader may have another
schema than the writer, and elements move between the two unchanged.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from fdbqueue.core.errors import InvalidElement, InvalidSchema, UnknownSchema, UnreadableElement
from fdbqueue.core.visible import shown, told

Pieces = dict[str, bytes]
"""An element as it is stored: the bytes of each piece, by name."""

NAMELESS = ""
"""The one piece of an element without a schema; no schema can have it."""

LOCKED = "locked"
"""No piece may have this name: in a directory queue it is the lock of its element."""

# A piece is a file in a directory queue: this is the longest name of a file.
PIECE_NAME_BYTES_MAX = 255
_PIECE_NAME = re.compile(f"[0-9a-zA-Z]{{1,{PIECE_NAME_BYTES_MAX}}}")
# "*" asks dirq's Perl version for references; it has no meaning here.
_TYPE = re.compile(r"(binary|string|table)([?*]{0,2})")


class Schema:
    """The pieces of an object's elements; without any, it can neither add nor get."""

    def __init__(self, types: Any) -> None:
        parsed = _parsed(types)
        self.types = {name: type_ for name, (type_, _) in parsed.items()}
        self.mandatory = tuple(name for name, (_, optional) in parsed.items() if not optional)
        if parsed and not self.mandatory:
            raise InvalidSchema(reason="no mandatory data")

    def require(self) -> None:
        if not self.types:
            raise UnknownSchema

    def encode(self, data: Any) -> Pieces:
        self.require()
        if not isinstance(data, Mapping):
            raise InvalidElement(reason=f"unexpected data: {shown(data)} is no dictionary of pieces")
        for name in data:
            if name not in self.types:
                raise InvalidElement(reason=f"unexpected data: {told(name)}")
        pieces = {name: self._encoded(name, value) for name, value in data.items()}
        for name in self.mandatory:
            if name not in pieces:
                raise InvalidElement(reason=f"missing mandatory data: {name}")
        return pieces

    def decode(self, name: str, pieces: Pieces) -> dict[str, Any]:
        """Decode the pieces that this schema has. Raises UnreadableElement for the element `name`."""
        for piece in self.mandatory:
            if piece not in pieces:
                raise UnreadableElement(reason=f"missing data file: {piece}", name=name)
        try:
            return {
                piece: _DECODERS[type_](pieces[piece])
                for piece, type_ in self.types.items()
                if piece in pieces
            }
        except ValueError as reason:
            raise UnreadableElement(reason=str(reason), name=name) from reason

    def _encoded(self, name: str, value: Any) -> bytes:
        type_ = self.types[name]
        try:
            return _ENCODERS[type_](value)
        except _HashType as reason:
            raise InvalidElement(reason=str(reason)) from None
        except (TypeError, UnicodeEncodeError):
            raise InvalidElement(reason=f"unexpected {type_} data in {name}: {shown(value)}") from None


def _parsed(types: Any) -> dict[str, tuple[str, bool]]:
    """For each piece its type, and True if it is optional. Raises InvalidSchema."""
    if types is None:
        return {}
    if not isinstance(types, dict):
        raise InvalidSchema(reason=f"{shown(types)} is no dictionary")
    return {_checked_name(name): _checked_type(type_) for name, type_ in types.items()}


def _checked_name(name: Any) -> str:
    if not isinstance(name, str) or not _PIECE_NAME.fullmatch(name) or name == LOCKED:
        raise InvalidSchema(f"invalid schema name: {shown(name)}", name=name)
    return name


def _checked_type(type_: Any) -> tuple[str, bool]:
    match = _TYPE.fullmatch(type_) if isinstance(type_, str) else None
    if match is None:
        raise InvalidSchema(f"invalid schema data type: {shown(type_)}", type=type_)
    return match[1], "?" in match[2]


class _HashType(TypeError):
    """A key or value of a table is no text."""


def _binary(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return bytes(value)


def _string(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    return value.encode()


def _table(value: Any) -> bytes:
    if not isinstance(value, dict):
        raise TypeError
    for key_or_value in (*value, *value.values()):
        if not isinstance(key_or_value, str):
            raise _HashType(f"invalid hash value type: {shown(key_or_value)}")
    return text_of(value).encode()


_ENCODERS: dict[str, Callable[[Any], bytes]] = {"binary": _binary, "string": _string, "table": _table}
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "binary": bytes,
    "string": bytes.decode,
    "table": lambda piece: table_of(piece.decode()),
}


_ESCAPES = {"\\": r"\\", "\t": r"\t", "\n": r"\n"}
_ESCAPED = {escape: plain for plain, escape in _ESCAPES.items()}
_TO_ESCAPE = re.compile(r"[\\\t\n]")
_TO_UNESCAPE = re.compile(r"\\[\\tn]")
_LINE = re.compile("([^\t\n]*)\t([^\t\n]*)")


def text_of(table: Mapping[str, str]) -> str:
    """A table as text, in the form of directory queues: each side reads the other's tables.

    A line for each key, sorted: key, tab, value, newline; a backslash, tab or newline within them is escaped.
    """
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
