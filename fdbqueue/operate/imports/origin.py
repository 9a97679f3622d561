"""Origin: the queue of another system that an import reads, and never writes.

Each entry has a position, which grows in the order of delivery and which the origin never uses again. So the
position of the last entry that was put tells a later import where to go on.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

Position = tuple[Any, ...]
UNMARKED = b""


class Fate(Enum):
    """The place of an entry after the import."""

    READY = "ready"
    BURIED = "buried"
    """Failed for good in the origin."""
    LEFT_OUT = "left out"
    """Done in the origin."""


@dataclass(frozen=True)
class Entry:
    """One entry as the origin stores it."""

    position: Position
    where: str
    """Its place, for messages."""
    raw: bytes
    identity: str = ""
    """Tells it from an entry with equal bytes at the same position of another origin."""
    fate: Fate = Fate.READY
    pri: Any = None
    """As the origin has it: an int, None, or a value that is no priority."""
    damage: str | None = None
    """The reason why its bytes could not even be found."""

    def mark(self) -> bytes:
        """A digest that recognises the entry; UNMARKED for a damaged one, which may be mended."""
        return (
            UNMARKED
            if self.damage is not None
            else hashlib.sha256(self.identity.encode() + b"\x00" + self.raw).digest()
        )


class Origin(Protocol):
    label: str
    """The name of its progress."""
    kind: str
    """The kind of the queue that --create makes for it."""

    def entries(self) -> Iterator[Entry]:
        """Read the entries in order of their positions."""

    def value(self, entry: Entry) -> Any:
        """Decode an entry. Raises any Exception for bytes that are not readable."""
