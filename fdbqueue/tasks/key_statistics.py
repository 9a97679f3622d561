"""Statistics by task key: the keys with the most ready tasks, and the age of the first of each."""

import struct
from dataclasses import dataclass
from typing import Any

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.arguments import checked_count
from fdbqueue.disciplines.discipline import no_mending, read_index
from fdbqueue.disciplines.keyed import Keyed
from fdbqueue.records.keys import id_text
from fdbqueue.seam import Transaction


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
    found = [(key, numbers) for key, numbers in discipline.counts.busiest(tr.snapshot, limit) if _is_key(key)]
    asked = [discipline.ask_oldest(tr.snapshot, key) for key, _ in found]
    records = [list(read_index(tr, line, no_mending)) for line in asked]
    return [
        KeyStatistics(
            key=layer.unpack(key)[0],
            **numbers,
            oldest=next((Waiting(id_text(r.id), (now_us - r.created_us) / 1_000_000) for r in first), None),
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
    """Raises InvalidArgument."""
    return checked_count("limit", limit, limits.KEYS_LOOKED_AT_MAX)
