"""Nearness: the workloads that judge a room of the package most closely. Shares: how many seeds each gets.

Lines of the engine, of combined calls and of sessions run in nearly every workload. So after a change there,
equal shares of the time would leave each workload a second or less of a minute. Most would judge the change
at best by accident. The near ones have most seeds, and all others still have some.

A share of 2 means twice the seeds of a workload with the share 1 and the same cost. Workloads without an
entry have USUAL. Planted bugs are those of `tests/simulation/planted.py`; new bugs, those of authors who knew
none of the planted ones (docs/tests.md).
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import PurePath
from typing import NamedTuple

NEAR_P = 2 / 3
"""The part of a run for near workloads alone: the first seeds of all others take most of a minute."""

_ITEMS = "exact_items recipe batches exact_types item_partitions clearing agreed holding damaged"
_CALLS = "together doubted receipts repeated late combined interrupts closing order"
_LINE = "crowd waits crossed exact_line paired_line emptied stops interrupted_waits lasting killed signs"
_KEYED = "keyed exact exact_mixed composed fairness rounds laned damaged"
_SESSIONS = "takeover exact_sessions paired_sessions temporary sharing skewed cancels doubted killed"
_TASKS = "exact exact_mixed composed paired together tasks acks unique told steps damaged"
_FLEETS = "batched exact_worker poisoned refilled fleet several hooked retained unavailable outages steered"
_OF_TASKS = "partitions paired_partitions together_partitions exact_partitions"
_PARTED = f"{_OF_TASKS} exact_mixed"
_SCHEDULES = "schedules exact_schedules paired_schedules"
_PERSISTENT = "proxies exact_persistent paired_persistent pipeline"
_DEAD = "redriven paired exact"
_GROUPS = "groups exact_groups paired_groups follows joined"

ROOMS: Mapping[str, str] = {
    "aio": "awaited_recipe awaited_tasks awaited_waits",
    "core/calls": _CALLS,
    "core/once": _CALLS,
    "core/pace": "starving starved",
    "core/partitions": f"{_OF_TASKS} item_partitions",
    "core/registry": "named temporary unwanted",
    "dead_letters": _DEAD,
    "elements": "elements exact_elements",
    "embedded": "serial processes direct rings unflushed bank",
    "firing": _SCHEDULES,
    "fleet": _FLEETS,
    "fleet/batches": "batched",
    "fleet/gate": "steered",
    "fleet/steering": "steered",
    "groups": _GROUPS,
    "line": _LINE,
    "line/overtaking": "overtaken overtaken_items",
    "operate": "explained exact exact_mixed",
    "queues/fair": "exact_fair agreed paired fairness rounds damaged",
    "queues/persistent": _PERSISTENT,
    "queues/unacked": _PERSISTENT,
    "recipe": _ITEMS,
    "redrive": _DEAD,
    "schedules": _SCHEDULES,
    "exports/trash": "trashed",
    "selected": "selected trashed",
    "tasks/trashed": "trashed",
    "sessions": _SESSIONS,
    "stored": _KEYED,
    "stored/charged": "charged",
    "stored/records": "results weighty exact_mixed exact",
    "tasks": f"{_TASKS} exact_defaults results bounded",
    "tasks/capacity": "bounded keyed paired partitions exact_mixed",
    "tasks/group_members": _GROUPS,
    "tasks/group_settling": _GROUPS,
    "tasks/source": f"poisoned {_KEYED} {_TASKS}",
    "tasks/altering": "altered",
    "tasks/charging": "charged",
    "tasks/chronicle": "chronicled",
    "tasks/handing": "handed",
    "tasks/results": "results paired exact_mixed exact",
    "tasks/unique": "unique repeated paired exact_mixed composed",
    "tasks/acks": "acks together refilled exact_worker keyed",
    "tasks/calls": f"{_PARTED} together paired bounded unique keyed",
    "tasks/limits": "limited limit_keys limit_parts paired_limits laned exact_mixed",
    "tasks/parted": _PARTED,
    "tasks/repartition": _PARTED,
    "verify": "verified exact exact_mixed",
}
"""The near workloads of each folder and of some files in `fdbqueue`."""


def near(paths: Iterable[str]) -> frozenset[str]:
    """The workloads that are near to these files: those of the innermost room that has some."""
    return frozenset(chain.from_iterable(map(_near, map(PurePath, paths))))


def _near(path: PurePath) -> Sequence[str]:
    parts = path.with_suffix("").parts
    names = ("/".join(parts[start:end]) for end in range(len(parts), 0, -1) for start in (end - 2, end - 1))
    return ROOMS[room].split() if (room := next(filter(ROOMS.__contains__, names), None)) else ()


USUAL = 1.0


class Share(NamedTuple):
    seeds: float
    reason: str
    workloads: str


SHARES: Sequence[Share] = (
    Share(
        6.0,
        "the features of a task queue meet in one model; most states that 35 s have missed are there",
        "exact_mixed",
    ),
    Share(
        4.0,
        "a model has the right answer of every verb; 15 planted bugs in one, five new ones in the other",
        "exact composed",
    ),
    Share(
        3.0,
        "a model of one part: each answer, row and time is right to the microsecond",
        "exact_defaults exact_elements exact_fair exact_groups exact_line exact_partitions "
        "exact_persistent exact_schedules exact_sessions",
    ),
    Share(
        3.0,
        "each pair of calls meets: it finds a missing conflict for sure",
        "paired paired_groups paired_limits paired_line paired_partitions paired_persistent "
        "paired_schedules paired_sessions",
    ),
    Share(3.0, "each commit of a call is in doubt: it finds a lost or doubled effect for sure", "doubted"),
    Share(
        3.0,
        "calls of several threads meet in each step: it finds an answer that goes to the wrong one",
        "together together_partitions",
    ),
    Share(
        2.5,
        "the waiting line, receipts and combined calls are below all queues; nine planted bugs or more each",
        "crowd recipe waits",
    ),
    Share(
        2.0,
        "a run of a few milliseconds, and races with one chance in forty seeds",
        "agreed exact_types interrupted_waits order",
    ),
    Share(
        1.5,
        "eight planted bugs or more each",
        "cancels emptied groups hooked item_partitions partitions processes schedules several "
        "takeover unique",
    ),
    Share(
        0.5,
        "two planted bugs or fewer each, in a part that other workloads run, too",
        "awaited_recipe awaited_tasks awaited_waits bank batches clearing closing fairness joined "
        "keyed named pipeline verified",
    ),
)
FLOOR = 0.5
"""No workload has less: else a promise that it alone judges has no seed in a minute."""
_SEEDS: Mapping[str, float] = {name: share.seeds for share in SHARES for name in share.workloads.split()}


def shares_of(names: Sequence[str]) -> list[float]:
    return [_SEEDS.get(name, USUAL) for name in names]
