"""Noisy task keys: those with more of the running tasks of a queue than an equal share.

The share of a key in the taken tasks is its share in the time of workers now. Keys that wait count, too,
for an equal share. A look reads the first limits.RUNS_LOOKED_AT_MAX taken tasks, by their sessions. With
more tasks than that, the shares are those of a sample: ids of sessions are random. All reads are by snapshot.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.seam import EXACT, DatabaseOrTransaction, Range
from fdbqueue.core.task import Reason, TaskState, Why
from fdbqueue.core.visible import key_of, told
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.looking import is_key
from fdbqueue.tasks.rows import command
from fdbqueue.tasks.stored.key_counts import Busy
from fdbqueue.tasks.stored.keyed import Fair, Keyed
from fdbqueue.tasks.stored.records import Record


@dataclass(frozen=True)
class NoisyKey:
    key: Any
    taken: int
    share: float
    """Its part of the taken tasks, from 0 to 1."""


def noisy_keys(tr: DatabaseOrTransaction, queue: Any) -> list[NoisyKey] | None:
    """The noisy task keys of a TaskQueue, the noisiest first; None for a kind without task keys.

    Reads: by snapshot; at most limits.RUNS_LOOKED_AT_MAX keys of taken tasks, an equal part in each
        partition, and in each the counters of some keys with ready tasks.
    Conflicts: none.
    Round trips: 1.
    """
    if not isinstance(queue._shape.discipline, Keyed):
        return None
    taken, waiting = queue._see_all(tr, _keys_of)  # no type: the module of queues imports this one
    total = taken.total()
    noisy = noisy_of(taken, waiting)
    return [NoisyKey(layer.unpack(key)[0], count, count / total) for key, count in noisy if is_key(key)]


def noisy_of(taken: Mapping[bytes, int], waiting: Collection[bytes] = ()) -> list[tuple[bytes, int]]:
    """The noisy ones of these keys, with their numbers of tasks: each has over a tenth of all, and half as
    many again as an equal share. A key that only waits has a share, too: one key may keep all workers.
    """
    total = sum(taken.values())
    least = max(limits.NOISY_SHARE * total, limits.NOISY_TIMES * total / max(1, len({*taken, *waiting})))
    return sorted(((key, n) for key, n in taken.items() if n > least), key=lambda one: (-one[1], one[0]))


@dataclass(frozen=True)
class Overtaker:
    """The noisiest task key of a fair queue in which another key waits."""

    key: str
    reason: Reason


def ask_overtaker(change: Change, record: Record) -> Callable[[], Overtaker | None]:
    """Ask which key overtakes a ready task of a fair queue, or keeps others waiting. Round trips: 1."""
    fair = change.shape.discipline
    if record.state != TaskState.READY or not isinstance(fair, Fair):
        return lambda: None
    asked, ready = _ask_taken(change, limits.EXPLAINED_MAX), _ask_ready(change)

    def reply() -> Overtaker | None:
        taken = Counter(bytes(row.value) for row in asked.to_list())
        noisy = noisy_of(taken, {busy.key for busy in ready()[0]} | {record.key})
        if not noisy or not is_key(noisy[0][0]):
            return None
        return overtaker_of(change.shape.name, *noisy[0], taken.total(), record.key, fair._weights)

    return reply


def overtaker_of(
    queue: str, noisy: bytes, count: int, total: int, own: bytes, weights: Mapping[bytes, int]
) -> Overtaker | None:
    """The cause is the greater weight of a key with nearly all taken tasks; or another key's tasks run long.
    A few running tasks prove nothing of that.
    """
    [key], [mine] = layer.unpack(noisy), layer.unpack(own)
    weight, least = weights.get(noisy, 1), 1 if noisy == own else weights.get(own, 1)
    text, other = f"The key {told(key)} has {count / total:.0%} of the taken tasks", {noisy: least}
    if weight > least and count >= limits.NEARLY_ALL * total:
        whose = "most keys" if noisy == own else f"the key {told(mine)}"
        text += f", by its weight {weight}; that of {whose} is {least}."
    elif weight <= least and noisy != own and count >= limits.NOISY_TAKEN_MIN:
        text, other = f"{text}: they run long.", {own: 2 * least}
    else:
        return None
    return Overtaker(told(key), Reason(Why.BEHIND, text, _alter(queue, {**weights, **other})))


def _alter(queue: str, weights: Mapping[bytes, int]) -> str:
    """The command that sets these weights, as it replaces all of them."""
    spelled = [f"{_spelled(layer.unpack(key)[0])}={weight}" for key, weight in weights.items()]
    if len(spelled) > limits.WEIGHTS_TOLD_MAX or any(one[0] == "=" for one in spelled):
        return (
            f"Alter its weights: `{command(queue, 'alter', '--weight', 'KEY=N')}`, for each key that has one."
        )
    return command(queue, "alter", *(word for one in spelled for word in ("--weight", one)))


def _spelled(key: Any) -> str:
    """The key as the command line reads it; empty for one that it cannot spell, such as bytes."""
    with suppress(ValueError, TypeError):
        return key if isinstance(key, str) and key_of(key) == key else json.dumps(key)
    return json.dumps(key) if isinstance(key, str) else ""


def _keys_of(changes: Sequence[Change]) -> tuple[Counter[bytes], set[bytes]]:
    """The keys of taken tasks, with the numbers of these; and some keys that have ready tasks."""
    most = max(1, limits.RUNS_LOOKED_AT_MAX // len(changes))
    asked = [(_ask_taken(change, most), _ask_ready(change)) for change in changes]
    taken = Counter(bytes(row.value) for rows, _ in asked for row in rows.to_list())
    return taken, {busy.key for _, ready in asked for busy in ready()[0]}


def _ask_ready(change: Change) -> Callable[[], tuple[list[Busy], list[bytes]]]:
    discipline = change.shape.discipline
    assert isinstance(discipline, Keyed)
    return discipline.counts.ask_busiest(change.tr.snapshot, limits.FIGURES_KEYS_MAX, ())


def _ask_taken(change: Change, limit: int) -> Range:
    under = change.shape.keys.taken
    return change.tr.snapshot.get_range(under.start, under.stop, limit=limit, streaming_mode=EXACT)
