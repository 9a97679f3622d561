"""The workers of a queue, counted by their presences, of which fdbqueue/fleet/presence.py is the writer."""

from collections.abc import Callable
from typing import Any

import msgspec

from fdbqueue import limits
from fdbqueue.aside import DAMAGED
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import ReadTransaction


class _Presence(msgspec.Struct):
    """The part of a presence that names the queues."""

    queues: tuple[str, ...]
    more_queues: int = 0


_read = msgspec.json.Decoder(_Presence).decode


def ask_workers(tr: ReadTransaction, keys: RootKeys, queue: str) -> Callable[[], int]:
    """Ask for the number of workers that may take from `queue`, among the first limits.WORKERS_LISTED_MAX.

    A worker with more queues than its presence has room for may take from any.
    """
    under = keys.presences
    found: Any = tr.get_range(under.start, under.stop, limit=limits.WORKERS_LISTED_MAX)
    return lambda: sum(_takes_from(row.value, queue) for row in found)


def _takes_from(value: bytes, queue: str) -> bool:
    try:
        presence = _read(value)
    except DAMAGED:
        return False
    return queue in presence.queues or presence.more_queues > 0
