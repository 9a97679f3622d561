"""Nearness: the workloads that judge a room of the package most closely.

Lines of the engine, of combined calls and of sessions run in nearly every workload. So after a change there,
equal shares of the time would leave each workload a second or less of a minute. Most would judge the change
at best by accident. The near ones have most seeds, and all others still have some.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import PurePath

NEAR_P = 2 / 3
"""The part of a run for near workloads alone: the first seeds of all others take most of a minute."""

_ITEMS = "exact_items recipe batches exact_types item_partitions clearing agreed holding damaged"
_CALLS = "together doubted receipts late combined interrupts closing order"
_LINE = "crowd waits crossed exact_line paired_line emptied stops interrupted_waits lasting killed signs"
_KEYED = "keyed exact exact_mixed composed fairness rounds laned damaged"
_SESSIONS = "takeover exact_sessions paired_sessions temporary sharing cancels doubted killed"
_TASKS = "exact exact_mixed composed paired together tasks acks unique told steps damaged"
_FLEETS = "exact_worker poisoned fleet several hooked retained unavailable outages"
_OF_TASKS = "partitions paired_partitions together_partitions exact_partitions"
_PARTED = f"{_OF_TASKS} exact_mixed"
_SCHEDULES = "schedules exact_schedules paired_schedules"
_PERSISTENT = "proxies exact_persistent paired_persistent pipeline"
_DEAD = "redriven paired exact"

ROOMS: Mapping[str, str] = {
    "aio": "awaited_recipe awaited_tasks awaited_waits",
    "core/calls": _CALLS,
    "core/once": _CALLS,
    "core/partitions": f"{_OF_TASKS} item_partitions",
    "core/registry": "named temporary unwanted",
    "dead_letters": _DEAD,
    "elements": "elements exact_elements",
    "embedded": "serial processes rings unflushed bank",
    "firing": _SCHEDULES,
    "fleet": _FLEETS,
    "groups": "groups exact_groups paired_groups follows joined",
    "line": _LINE,
    "operate": "explained exact exact_mixed",
    "queues/fair": "exact_fair agreed paired fairness rounds damaged",
    "queues/persistent": _PERSISTENT,
    "queues/unacked": _PERSISTENT,
    "recipe": _ITEMS,
    "redrive": _DEAD,
    "schedules": _SCHEDULES,
    "sessions": _SESSIONS,
    "stored": _KEYED,
    "stored/records": "results weighty exact_mixed exact",
    "tasks": f"{_TASKS} exact_defaults results bounded",
    "tasks/calls": f"{_PARTED} together paired bounded unique keyed",
    "tasks/limits": "limited limit_keys paired_limits laned exact_mixed",
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
