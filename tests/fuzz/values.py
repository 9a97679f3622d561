"""Hostile values: each by its label, made afresh for every call."""

import datetime
import enum
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import fdbqueue
from fdbqueue.core import limits

DEPTH = 5_000


class CallersError(Exception):
    """Raised by an object of the caller; a call may pass it on."""


class ReadTooMuch(BaseException):
    """A call has read far more of an endless iterable than one transaction may carry."""


class ShowsNothing:
    """Its texts cannot be made: an error message has to do without."""

    def __repr__(self) -> str:
        raise ReferenceError("no repr")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        raise ReferenceError("no format")


class ShowsMuch:
    def __repr__(self) -> str:
        return "\x1b[31m" + "r" * 9_000_000


class EqualsNothing:
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise CallersError("no ==")


class HasNoHash:
    def __hash__(self) -> int:
        raise CallersError("no hash")


class IsNeither:
    def __bool__(self) -> bool:
        raise CallersError("no bool")

    def __len__(self) -> int:
        raise CallersError("no len")


class CannotBeRead:
    def __iter__(self) -> Iterator[Any]:
        raise CallersError("no iter")


class HasNoAttributes:
    def __getattr__(self, name: str) -> Any:
        raise CallersError(f"no {name}")


class AText(str):
    def encode(self, *_: Any, **__: Any) -> bytes:
        raise CallersError("no encode")


class ANumber(int):
    def __lt__(self, other: object) -> bool:
        raise CallersError("no <")

    __le__ = __gt__ = __ge__ = __lt__


class Colour(enum.Enum):
    RED = "red"


class KeyIsNoBytes:
    def key(self) -> Any:
        return "a text"


class KeyFails:
    def key(self) -> bytes:
        raise CallersError("no key")


def endless() -> Iterator[int]:
    yield from range(20 * limits.BATCH_ITEMS_MAX)
    raise ReadTooMuch


def breaks() -> Iterator[int]:
    yield 1
    raise CallersError("the iterable broke")


async def asynchronous(*_: Any, **__: Any) -> None: ...


def generating(*_: Any, **__: Any) -> Iterator[None]:
    yield


def nested(wrap: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(DEPTH):
        value = wrap(value)
    return value


def contains_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def _event_set() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


PLAIN: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "1": 1,
    "-1": -1,
    "7": 7,
    "-0.0": -0.0,
    "0.5": 0.5,
    "2**31": 2**31,
    "2**62": 2**62,
    "2**64": 2**64,
    "10**400": 10**400,
    "-10**400": -(10**400),
    "10**5000": 10**5000,
    "1e15": 1e15,
    "1e308": 1e308,
    "-1e308": -1e308,
    "5e-324": 5e-324,
    "nan": math.nan,
    "inf": math.inf,
    "-inf": -math.inf,
    "complex": 1 + 1j,
    "Decimal": Decimal("1.5"),
    "Decimal nan": Decimal("NaN"),
    "Fraction": Fraction(1, 3),
    "empty text": "",
    "text": "a",
    "digits": "7",
    "NUL": "a\x00b",
    "surrogate": "\ud800",
    "escaped byte": "\udcff",
    "escape": "\x1b[31mred\x1b[0m\x07",
    "C1 and bidi": "\x9b31m\u202e\u200b\u2028",
    "newline": "a\nb\r\nc",
    "300 letters": "x" * 300,
    "20 kB of text": "é" * 10_000,
    "1 MB of text": "x" * 1_000_000,
    "path": "../../etc/passwd",
    "metacharacters": "$(touch x); `id` %s {0} {} {name!r}",
    "url": "embedded:" + "a/" * 3_000,
    "memory url": "memory:",
    "empty bytes": b"",
    "bytes": b"\xff\x00",
    "1 MB of bytes": b"x" * 1_000_000,
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "()": (),
    "tuple": (1, "a"),
    "set": {1},
    "range": range(3),
    "Ellipsis": ...,
    "a class": dict,
    "a database's class": fdbqueue.Database,
    "a session's class": fdbqueue.Session,
    "an event's class": threading.Event,
    "a module": math,
    "an error": ValueError("x" * 100_000),
    "an error's class": ValueError,
    "enum": Colour.RED,
    "a state": fdbqueue.TaskState.TAKEN,
    "datetime": datetime.datetime(2020, 1, 1),
    "uuid": uuid.UUID(int=1),
    "coroutine function": asynchronous,
    "generator function": generating,
    "a lambda": lambda *_, **__: None,
    "str subclass": AText("a"),
    "int subclass": ANumber(1),
}

MADE: dict[str, Callable[[], Any]] = {
    "object": object,
    "[]": list,
    "list": lambda: [1, "a"],
    "list of None": lambda: [None],
    "{}": dict,
    "dict": lambda: {"a": 1},
    "dict of odd keys": lambda: {None: 1, 1: "x", "\ud800": math.nan},
    "dict of an object": lambda: {"a": object()},
    "deep list": lambda: nested(lambda part: [part]),
    "deep tuple": lambda: nested(lambda part: (part,)),
    "deep dict": lambda: nested(lambda part: {"a": part}),
    "list in itself": contains_itself,
    "endless generator": endless,
    "broken generator": breaks,
    "shows nothing": ShowsNothing,
    "shows much": ShowsMuch,
    "equals nothing": EqualsNothing,
    "no hash": HasNoHash,
    "no bool": IsNeither,
    "no iter": CannotBeRead,
    "no attributes": HasNoAttributes,
    "event": _event_set,
    "key is no bytes": KeyIsNoBytes,
    "key fails": KeyFails,
    "failure of odd texts": lambda: fdbqueue.Failure(ValueError, 7, b"\xff", "\ud800"),  # type: ignore[arg-type]
    "odd task": lambda: fdbqueue.Task(id=7, state="t", data=None, token="x"),  # type: ignore[arg-type]
    "task of a lease": lambda: fdbqueue.Task("00" * 20, fdbqueue.TaskState.TAKEN, None, token=b"x"),
}

HOSTILE: dict[str, Callable[[], Any]] = {
    **{label: (lambda value=value: value) for label, value in PLAIN.items()},
    **MADE,
}
