"""The protocol in pure functions: a line becomes a command, a result becomes the bytes of a reply.

A line may be refused. Then the command is the reply itself. Where beanstalkd reads a line leniently, so does
this file: a command ends where its word ends, so `quitting` quits, and `kick 5x` kicks five jobs.
"""

import re
from collections.abc import Iterable, Mapping
from operator import gt
from typing import Any, NamedTuple

from fdbqueue.core import task

LINE_BYTES_MAX = 224
"""With the two bytes of its end."""
TUBE_BYTES_MAX = 200
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1

BAD_FORMAT, NOT_FOUND, OUT_OF_MEMORY = b"BAD_FORMAT", b"NOT_FOUND", b"OUT_OF_MEMORY"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND"
"""Replies stand without the end of their last line."""

PEEKED = {"peek-ready": task.READY, "peek-delayed": task.DELAYED, "peek-buried": task.BURIED}
"""The state whose first job a command shows."""


class Command(NamedTuple):
    name: str
    numbers: tuple[int, ...] = ()
    tube: str = ""
    rest: bytes = b""
    """What follows the numbers of a put: a body that is too big is passed over before that is refused."""


class _Form(NamedTuple):
    """What follows the word of a command: a tube, and numbers."""

    pattern: re.Pattern[bytes]
    bounds: tuple[int, ...]
    is_open: bool
    """True if something else may follow."""


def _form(*bounds: int, tube: bytes = b"", number: bytes = rb" *([0-9]++)", is_open: bool = False) -> _Form:
    return _Form(re.compile(tube + number * len(bounds)), bounds, is_open)


_TUBE = rb"(?P<tube>[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{,%d})" % (TUBE_BYTES_MAX - 1)
_ALONE, _JOB, _OF_TUBE = _form(), _form(U64_MAX), _form(tube=_TUBE)
_FORMS: Mapping[bytes, _Form] = {
    b"put ": _form(U32_MAX, U32_MAX, U32_MAX, U32_MAX, is_open=True),
    b"peek ": _JOB,
    b"peek-ready": _ALONE,
    b"peek-delayed": _ALONE,
    b"peek-buried": _ALONE,
    b"reserve-with-timeout ": _form(2**31 - 1, is_open=True),
    b"reserve-job ": _JOB,
    b"reserve": _ALONE,
    b"delete ": _JOB,
    b"release ": _form(U64_MAX, U32_MAX, U32_MAX),
    b"bury ": _form(U64_MAX, U32_MAX),
    b"kick ": _form(U64_MAX, number=rb"[ \t\v\f\r]*([+-]?[0-9]+)", is_open=True),  # as C reads it
    b"kick-job ": _JOB,
    b"touch ": _JOB,
    b"stats-job ": _JOB,
    b"stats-tube ": _OF_TUBE,
    b"stats": _ALONE,
    b"use ": _OF_TUBE,
    b"watch ": _OF_TUBE,
    b"ignore ": _OF_TUBE,
    b"list-tubes-watched": _ALONE,
    b"list-tube-used": _ALONE,
    b"list-tubes": _ALONE,
    b"quit": _form(is_open=True),
    b"pause-tube": _form(U32_MAX, tube=b" *" + _TUBE, number=b" +([0-9]+)"),
}
"""The forms by the beginning of the line; the first one that fits counts."""
NAMES = frozenset(word.decode().strip() for word in _FORMS)
_WORD = re.compile(b"|".join(map(re.escape, _FORMS)))


def command_of(line: bytes) -> Command | bytes:
    """The command in a line without its end, or the reply that refuses it."""
    if b"\0" in line:
        return BAD_FORMAT
    word = _WORD.match(line)
    if word is None:
        return UNKNOWN_COMMAND
    form = _FORMS[word[0]]
    found = form.pattern.match(line, word.end())
    if found is None:
        return BAD_FORMAT
    tube, rest = found.groupdict().get("tube", b""), line[found.end() :]
    numbers = tuple(map(int, found.groups()[len(found.groupdict()) :]))
    if (rest and not form.is_open) or any(map(gt, map(abs, numbers), form.bounds)):
        return BAD_FORMAT
    if word[0] == b"kick ":
        return Command("kick", (numbers[0] & U32_MAX,))
    return Command(word[0].decode().strip(), numbers, tube.decode(), rest)


def with_body(word: str, number: int, body: bytes) -> bytes:
    """`RESERVED` or `FOUND`, with a job."""
    return b"%b %d %d\r\n%b" % (word.encode(), number, len(body), body)


def listing(names: Iterable[str]) -> bytes:
    return _ok("".join(f"- {name}\n" for name in names))


def figures(values: Mapping[str, Any]) -> bytes:
    return _ok("".join(f"{name}: {value}\n" for name, value in values.items()))


def _ok(yaml: str) -> bytes:
    body = f"---\n{yaml}".encode()
    return b"OK %d\r\n%b" % (len(body), body)
