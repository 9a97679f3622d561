"""The stored state of a task key in a keyed discipline."""

from typing import Annotated

import msgspec

from fdbqueue.core.aside import DAMAGED
from fdbqueue.tasks.records.keys import Count

# A later round is damage: it does not fit into a key. A thousand years of rounds end far below.
ROUND_MAX = 2**60
Round = Annotated[int, msgspec.Meta(ge=0, le=ROUND_MAX)]


class KeyState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a task key. A key that is as a new one has no state stored."""

    pointer: bytes = b""
    """The place of its pointer among `ready`; b"" if no task can be taken."""
    head: bytes = b""
    """The place of the task that the pointer holds."""
    taken: Count = 0
    round: Round = 0
    """The last round in which tasks of the key were taken."""
    used: Count = 0
    """Units of quota used in `round`."""
    held: bool = False
    """True while tasks of the key are ready or taken in the partition that it is leaving."""


IDLE = KeyState()

state_to_bytes = msgspec.msgpack.Encoder().encode
state_of = msgspec.msgpack.Decoder(KeyState).decode
"""Decode a state. Raises one of aside.DAMAGED for damaged bytes."""


def readable_state(value: bytes | None) -> KeyState | None:
    """The state of a task key, as new if none is stored; None for a damaged one."""
    try:
        return IDLE if value is None else state_of(value)
    except DAMAGED:
        return None
