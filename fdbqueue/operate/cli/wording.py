"""Values and errors of the library as texts of the command line, which name its options, not arguments."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from fdbqueue.core import limits
from fdbqueue.core.codec import BUILT_IN
from fdbqueue.core.errors import (
    FdbQueueError,
    InvalidArgument,
    PayloadTooLarge,
    QueueExists,
    QueueKindMismatch,
    UnknownCodec,
)
from fdbqueue.core.visible import shown, value_of, visible_json
from fdbqueue.operate.cli.commands import Program
from fdbqueue.operate.cli.exits import REFUSED, CommandError, Refused
from fdbqueue.operate.cli.session import ELEMENT_KINDS, of_another_kind

_ALIASES = {
    "task": ("id_", "ids", "where", "after"),
    "group": ("where",),
    "limit": ("limits", "name"),
    "name": ("queue", "queues"),
    "shared_directory": ("shared",),
}
"""Parameters of commands that stand for an argument of another name."""
_NAMED = re.compile(r"`(\w+)`|the option '(\w+)'")
_GIVEN = re.compile(r"\b(\w+)=\"([^\"]*)\"|\b(\w+) = (?=\S)")
_HANDLE = re.compile(r"a (Task|Group), or the id of one")
_LEFT_OUT = re.compile(r"(None|False|left out)\b")


@contextmanager
def in_options() -> Iterator[None]:
    """Raises: CommandError or Refused for an error of the library."""
    try:
        yield
    except FdbQueueError as error:
        names = _names(click.get_current_context())
        kind = Refused if error.exit_code == REFUSED else CommandError
        raise kind(_told(error, names)) from error


def _names(context: click.Context) -> dict[str, str]:
    """The options and operands of the command, and the options of all others, by their names in Python."""
    own = {param.name: _shown(param) for param in context.command.params if param.name}
    names = dict(_options_below(context.find_root().command)) | own
    for argument, aliases in _ALIASES.items():
        found = [own[alias] for alias in (argument, *aliases) if alias in own]
        names.update({argument: found[0]} if found else {})
    return names


def _options_below(command: click.Command) -> Iterator[tuple[str, str]]:
    if isinstance(command, Program):
        command.load()
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from _options_below(one)
    for param in command.params:
        if isinstance(param, click.Option) and param.name:
            yield param.name, _shown(param)


def option_named(name: str) -> str:
    """The option of the running command that has this name in Python; the name, if there is none."""
    return _names(click.get_current_context()).get(name, name)


def _shown(param: click.Parameter) -> str:
    """The option in its longest form, or the operand as the help shows it, without brackets and dots."""
    if isinstance(param, click.Option):
        return max(param.opts, key=len)
    return (param.metavar or str(param.name).upper()).strip("[].")


def _told(error: FdbQueueError, names: Mapping[str, str]) -> str:
    if isinstance(error, QueueKindMismatch):
        is_alike = {error.found, error.wanted} <= {*ELEMENT_KINDS}
        return str(error) if is_alike else of_another_kind(error.name, error.found)
    if isinstance(error, UnknownCodec):  # of a queue that another program made: no option registers a codec
        here = f"the command line has {', '.join(BUILT_IN[:-1])} and {BUILT_IN[-1]}"
        return f"The codec {shown(error.codec)} is one of another program: {here}. Nothing was changed."
    if isinstance(error, InvalidArgument) and _is_usual(error):
        return _of_argument(error, names)
    if isinstance(error, QueueExists) and "any_options" in names:
        text = in_names(str(error).removesuffix(error.cure), names).rstrip(".")
        if error.differing:
            return f"{text}; {names['if_not_exists']} {names['any_options']} takes it as it is"
        return f"{text}; {names['if_not_exists']} lets that succeed"
    return in_names(str(error), names)


def _is_usual(error: InvalidArgument) -> bool:
    """True if the message is the usual one of the class. A DeferredBody has another, and no `wanted`."""
    return hasattr(error, "wanted") and str(error).startswith(f"{error.name} must be {error.wanted}")


def _of_argument(error: InvalidArgument, names: Mapping[str, str]) -> str:
    name, wanted = names.get(error.name, error.name), in_names(error.wanted, names)
    if found := _LEFT_OUT.match(wanted):
        return f"{name} must be left out{wanted[found.end() :]}"
    if error.got is None:
        return f"{name} is missing: it must be {wanted}"
    several = isinstance(error.got, tuple | list | Mapping)
    return f"{name} must be {wanted}, not {', '.join(map(shown, error.got)) if several else shown(error.got)}"


def in_names(text: str, names: Mapping[str, str]) -> str:
    """Replace the arguments of Python in a message."""
    text = _NAMED.sub(lambda found: names.get(found[1] or found[2], found[0]), text)
    text = _GIVEN.sub(lambda found: _assigned(found, names), text)
    return _HANDLE.sub(lambda found: f"the id of a {found[1].lower()}", text)


def _assigned(found: re.Match[str], names: Mapping[str, str]) -> str:
    name = names.get(found[1] or found[3])
    return found[0] if name is None else f"{name} {found[2] or ''}"


DEL = b"\x7f"
BOM = "\ufeff"
READ_BYTES_MAX = 256 * 1024


def line_of(value: Any) -> bytes:
    """Return `value` as one line of JSON: bytes as base64, control and format characters as escapes."""
    line = msgspec.json.encode(value)
    # JSON escapes characters below U+0020, but not DEL.
    if not line.isascii() or DEL in line:
        line = visible_json(line.decode()).encode()
    return line + b"\n"


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
