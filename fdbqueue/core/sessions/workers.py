"""The live workers of queues, and their runs. fdbqueue/fleet/status.py writes their presences. One in trouble
takes nothing, and is not counted; but its tasks may hang, as those of a drained one. A presence is not
written again while all handlers hang, so the time since then is added to its runs. A wrong clock, or
versions that jump, make that time too long: the shorter one counts.
"""

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of, ticks_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, ReadTransaction
from fdbqueue.core.sessions.ending import deadline_if_readable
from fdbqueue.core.task import LongRun
from fdbqueue.core.unreadable import DAMAGED


class _Running(msgspec.Struct):
    id: str
    queue: str
    for_s: float
    usual_s: float | None = None
    lost: bool = False


class _Presence(msgspec.Struct):
    queues: tuple[str, ...]
    more_queues: int = 0
    trouble: str = ""
    host: str = ""
    process_id: int = 0
    running: tuple[_Running, ...] = ()
    seen: float = 0.0
    full_s: float = 0.0
    ticks: int = 0
    age_s: float = 0.0
    """The time since it was written, at the look."""
    clock_s: float = 0.0
    """The difference of its clock from that of the look, at the least; 0 for a presence that tells none."""


_read = msgspec.json.Decoder(_Presence).decode


@dataclass(frozen=True)
class LiveWorkers:
    total: int = 0
    of_any_queue: int = 0
    """Workers with more queues than their presence has room for: each may take from any."""
    by_queue: Mapping[str, int] = field(default_factory=dict)
    """Workers of queues by name, without those of any queue."""
    hung: Mapping[str, tuple[LongRun, ...]] = field(default_factory=dict)
    """The tasks that seem to hang, by their queues, the longest runs first."""
    full_s: Mapping[str, float] = field(default_factory=dict)
    """By queue, the time since which its workers have had no free thread. Queues with a free one are left
    out, and all queues while a worker may take from any.
    """

    clock_s: float = 0.0
    """The largest difference of a clock, among presences that were written in the last minute."""

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
        alive = [row.value for row in rows.to_list() if keys.session_of(bytes(row.key)) not in dead]
        presences = [_presence_of(value, tr, now_us) for value in alive]
        return _counted([one for one in presences if one is not None])

    return workers


def _counted(presences: list[_Presence]) -> LiveWorkers:
    takers = [presence for presence in presences if not presence.trouble]
    few = [presence for presence in takers if not presence.more_queues]
    by_queue = Counter(queue for presence in few for queue in set(presence.queues))
    full = {queue: _full_s([one for one in few if queue in one.queues]) for queue in by_queue}
    no_other = len(few) == len(takers)
    return LiveWorkers(
        len(takers),
        len(takers) - len(few),
        by_queue,
        _hung(presences),
        {queue: seconds for queue, seconds in full.items() if seconds and no_other},
        max((presence.clock_s for presence in presences), default=0.0),
    )


def _hung(presences: Iterable[_Presence]) -> dict[str, tuple[LongRun, ...]]:
    found = dict[str, tuple[LongRun, ...]]()
    for run in longest(run for presence in presences for run in _runs(presence) if run.is_hung):
        found[run.queue] = (*found.get(run.queue, ()), run)
    return found


def longest(runs: Iterable[LongRun]) -> list[LongRun]:
    return sorted(runs, key=lambda run: -run.for_s)


def _runs(presence: _Presence) -> list[LongRun]:
    since_s, host, process_id = presence.age_s, presence.host, presence.process_id
    return [
        LongRun(one.id, one.queue, one.for_s + since_s, one.usual_s, host, process_id, one.lost)
        for one in presence.running
    ]


def _full_s(presences: list[_Presence]) -> float:
    """The time since which none of these workers has had a free thread; 0 if one has."""
    since = [one.full_s and one.full_s + one.age_s for one in presences]
    return min(since, default=0.0)


@dataclass(frozen=True)
class Crew:
    """The live workers of one queue."""

    count: int
    full_s: float
    runs: tuple[LongRun, ...]
    """Their longest runs, at most limits.EXPLAINED_RUNS, if none of them has a free thread."""


def ask_run(
    tr: ReadTransaction, keys: RootKeys, session: bytes, id_: str, now_us: int
) -> Callable[[], LongRun | None]:
    """Ask for the run of a task in the worker with that session; None if it does not tell it."""
    found = tr.get(keys.presence(session))

    def run() -> LongRun | None:
        presence = _presence_of(found.value, tr, now_us) if found.present() else None
        told = [] if presence is None else _runs(presence)
        return next((one for one in told if one.id == id_), None)

    return run


def ask_pause_end(tr: ReadTransaction, keys: RootKeys) -> Callable[[], float | None]:
    """Ask for the end of the pause of the fleet; None if none is in force. Reads: one key."""
    found, now = tr.get(keys.pause), runtime_of(tr).now()

    def end() -> float | None:
        ends = pause_end(found.value) if found.present() else None
        return ends if ends is None or not ends or ends > now else None

    return end


def pause_end(value: bytes) -> float:
    """A damaged pause has no end: 0."""
    try:
        return float(layer.unpack(value)[0] / 1_000_000)
    except (ValueError, IndexError, TypeError, struct.error):
        return 0.0


def pause_value(until_us: int) -> bytes:
    value: bytes = layer.pack((until_us,))
    return value


def ask_workers(
    tr: ReadTransaction, keys: RootKeys, queue: str, now_us: int
) -> Callable[[], Callable[[], Crew]]:
    """Ask for the workers that may take from `queue`, among the first limits.EXPLAINED_WORKERS of the root.

    The reply asks for their heartbeats, and its reply has those that are alive. A worker with more queues
    than its presence has room for may take from any.
    """
    under = keys.presences
    found = tr.get_range(under.start, under.stop, limit=limits.EXPLAINED_WORKERS, streaming_mode=EXACT)

    def heartbeats() -> Callable[[], Crew]:
        rows = [(bytes(row.key), _presence_of(row.value, tr, now_us)) for row in found.to_list()]
        takers = [(key, one) for key, one in rows if one is not None and _takes_from(one, queue)]
        asked = [(tr.get(keys.heartbeat(keys.session_of(key))), one) for key, one in takers]
        return lambda: _crew(
            [one for beat, one in asked if (deadline_if_readable(beat.value or b"") or 0) > now_us]
        )

    return heartbeats


def _crew(presences: list[_Presence]) -> Crew:
    full_s = _full_s(presences)
    runs = [run for presence in presences for run in _runs(presence)] if full_s else []
    return Crew(len(presences), full_s, tuple(longest(runs)[: limits.EXPLAINED_RUNS]))


def _takes_from(presence: _Presence, queue: str) -> bool:
    return not presence.trouble and (queue in presence.queues or presence.more_queues > 0)


def _presence_of(value: bytes, tr: ReadTransaction, now_us: int) -> _Presence | None:
    try:
        found = _read(value)
    except DAMAGED:
        return None
    age_s = now_us / 1_000_000 - found.seen
    ticks_s = (ticks_of(tr) - found.ticks) / 1_000_000 if found.ticks else age_s
    if found.ticks and 0 <= ticks_s < limits.AGE_TOLD_MAX_S:
        unsure_s = limits.AGE_LAG_S + limits.AGE_DRIFT * ticks_s
        found.clock_s = max(0.0, abs(ticks_s - age_s) - unsure_s)
    found.age_s = max(0.0, min(age_s, ticks_s))
    return found
