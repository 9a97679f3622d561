"""Audits and checkers for workloads with task keys.

An audit reads the counters of all task keys, or their rounds, in one transaction, and records them in the
trace. The checkers test that no task key of a fair queue waits longer than a bound.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.tasks.stored.key_counts import KeyCounts
from fdbqueue.tasks.stored.keyed import Fair
from fdbqueue.tasks.stored.records import LIVE_NAMES, LIVE_OF, TaskKeys, record_of
from fdbqueue.testing.checkers import Fates
from fdbqueue.testing.simulation import Client
from fdbqueue.testing.trace import Operation, Trace

_ALL = 10_000
HELD_S = limits.SHARE_HELD_S
"""That of the library: a run may set one so short that nearly each call outlasts it."""


def look(client: Client, name: str, keys: TaskKeys, size: Callable[[Any], int]) -> None:
    """Compare at one version the counters and the index of all task keys with the stored tasks."""
    counts = KeyCounts(keys.beside)

    def body(tr: Any) -> tuple[Any, Any]:
        records = [record_of(row.value) for row in tr.snapshot.get_range(keys.tasks.start, keys.tasks.stop)]
        found: dict[bytes, Counter[str]] = {}
        for record in records:
            found.setdefault(record.key, Counter(dict.fromkeys(LIVE_NAMES, 0)))[LIVE_OF[record.state]] += 1
        waiting = {key: dict(numbers) for key, numbers in found.items() if numbers["ready"]}
        entries, levels = counts.index(tr.snapshot, _ALL)
        counted = dict(counts.busiest(tr.snapshot, _ALL))
        return (size(tr), counted, entries), (len(records), waiting, levels)

    client.call(name, "audit", None, lambda: run(client.db, body))


def look_at_rounds(client: Client, name: str, keys: TaskKeys) -> None:
    """Record the current round, the round of each task key's turn, and the task keys that should have a turn.

    These are sorted: the order of a set would differ between processes, and so would the trace.
    """
    fair, start = Fair(keys, {"weights": None}), len(keys.ready.start)

    def body(tr: Any) -> tuple[int, dict[bytes, int], list[bytes]]:
        pointers = tr.snapshot.get_range(keys.ready.start, keys.ready.stop)
        turns = {
            record_of(row.value).key: int.from_bytes(row.key[start : start + 8], "big") for row in pointers
        }
        return fair.ask_now(tr)(), turns, sorted(key for key, _ in fair.counts.busiest(tr.snapshot, _ALL))

    client.call(f"{name}: rounds", "audit", None, lambda: run(client.db, body))


def fair_at_all_times(name: str, trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task key with a ready task has its turn in the next round at the latest."""
    for op in trace.of(f"{name}: rounds", "audit"):
        if op.done:
            now, turns, waiting = op.result
            yield from (
                f"a turn in round {turn}, in round {now}" for turn in turns.values() if turn > now + 1
            )
            if sorted(turns) != waiting:
                yield f"turns of {sorted(turns)}, tasks of {waiting}"


def rounds_wait(
    name: str, key_of: Callable[[str], str], takers: int, trace: Trace, __: Database
) -> Iterator[str]:
    """Check that the n-th waiting item of a key waits for at most n + 1 items of any other key.

    - Each taker that was in its call at the put may take one more.
    - An item does not count if it was taken within a slower call that took an item of this key, or that
      lasted for longer than a share is held: that call had the turn, and may have lost it since.
    - An item that a dead or stalled machine held waits again, ahead of the other items of its key.
    """
    fates = Fates(trace, (name,))
    returned = trace.faults["die"] + trace.faults["stall"]
    takes = {value: op for value, (op, *_) in fates.takers.items()}
    late: dict[str, list[str]] = {}
    for value, taken in takes.items():
        put = fates.enqueued.get(value)
        if put is None or not put.done:
            continue
        key, others, line = key_of(value), Counter[str](), 1
        turns = [op for other, op in takes.items() if key_of(other) == key or _outlasts_its_share(op)]
        for other, op in takes.items():
            if key_of(other) != key:
                in_turn = put.before(op) and op.before(taken)
                others[key_of(other)] += in_turn and not any(_within(op, turn) for turn in turns)
            elif other != value and other in fates.enqueued:
                line += not put.before(fates.enqueued[other]) and not op.before(put)
        if max(others.values(), default=0) > line + 1 + takers + returned:
            late.setdefault(key, []).append(f"{value!r}, number {line} of its key, waited for {others}")
    if len(late) > returned:
        yield from chain.from_iterable(late.values())


def _outlasts_its_share(op: Operation) -> bool:
    return op.ended_s is not None and op.ended_s - op.began_s > HELD_S


def _within(op: Operation, other: Operation) -> bool:
    if op.ended is None or other.ended is None:
        return False
    return other.began < op.began and op.ended < other.ended
