"""Conversion between texts of the command line and values of a queue."""

import io
from collections.abc import Iterator
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.errors import PayloadTooLarge
from fdbqueue.core.visible import visible_json
from fdbqueue.operate.cli.exits import CommandError

DEL = b"\x7f"
BOM = "\ufeff"
_JSON_BEGINS = ("{", "[", '"')
READ_BYTES_MAX = 256 * 1024


def value_of(text: str, as_text: bool = False) -> Any:
    """Return the value of `text`: that of JSON, or else the text itself.

    Raises ValueError for a text that begins like an object, a list or a quoted string, but is not JSON.
    """
    if as_text:
        return text
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError(f"{shortened(text)} is nested too deeply") from None
    except msgspec.DecodeError as reason:
        if text.lstrip().startswith(_JSON_BEGINS):
            raise ValueError(f"{shortened(text)} is not JSON ({reason}); --text takes it as it is") from None
        return text


def key_of(text: str, as_text: bool = False) -> Any:
    """Return the key of `text`: its value, with a tuple for each list, since JSON has no tuples.

    Raises ValueError, as `value_of`.
    """
    value = value_of(text, as_text)
    try:
        return _tuples(value)
    except RecursionError:
        raise ValueError(f"{shortened(text)} is nested too deeply") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def line_of(value: Any) -> bytes:
    """Return `value` as one line of JSON: bytes as base64, control and format characters as escapes."""
    line = msgspec.json.encode(value)
    # JSON escapes characters below U+0020, but not DEL.
    if not line.isascii() or DEL in line:
        line = visible_json(line.decode()).encode()
    return line + b"\n"


def shortened(text: str, length_max: int = 60) -> str:
    return repr(text if len(text) <= length_max else text[: length_max - 3] + "...")


class LineReader:
    """Reads values from the lines of a stream; a line is returned as soon as it was read."""

    def __init__(self, stream: io.BufferedReader, as_text: bool = False) -> None:
        self._stream = stream
        self._as_text = as_text
        self._number = 0
        self.bytes_read = 0

    def batches(self) -> Iterator[list[Any]]:
        """Return the values of the lines of each read, without empty lines.

        Raises CommandError for a line that is not UTF-8, or not the JSON that it looks like, after the values
        before.
        """
        rest = b""
        while chunk := self._stream.read1(READ_BYTES_MAX):
            self.bytes_read += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from self._values(lines)
            if len(rest) > limits.PAYLOAD_BYTES_MAX:
                raise PayloadTooLarge(size_bytes=len(rest), limit_bytes=limits.PAYLOAD_BYTES_MAX)
        if rest:
            yield from self._values([rest])

    def _values(self, lines: list[bytes]) -> Iterator[list[Any]]:
        values: list[Any] = []
        for line in lines:
            self._number += 1
            try:
                text = line.decode().removesuffix("\r")
                # Programs of Windows mark a file as UTF-8 so: with its mark, the first line would be no JSON.
                text = text.removeprefix(BOM) if self._number == 1 else text
                if text.strip():
                    values.append(value_of(text, self._as_text))
            except ValueError as reason:
                yield values
                raise CommandError(f"line {self._number}: {reason}") from None
        yield values
