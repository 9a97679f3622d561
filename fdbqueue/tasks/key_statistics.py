"""Statistics by task key: the keys with the most ready tasks, and the age of the first of each."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.disciplines.discipline import no_mending, read_index
from fdbqueue.tasks.disciplines.key_counts import slug_of
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import id_text
from fdbqueue.tasks.records.statistics import LIVE, unpacked


@dataclass(frozen=True, slots=True)
class Waiting:
    """A ready task of a key: its id, and the seconds since its put."""

    id: str
    age_s: float


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """The number of tasks of a key in each state, and its first ready task."""

    key: Any
    ready: int
    taken: int
    buried: int
    delayed: int
    oldest: Waiting | None


def busiest_keys(tr: Transaction, discipline: Keyed, limit: int, now_us: int) -> list[KeyStatistics]:
    """Reads: by snapshot, at most three times limits.KEYS_LOOKED_AT_MAX keys. Conflicts: none."""
    return [one for _, one in _busiest(tr, discipline, limit, now_us)]


def busiest_of_all(changes: Sequence[Change], limit: int) -> list[KeyStatistics]:
    """The busiest task keys of all partitions. Their ready tasks are in one of them, or in two while the key
    moves; their other tasks may be in any. It reads three times limits.KEYS_LOOKED_AT_MAX keys of each.
    """
    found: dict[bytes, KeyStatistics] = {}
    disciplines = [(change, _keyed(change)) for change in changes]
    for change, discipline in disciplines:
        for key, one in _busiest(change.tr, discipline, limit, change.now_us):
            found[key] = _together(found[key], one) if key in found else one
    best = sorted(found.items(), key=lambda entry: (-entry[1].ready, entry[0]))[:limit]
    return [one for _, one in best] if len(changes) == 1 else _with_the_rest(changes, best)


def _with_the_rest(
    changes: Sequence[Change], best: Sequence[tuple[bytes, KeyStatistics]]
) -> list[KeyStatistics]:
    """The statistics of these keys, with tasks in partitions where they are not among the busiest."""
    asked = [
        [_keyed(change).counts.ask(change.tr, slug_of(key)).counts for change in changes] for key, _ in best
    ]
    numbers = [[unpacked(LIVE, counts.value) for counts in of_key] for of_key in asked]
    return [_summed(one, parts) for (_, one), parts in zip(best, numbers, strict=True)]


def _summed(one: KeyStatistics, parts: Sequence[Mapping[str, int]]) -> KeyStatistics:
    total = {name: sum(part[name] for part in parts) for name in LIVE}
    return KeyStatistics(key=one.key, **total, oldest=one.oldest)


def _keyed(change: Change) -> Keyed:
    assert isinstance(change.shape.discipline, Keyed)
    return change.shape.discipline


def _together(one: KeyStatistics, other: KeyStatistics) -> KeyStatistics:
    waiting = [part.oldest for part in (one, other) if part.oldest is not None]
    oldest = max(waiting, key=lambda first: first.age_s, default=None)
    return replace(one, ready=one.ready + other.ready, oldest=oldest)


def _busiest(
    tr: Transaction, discipline: Keyed, limit: int, now_us: int
) -> list[tuple[bytes, KeyStatistics]]:
    found = [(key, numbers) for key, numbers in discipline.counts.busiest(tr.snapshot, limit) if _is_key(key)]
    asked = [discipline.ask_oldest(tr.snapshot, key) for key, _ in found]
    records = [list(read_index(tr, line, no_mending)) for line in asked]
    return [
        (
            key,
            KeyStatistics(
                key=layer.unpack(key)[0],
                **numbers,
                oldest=next(
                    (Waiting(id_text(r.id), (now_us - r.created_us) / 1_000_000) for r in first), None
                ),
            ),
        )
        for (key, numbers), first in zip(found, records, strict=True)
    ]


def _is_key(packed: bytes) -> bool:
    """False for a damaged key, which no task has."""
    try:
        return len(layer.unpack(packed)) == 1
    except (ValueError, IndexError, struct.error):
        return False


def checked_keys(limit: int) -> int:
    return checked_count("limit", limit, limits.KEYS_LOOKED_AT_MAX)
