"""Extra: the parts of a record that few tasks have.

Headers: texts by name that a task has beside its data, for programs that do not know its codec.

They lie in the record, so they cost no key and no round trip; tasks without headers cost one byte.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.partitions import GROUP_BYTES

NEVER_US = 2**63 - 1

# Bounds of the numbers in a record: larger ones do not fit into a key.
Count = Annotated[int, msgspec.Meta(ge=0, le=NEVER_US)]


class Unique(msgspec.Struct, frozen=True, array_like=True):
    """The unique key of a task, and its scope. Append fields with a default; never reorder."""

    key: bytes
    is_queued_only: bool = False
    """True for the scope of tasks that wait; otherwise a task is in scope until it is gone."""
    until_us: Count = 0
    """The end of a scope in seconds, whatever becomes of the task; 0 for the other scopes."""


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A task's membership in a group. Append fields with a default; never reorder."""

    group: Annotated[bytes, msgspec.Meta(min_length=GROUP_BYTES, max_length=GROUP_BYTES)]
    epoch: Count = 0
    """That of the queue at its put."""
    holds: bool = True
    """True if the group waits for it while it is buried."""
    counted: bool = False
    """True if it was buried, and counts as failed since: a later end does not count it once more."""


class Extra(msgspec.Struct, frozen=True, array_like=True):
    """The parts of a record that few tasks have. Append values to `more`, never fields behind it: an earlier
    release keeps those, and drops any other part when it rewrites the record.
    """

    headers: dict[str, str] = {}
    result_ttl_us: Annotated[int, msgspec.Meta(ge=0, le=NEVER_US)] = 0
    """Time for which the result is kept; 0 if none was asked for."""
    unique: Unique | None = None
    steps: Count = 0
    """Number of its steps that are done."""
    steps_bytes: Count = 0
    """Their bytes, names and results."""
    groups: tuple[Member, ...] = ()
    """The groups that count it."""
    waits: bytes = b""
    """The group for which it waits, as a delayed task without a due time; empty for none."""
    slots: dict[str, int] = {}
    """The limits of which a taken task holds a slot, and the cell of each slot; empty in other states."""
    limits: tuple[str, ...] = ()
    """The limits that the task names."""
    limit_keys: dict[str, bytes] = {}
    """The one among them that it names with a key, packed; empty for a task that names none so."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""

    def with_steps(self, steps: int, steps_bytes: int) -> "Extra":
        return msgspec.structs.replace(self, steps=steps, steps_bytes=steps_bytes)


extra_to_bytes = msgspec.msgpack.Encoder().encode


def without_slots(extra: Extra) -> Extra | None:
    """The extra parts of a task that is taken no more; None for a task that has no other part."""
    if not extra.slots:
        return extra
    rest = msgspec.structs.replace(extra, slots={})
    return None if rest == Extra() else rest


_to_bytes = msgspec.msgpack.Encoder().encode


def asked_headers(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED."""
    return {"headers": checked_headers("headers", options["headers"])}


def checked_headers(name: str, headers: Any) -> dict[str, str]:
    if not _are_texts(headers) or _size_bytes(headers) > limits.HEADERS_BYTES_MAX:
        wanted = f"texts by name, at most {limits.HEADERS_BYTES_MAX} bytes together"
        raise InvalidArgument(name=name, wanted=wanted, got=headers)
    # A subclass of str may encode itself in another way: these are plain texts.
    return {str.__str__(name): str.__str__(text) for name, text in headers.items()}


def _are_texts(headers: Any) -> bool:
    if not isinstance(headers, Mapping):
        return False
    return all(isinstance(name, str) and isinstance(text, str) for name, text in headers.items())


def _size_bytes(headers: Mapping[str, str]) -> int:
    """The bytes of the stored form; more than any bound for a text with half a surrogate pair."""
    try:
        return len(_to_bytes(dict(headers)))
    except UnicodeEncodeError:
        return limits.HEADERS_BYTES_MAX + 1
