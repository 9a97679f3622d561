"""The live workers of a queue. fdbqueue/fleet/presence.py writes their presences."""

from collections.abc import Callable

import msgspec

from fdbqueue import limits
from fdbqueue.aside import DAMAGED
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import EXACT, ReadTransaction
from fdbqueue.sessions.openers import deadline_if_readable


class _Presence(msgspec.Struct):
    """The part of a presence that names the queues."""

    queues: tuple[str, ...]
    more_queues: int = 0


_read = msgspec.json.Decoder(_Presence).decode


def ask_workers(
    tr: ReadTransaction, keys: RootKeys, queue: str, now_us: int
) -> Callable[[], Callable[[], int]]:
    """Ask for the workers that may take from `queue`, among the first limits.EXPLAINED_WORKERS of the root.

    The reply asks for their heartbeats, and its reply is the number of those that are alive. A worker with
    more queues than its presence has room for may take from any.
    """
    under = keys.presences
    found = tr.get_range(under.start, under.stop, limit=limits.EXPLAINED_WORKERS, streaming_mode=EXACT)

    def heartbeats() -> Callable[[], int]:
        takers = [bytes(row.key) for row in found.to_list() if _takes_from(row.value, queue)]
        asked = [tr.get(keys.heartbeat(keys.session_of(presence))) for presence in takers]
        return lambda: sum(_deadline_us(heartbeat.value) > now_us for heartbeat in asked)

    return heartbeats


def _takes_from(value: bytes, queue: str) -> bool:
    try:
        presence = _read(value)
    except DAMAGED:
        return False
    return queue in presence.queues or presence.more_queues > 0


def _deadline_us(heartbeat: bytes | None) -> int:
    return 0 if heartbeat is None else deadline_if_readable(heartbeat) or 0
