"""Groups as stored: their definitions, and the counts of their members.

The counts of a group are one long number, as those of statistics are: an atomic add changes any of them. So
the ends of members never conflict with each other. A task is *left* until it has ended, or is buried in a
group that does not wait for buried tasks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import msgspec
from msgspec.structs import replace

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.partitions import GROUP_BYTES
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.records.keys import Count, Extra, Member, Record
from fdbqueue.tasks.records.statistics import packed, unpacked

COUNTS = ("put", "done", "failed", "buried", "counted")
"""Those of a group. `counted`: members that count as failed, and are still stored."""
MEMBERS = ("members", "counted", "buried")
"""Those of the members of a group that one queue stores."""
_FIELD_MAX = 2**63


class Then(msgspec.Struct, frozen=True, array_like=True):
    """The task that starts when a group has ended. Append fields with a default; never reorder."""

    queue_id: int
    queue: str
    task: bytes


class GroupRow(msgspec.Struct, frozen=True, array_like=True):
    """The definition of a group. Append values to `more` (records/extra.py)."""

    created_us: Count
    holds: bool = True
    """True if it waits for its buried members."""
    is_open: bool = True
    then: Then | None = None
    retain_us: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Time for which the rows of an ended group are kept."""
    ended_us: Count = 0
    """The time at which it has ended; 0 before."""
    parent: bytes = b""
    """The one member of a group that a put with `after` has made."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""


row_to_bytes = msgspec.msgpack.Encoder().encode
row_of = msgspec.msgpack.Decoder(GroupRow).decode
"""Decode a definition. Raises one of aside.DAMAGED for damaged bytes."""


def readable_row(value: bytes | None) -> GroupRow | None:
    try:
        return None if value is None else row_of(value)
    except DAMAGED:
        return None


@dataclass(frozen=True)
class Counts:
    put: int = 0
    done: int = 0
    failed: int = 0
    buried: int = 0
    counted: int = 0

    @property
    def left(self) -> int:
        return self.put - self.done - self.failed

    @property
    def stored(self) -> int:
        return self.left + self.counted


def counts_of(value: bytes | None) -> Counts:
    return Counts(**{name: _signed(number) for name, number in unpacked(COUNTS, value).items()})


def counts_added(changes: Mapping[str, int]) -> bytes:
    return packed(COUNTS, changes)


def members_of(value: bytes | None) -> dict[str, int]:
    return unpacked(MEMBERS, value)


def members_added(changes: Mapping[str, int]) -> bytes:
    return packed(MEMBERS, changes)


NO_MEMBERS = packed(MEMBERS, {})


def _signed(number: int) -> int:
    return number - 2 * _FIELD_MAX if number >= _FIELD_MAX else number


class HasExtra(Protocol):
    """A record, or the draft of one."""

    @property
    def extra(self) -> Extra | None: ...


class AnyGroup(Protocol):
    """A group of either face: `fdbqueue.Group`, and `fdbqueue.aio.Group` in a call of fdbqueue.aio."""

    @property
    def id(self) -> str: ...


def checked_group(group: Any) -> bytes:
    """The stored id of a group, or of the text of its id. Raises: InvalidArgument."""
    text = group if isinstance(group, str) else getattr(group, "id", None)
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if len(found) != GROUP_BYTES:
        raise InvalidArgument(name="group", wanted="a Group, or the id of one", got=group)
    return found


def groups_of(record: HasExtra) -> tuple[Member, ...]:
    return () if record.extra is None else record.extra.groups


def with_groups(record: Record, groups: tuple[Member, ...]) -> Record:
    return replace(record, extra=replace(record.extra or Extra(), groups=groups))


def without_groups(record: Record) -> Record:
    return with_groups(record, ()) if groups_of(record) else record


def epoch_of(value: bytes | None) -> int:
    return int.from_bytes(value or b"", "big")


def groups_in(records: Sequence[Record]) -> Iterator[bytes]:
    yield from dict.fromkeys(member.group for record in records for member in groups_of(record))
