"""Vectors: what each verb of each kind reads and writes, as a file tells it (operate/layout/vectors.json).

The file has *scripts*. A script begins with the keys `given`, and each of its steps is one call in one
transaction, on the keys that the steps before it have left. A step stores its changes only, so the file stays
short; `vectors_in` gives each step the whole keys before it and after it.

A vector is read by people, too: keys, names and payloads stay legible. In JSON, no character of such a text
needs an escape. A file may store a long run of one byte as its text and a number.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
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


def heard(value: Told) -> bytes:
    """The bytes that a text, or its parts, stand for."""
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


Keys = dict[bytes, bytes]
Ranges = tuple[tuple[bytes, bytes], ...]
"""Ranges of keys, [begin, end), sorted, that neither overlap nor touch."""


@dataclass(frozen=True)
class Conflicts:
    """The conflict ranges of a transaction. `writes`: those beside the keys that it changes."""

    reads: Ranges = ()
    writes: Ranges = ()


@dataclass(frozen=True)
class Vector:
    """One call: the keys before it, its arguments, and all that follows from them."""

    name: str
    kind: str
    verb: str
    call: Mapping[str, Any]
    """The queue and the arguments; bytes as escaped texts."""
    now_us: int
    random: tuple[bytes, ...]
    before: Keys
    after: Keys
    returns: Any = None
    conflicts: Conflicts | None = None
    """None for a call that refuses, and for one given a database, which may make several transactions."""

    @property
    def refuses(self) -> bool:
        """True for a queue, or an argument, that the page tells each program to refuse."""
        return is_refusal(self.returns)

    def is_one_of(self, selected: str) -> bool:
        """True for `KIND`, `KIND/VERB` or the whole name."""
        return selected in (self.kind, f"{self.kind}/{self.verb}", self.name)


@dataclass
class Step:
    """A step of a script, as it is stored."""

    verb: str
    call: dict[str, Any]
    now_us: int
    random: list[bytes] = field(default_factory=list)
    set: Keys = field(default_factory=dict)
    clear: list[bytes] = field(default_factory=list)
    returns: Any = None
    conflicts: Conflicts | None = None

    def on(self, keys: Keys) -> Keys:
        left = {key: value for key, value in keys.items() if key not in self.clear}
        return dict(sorted((left | self.set).items()))

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> "Step":
        conflicts = None
        if "reads" in stored:
            conflicts = Conflicts(ranges_of(stored["reads"]), ranges_of(stored.get("writes", ())))
        return cls(
            stored["verb"],
            stored["call"],
            stored["now_us"],
            [*map(unescaped, stored.get("random", ()))],
            keys_of(stored.get("set", {})),
            [*map(unescaped, stored.get("clear", ()))],
            stored.get("returns"),
            conflicts,
        )


def vectors_in(stored: Mapping[str, Any]) -> Iterator[Vector]:
    """The vectors of a file, each with all keys before and after it."""
    for script in stored["scripts"]:
        keys = keys_of(script.get("given", {}))
        for number, one in enumerate(script["steps"], 1):
            step, before = Step.of_json(one), keys
            keys = step.on(before)
            yield Vector(
                f"{script['name']}#{number}",
                script["kind"],
                step.verb,
                step.call,
                step.now_us,
                tuple(step.random),
                before,
                keys,
                plain(step.returns),
                step.conflicts,
            )


def is_refusal(returns: Any) -> bool:
    """True for the result of a call that the page tells each program to refuse."""
    return isinstance(returns, dict) and "refused" in returns


def plain(returns: Any) -> Any:
    """A result, in which each payload is one text."""
    if not isinstance(returns, list):
        return returns
    return [one if isinstance(one, str) else escaped(heard(one)) for one in returns]


def stored_vectors() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_text("vectors.json"))
    return found


def _text(name: str) -> str:
    return (resources.files("fdbqueue.operate") / "layout" / name).read_text()


def texts_of(keys: Mapping[bytes, bytes]) -> dict[str, str]:
    return {escaped(key): escaped(value) for key, value in sorted(keys.items())}


def keys_of(texts: Mapping[str, Any]) -> Keys:
    return {unescaped(key): heard(value) for key, value in texts.items()}


def merged(ranges: "list[tuple[bytes, bytes]]") -> Ranges:
    """The same keys as sorted ranges that do not touch."""
    found: list[tuple[bytes, bytes]] = []
    for begin, end in sorted(one for one in ranges if one[0] < one[1]):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return tuple(found)


def ranges_of(told: Any) -> Ranges:
    pairs = []
    for one in told:
        if isinstance(one, str):
            pairs.append((unescaped(one), unescaped(one) + b"\x00"))
        else:
            begin, end = one
            pairs.append((unescaped(begin), unescaped(end)))
    return merged(pairs)
