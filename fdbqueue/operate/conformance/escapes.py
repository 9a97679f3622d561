"""Bytes as text: printable ASCII stands for itself, any other byte is `%` and two hex digits.

A vector is read by people, too: keys, names and payloads stay legible. In JSON, no character of such a text
needs an escape. A file may store a long run of one byte as its text and a number.
"""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from urllib.parse import unquote_to_bytes

_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b'%"\\+')
_TEXT = re.compile(r"(?:[ -$&-~]|%[0-9A-Fa-f]{2})*")
_TEXT_OF = [chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in range(256)]


def escaped(data: bytes) -> str:
    return "".join(map(_TEXT_OF.__getitem__, data))


def unescaped(text: str) -> bytes:
    """The bytes that a text stands for. Raises: ValueError for a bad escape, or a character of no text."""
    if not _TEXT.fullmatch(text):
        raise ValueError(f"{text!r} is no text of bytes: a byte is printable ASCII, or % and two hex digits")
    return unquote_to_bytes(text)


Told = str | Sequence[str | Sequence[str | int]]
"""A text, or its parts: texts, and pairs of a text and the number of times that it is repeated."""
_RUN_MIN = 16


def told(data: bytes) -> Told:
    """The text of `data`; in parts, if it has long runs of one byte."""
    parts: list[str | Sequence[str | int]] = []
    for byte, run in groupby(data):
        count = sum(1 for _ in run)
        if count >= _RUN_MIN:
            parts.append([escaped(bytes((byte,))), count])
        elif parts and isinstance(parts[-1], str):
            parts[-1] += escaped(bytes((byte,)) * count)
        else:
            parts.append(escaped(bytes((byte,)) * count))
    if all(isinstance(part, str) for part in parts):
        return "".join(map(str, parts))
    return parts


def heard(value: Told) -> bytes:
    """The bytes that `told` was given."""
    if isinstance(value, str):
        return unescaped(value)
    return b"".join(map(_part, value))


def _part(part: str | Sequence[str | int]) -> bytes:
    if isinstance(part, str):
        return unescaped(part)
    text, times = part
    return unescaped(str(text)) * int(times)


def heard_result(result: Any) -> Any:
    """The result of a call, in which texts are the bytes that they stand for. Raises: ValueError."""
    if isinstance(result, list):
        return [*map(heard_result, result)]
    return unescaped(result) if isinstance(result, str) else result
