"""Noisy task keys: those with more of the running tasks of a queue than an equal share.

Their share of the taken tasks is their share of the time of workers now. A look reads the first
limits.RUNS_LOOKED_AT_MAX taken tasks, in the order of their sessions. With more tasks than that, the shares
are those of a sample, as ids of sessions are random. All reads are by snapshot, and conflict with nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.seam import EXACT, DatabaseOrTransaction, Range
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.looking import is_key
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.keyed import Keyed


@dataclass(frozen=True)
class NoisyKey:
    key: Any
    taken: int
    share: float
    """Its part of the taken tasks, from 0 to 1."""


def noisy_keys(tr: DatabaseOrTransaction, queue: TaskQueue) -> list[NoisyKey] | None:
    """The noisy task keys of a queue, the noisiest first; None for a kind without task keys.

    Reads: by snapshot; at most limits.RUNS_LOOKED_AT_MAX keys of taken tasks, an equal part in each
        partition.
    Conflicts: none.
    Round trips: 1.
    """
    if not isinstance(queue._shape.discipline, Keyed):
        return None
    taken = queue._see_all(tr, _taken_of)
    total = taken.total()
    return [
        NoisyKey(layer.unpack(key)[0], count, count / total) for key, count in noisy_of(taken) if is_key(key)
    ]


def noisy_of(taken: Mapping[bytes, int]) -> list[tuple[bytes, int]]:
    """The noisy ones of these keys, with their numbers of tasks: each has over a tenth of all, and half as
    many again as an equal share.
    """
    total = sum(taken.values())
    least = max(limits.NOISY_SHARE * total, limits.NOISY_TIMES * total / max(1, len(taken)))
    return sorted(((key, n) for key, n in taken.items() if n > least), key=lambda one: (-one[1], one[0]))


def _taken_of(changes: Sequence[Change]) -> Counter[bytes]:
    most = max(1, limits.RUNS_LOOKED_AT_MAX // len(changes))
    asked = [_ask_taken(change, most) for change in changes]
    return Counter(bytes(row.value) for rows in asked for row in rows.to_list())


def _ask_taken(change: Change, limit: int) -> Range:
    under = change.shape.keys.taken
    return change.tr.snapshot.get_range(under.start, under.stop, limit=limit, streaming_mode=EXACT)
