"""The definition of a named queue, as it is stored, with the version of its key layout.

    (id, kind, options, layout, *more)    `more`: parts that a newer release of the same layout has appended

A definition of three parts has the layout of this release. A process that rewrites it keeps all other parts.
The layout says whether this release may touch the contents at all, so it is judged before anything else: in a
newer layout, kind and options may mean something else.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from fdb import tuple as layer

from fdbqueue.core.errors import DefinitionUnreadable, LayoutNewer
from fdbqueue.core.misfit import type_name
from fdbqueue.core.root_keys import LAYOUT

PLAIN = "queue"
"""The kind of recipe queues."""
PIECES = "elements"
"""The kind of element queues with pieces by name."""
SIMPLE = "simple-elements"
"""The kind of element queues with one piece of data."""
UNREADABLE = "unreadable"
"""The kind, in listings, of a queue with a definition that cannot be read."""
UNPACKING = (ValueError, IndexError, struct.error, RecursionError)
"""Errors of the tuple layer for bytes that it has not packed."""
ID_MAX = 2**62


@dataclass(frozen=True)
class Definition:
    """The definition of a named queue. `id` is never used again, not even after a drop."""

    name: str
    id: int
    kind: str
    options: Mapping[str, Any]
    version: tuple[Any, ...] = (LAYOUT,)
    """The layout, and the parts behind it that this release does not know; empty if none is stored."""

    def to_bytes(self) -> bytes:
        options = msgspec.json.encode(self.options, order="sorted")
        value: bytes = layer.pack((self.id, self.kind, options, *self.version))
        return value

    @classmethod
    def from_bytes(cls, name: str, value: bytes) -> "Definition":
        with _damage_told(name):
            id_, kind, options, *version = layer.unpack(value)
            if version:
                _require_known(name, version[0])
            parsed = _mapping(msgspec.json.decode(options))
            return cls(name, _checked_id(id_), _text(kind), parsed, tuple(version))

    @classmethod
    def listed(cls, name: str, value: bytes) -> "Definition":
        """For a listing: an unreadable definition has its name, and its id if that is readable."""
        try:
            return cls.from_bytes(name, value)
        except DefinitionUnreadable:
            return cls(name, _id_in(value), UNREADABLE, {})

    def is_same_queue(self, other: "Definition") -> bool:
        """True if both describe one queue, whatever their versions."""
        return (self.id, self.kind, self.options) == (other.id, other.kind, other.options)


def require_known_layout(name: str, value: bytes) -> None:
    """Judge the stored layout of a queue without a definition: the packed tuple (layout, *more)."""
    with _damage_told(name):
        _require_known(name, layer.unpack(value)[0])


@contextmanager
def _damage_told(name: str) -> Iterator[None]:
    try:
        yield
    except LayoutNewer:
        raise
    except (*UNPACKING, TypeError, msgspec.MsgspecError) as reason:
        raise DefinitionUnreadable(name=name, reason=f"{type_name(reason)}: {reason}") from reason


def _require_known(name: str, layout: Any) -> None:
    if not isinstance(layout, int) or layout < LAYOUT:
        raise TypeError("its layout is not valid")
    if layout > LAYOUT:
        raise LayoutNewer(name=name, layout=layout, known=LAYOUT)


def _checked_id(id_: Any) -> int:
    if not isinstance(id_, int) or not 0 < id_ < ID_MAX:
        raise TypeError("its id is not valid")
    return id_


def _text(kind: Any) -> str:
    if not isinstance(kind, str):
        raise TypeError("its kind is no text")
    return kind


def _mapping(options: Any) -> Mapping[str, Any]:
    if not isinstance(options, dict):
        raise TypeError("its options are none")
    return options


def _id_in(value: bytes) -> int:
    """The id in a definition that cannot be read as a whole; 0 without a readable id."""
    try:
        return _checked_id(layer.unpack(value)[0])
    except (*UNPACKING, TypeError):
        return 0
