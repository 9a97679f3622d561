"""The protocol in pure functions: a line becomes a command, a result becomes the bytes of a reply.

A line may be refused. Then the command is the reply itself. Where beanstalkd reads a line leniently, so does
this file: a command ends where its word ends, so `quitting` quits, and `kick 5x` kicks five jobs.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import task

LINE_BYTES_MAX = 224
"""With the two bytes of its end."""
TUBE_BYTES_MAX = 200
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1

BAD_FORMAT = b"BAD_FORMAT\r\n"
BURIED = b"BURIED\r\n"
DEADLINE_SOON = b"DEADLINE_SOON\r\n"
DELETED = b"DELETED\r\n"
DRAINING = b"DRAINING\r\n"
EXPECTED_CRLF = b"EXPECTED_CRLF\r\n"
INTERNAL_ERROR = b"INTERNAL_ERROR\r\n"
JOB_TOO_BIG = b"JOB_TOO_BIG\r\n"
NOT_FOUND = b"NOT_FOUND\r\n"
NOT_IGNORED = b"NOT_IGNORED\r\n"
OUT_OF_MEMORY = b"OUT_OF_MEMORY\r\n"
PAUSED = b"PAUSED\r\n"
RELEASED = b"RELEASED\r\n"
TIMED_OUT = b"TIMED_OUT\r\n"
TOUCHED = b"TOUCHED\r\n"
UNKNOWN_COMMAND = b"UNKNOWN_COMMAND\r\n"

PEEKED = {"peek-ready": task.READY, "peek-delayed": task.DELAYED, "peek-buried": task.BURIED}
"""The state whose first job a command shows."""


class Command(NamedTuple):
    name: str
    numbers: tuple[int, ...] = ()
    tube: str = ""
    rest: bytes = b""
    """What follows the numbers of a put: a body that is too big is passed over before that is refused."""


_TUBE = re.compile(rb"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]*")
_NUMBER = re.compile(rb" *([0-9]+)")
_COUNT = re.compile(rb"[ \t\v\f\r]*([+-]?[0-9]+)")  # as C reads it
_PAUSE = re.compile(rb" *([A-Za-z0-9+/;.$_()-]+)( .*)", re.DOTALL)
_Read = Callable[[str, bytes], Command | None]


def _leading(*bounds: int) -> _Read:
    """Reads the numbers at the beginning, one for each bound, and what follows."""

    def read(name: str, rest: bytes) -> Command | None:
        found: list[int] = []
        for bound in bounds:
            number = _NUMBER.match(rest)
            if number is None or int(number[1]) > bound:
                return None
            found.append(int(number[1]))
            rest = rest[number.end() :]
        return Command(name, tuple(found), rest=rest)

    return read


def _only(read: _Read, name: str, rest: bytes) -> Command | None:
    found = read(name, rest)
    return None if found is None or found.rest else found


def _count(name: str, rest: bytes) -> Command | None:
    number = _COUNT.match(rest)
    if number is None or abs(int(number[1])) > U64_MAX:
        return None
    return Command(name, (int(number[1]) & U32_MAX,))


def _tube(name: str, rest: bytes) -> Command | None:
    is_tube = len(rest) <= TUBE_BYTES_MAX and _TUBE.fullmatch(rest)
    return Command(name, tube=rest.decode()) if is_tube else None


def _pause(name: str, rest: bytes) -> Command | None:
    found = _PAUSE.fullmatch(rest)
    tube = None if found is None else _tube(name, found[1])
    numbers = None if found is None else _only(_leading(U32_MAX), name, found[2])
    return None if tube is None or numbers is None else tube._replace(numbers=numbers.numbers)


_ALONE, _JOB = partial(_only, _leading()), partial(_only, _leading(U64_MAX))
_READERS: Mapping[bytes, _Read] = {
    b"put ": _leading(U32_MAX, U32_MAX, U32_MAX, U32_MAX),
    b"peek ": _JOB,
    b"peek-ready": _ALONE,
    b"peek-delayed": _ALONE,
    b"peek-buried": _ALONE,
    b"reserve-with-timeout ": _leading(2**31 - 1),
    b"reserve-job ": _JOB,
    b"reserve": _ALONE,
    b"delete ": _JOB,
    b"release ": partial(_only, _leading(U64_MAX, U32_MAX, U32_MAX)),
    b"bury ": partial(_only, _leading(U64_MAX, U32_MAX)),
    b"kick ": _count,
    b"kick-job ": _JOB,
    b"touch ": _JOB,
    b"stats-job ": _JOB,
    b"stats-tube ": _tube,
    b"stats": _ALONE,
    b"use ": _tube,
    b"watch ": _tube,
    b"ignore ": _tube,
    b"list-tubes-watched": _ALONE,
    b"list-tube-used": _ALONE,
    b"list-tubes": _ALONE,
    b"quit": _leading(),
    b"pause-tube": _pause,
}
"""The readers by the beginning of the line; the first one that fits counts."""
NAMES = frozenset(word.decode().strip() for word in _READERS)
_WORD = re.compile(b"|".join(map(re.escape, _READERS)))


def command_of(line: bytes) -> Command | bytes:
    """The command in a line without its end, or the reply that refuses it."""
    if b"\0" in line:
        return BAD_FORMAT
    word = _WORD.match(line)
    if word is None:
        return UNKNOWN_COMMAND
    return _READERS[word[0]](word[0].decode().strip(), line[word.end() :]) or BAD_FORMAT


def with_body(word: str, number: int, body: bytes) -> bytes:
    """`RESERVED` or `FOUND`, with a job."""
    return b"%b %d %d\r\n%b\r\n" % (word.encode(), number, len(body), body)


def listing(names: Iterable[str]) -> bytes:
    return _ok("".join(f"- {name}\n" for name in names))


def figures(values: Mapping[str, Any]) -> bytes:
    return _ok("".join(f"{name}: {value}\n" for name, value in values.items()))


def _ok(yaml: str) -> bytes:
    body = f"---\n{yaml}".encode()
    return b"OK %d\r\n%b\r\n" % (len(body), body)
