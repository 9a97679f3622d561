"""Items and requests of the workload `exact_line`, as plain values."""

from dataclasses import dataclass
from typing import NamedTuple

from fdbqueue.core import limits
from tests.system.workloads.exact_times import micro

DEADLINE = micro(limits.REQUEST_DEADLINE_S) or 0
HELD = micro(limits.SHARE_HELD_S) or 0
"""A request that is older than this, and has left its share, is idle: others serve it."""
SLEPT = ("SIGNAL", "NOTICE", "RENEWAL", "NEGLECT")


class Item(NamedTuple):
    place: int
    added: int
    """The number of the call, and then that of the item in it."""
    number: int
    value: str


@dataclass
class Request:
    rid: bytes
    count: int
    registered: int
    alive_until: int


class Ready(NamedTuple):
    """Items that lie ready for a request."""

    until: int
    items: list[Item]


Answer = tuple[str, list[str]]
"""The outcome of a look, and its values."""
