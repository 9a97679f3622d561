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

_ITEMS = (
    "exact_items",
    "recipe",
    "batches",
    "exact_types",
    "item_partitions",
    "clearing",
    "agreed",
    "holding",
    "damaged",
)
_CALLS = ("together", "doubted", "receipts", "late", "combined", "interrupts", "closing", "order")
_LINE = ("crowd", "waits", "crossed", "exact_line", "paired_line", "emptied", "stops", "interrupted_waits")
_KEYED = ("keyed", "exact", "exact_mixed", "composed", "fairness", "rounds", "laned", "damaged")
_SESSIONS = (
    "takeover",
    "exact_sessions",
    "paired_sessions",
    "temporary",
    "sharing",
    "cancels",
    "doubted",
    "killed",
)
_TASKS = (
    "exact",
    "exact_mixed",
    "composed",
    "paired",
    "together",
    "tasks",
    "acks",
    "unique",
    "told",
    "steps",
    "damaged",
)
_ENGINE = ("serial", "processes", "rings", "unflushed", "bank")
_LIMITS = ("limited", "limit_keys", "paired_limits", "laned", "exact_mixed")
_FLEETS = ("exact_worker", "poisoned", "fleet", "several", "hooked", "retained", "unavailable", "outages")
_GROUPS = ("groups", "exact_groups", "paired_groups", "follows", "joined")
_OF_TASKS = ("partitions", "paired_partitions", "together_partitions", "exact_partitions")
_PARTITIONS = (*_OF_TASKS, "item_partitions")
_PARTED = (*_OF_TASKS, "exact_mixed")

ROOMS: Mapping[str, Sequence[str]] = {
    "aio": ("awaited_recipe", "awaited_tasks", "awaited_waits"),
    "calls": _CALLS,
    "dead": ("redriven", "paired", "exact"),
    "operate": ("explained", "exact", "exact_mixed"),
    "disciplines": _KEYED,
    "elements": ("elements", "exact_elements"),
    "embedded": _ENGINE,
    "fair": ("exact_fair", "agreed", "paired", "fairness", "rounds", "damaged"),
    "fleet": _FLEETS,
    "groups": _GROUPS,
    "limiting": _LIMITS,
    "line": (*_LINE, "lasting", "killed", "signs"),
    "parking": _LIMITS,
    "partitions": _PARTITIONS,
    "persistent": ("proxies", "exact_persistent", "paired_persistent", "pipeline"),
    "recipe": (*_ITEMS, "recipe"),
    "records": ("results", "weighty", "exact_mixed", "exact"),
    "registry": ("named", "temporary", "unwanted"),
    "schedules": ("schedules", "exact_schedules", "paired_schedules"),
    "sessions": _SESSIONS,
    "tasks": (*_TASKS, "exact_defaults", "results", "bounded"),
    "verify": ("verified", "exact", "exact_mixed"),
}
"""The near workloads of each folder in `fdbqueue`."""

FILES: Mapping[str, Sequence[str]] = {
    "recipe/parts": ("item_partitions", "exact_items", "recipe", "paired"),
    "tasks/in_all": (*_PARTED, "exact", "paired"),
    "tasks/parted": _PARTED,
    "tasks/parts": (*_PARTED, "acks"),
    "tasks/puts": (*_PARTED, "together", "paired", "bounded", "unique", "keyed"),
    "tasks/repartition": _PARTED,
}
"""Those of files that other workloads judge than most files of their folder."""


def near(paths: Iterable[str]) -> frozenset[str]:
    """The workloads that are near to these files: their own, or those of the innermost room that has some."""
    return frozenset(chain.from_iterable(map(_near, map(PurePath, paths))))


def _near(path: PurePath) -> Sequence[str]:
    room = next((part for part in reversed(path.parts) if part in ROOMS), "")
    return FILES.get(f"{path.parent.name}/{path.stem}", ROOMS.get(room, ()))
