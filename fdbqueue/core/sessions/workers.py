"""The live workers of queues. fdbqueue/fleet/status.py writes their presences. One in trouble takes nothing,
and is not counted.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, ReadTransaction
from fdbqueue.core.sessions.ending import deadline_if_readable
from fdbqueue.core.unreadable import DAMAGED


class _Presence(msgspec.Struct):
    queues: tuple[str, ...]
    more_queues: int = 0
    trouble: str = ""


_read = msgspec.json.Decoder(_Presence).decode


@dataclass(frozen=True)
class LiveWorkers:
    total: int = 0
    of_any_queue: int = 0
    """Workers with more queues than their presence has room for: each may take from any."""
    by_queue: Mapping[str, int] = field(default_factory=dict)
    """Workers of queues by name, without those of any queue."""

    def of(self, queue: str) -> int:
        """The workers that may take from `queue`."""
        return self.by_queue.get(queue, 0) + self.of_any_queue


def ask_all_workers(tr: ReadTransaction, keys: RootKeys, now_us: int) -> Callable[[], LiveWorkers]:
    """Ask for the live workers among the first limits.WORKERS_LISTED_MAX of the root.

    Sessions that are overdue are read, and not those that live: a sweep ends them, so they are few. A
    worker with an overdue session behind limits.WORKERS_LISTED_MAX others counts as alive.
    """
    under, overdue = keys.presences, keys.beats_due_until(now_us)
    rows = tr.get_range(under.start, under.stop, limit=limits.WORKERS_LISTED_MAX, streaming_mode=EXACT)
    late = tr.get_range(overdue.start, overdue.stop, limit=limits.WORKERS_LISTED_MAX, streaming_mode=EXACT)

    def workers() -> LiveWorkers:
        dead = {beat[1] for row in late.to_list() if (beat := keys.beat_of(bytes(row.key))) is not None}
        presences = [
            _presence_of(row.value) for row in rows.to_list() if keys.session_of(bytes(row.key)) not in dead
        ]
        return _counted([one for one in presences if one is not None and not one.trouble])

    return workers


def _counted(presences: list[_Presence]) -> LiveWorkers:
    few = [presence for presence in presences if not presence.more_queues]
    by_queue = Counter(queue for presence in few for queue in set(presence.queues))
    return LiveWorkers(len(presences), len(presences) - len(few), by_queue)


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
        return lambda: sum((deadline_if_readable(one.value or b"") or 0) > now_us for one in asked)

    return heartbeats


def _takes_from(value: bytes, queue: str) -> bool:
    presence = _presence_of(value)
    if presence is None or presence.trouble:
        return False
    return queue in presence.queues or presence.more_queues > 0


def _presence_of(value: bytes) -> _Presence | None:
    try:
        return _read(value)
    except DAMAGED:
        return None
