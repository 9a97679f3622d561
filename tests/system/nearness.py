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
_PROXIES = ("proxies", "exact_persistent", "paired_persistent", "pipeline")
_DEAD = ("redriven", "paired", "exact")
_SCHEDULES = ("schedules", "exact_schedules", "paired_schedules")

ROOMS: Mapping[str, Sequence[str]] = {
    "aio": ("awaited_recipe", "awaited_tasks", "awaited_waits"),
    "core/calls": _CALLS,
    "core/line": (*_LINE, "lasting", "killed", "signs"),
    "core/line/wide": _PARTITIONS,
    "core/once": _CALLS,
    "core/partitions": _PARTITIONS,
    "core/registry": ("named", "temporary", "unwanted"),
    "core/sessions": _SESSIONS,
    "embedded": _ENGINE,
    "fleet": _FLEETS,
    "operate": ("explained", "exact", "exact_mixed"),
    "operate/verify": ("verified", "exact", "exact_mixed"),
    "queues/elements": ("elements", "exact_elements"),
    "queues/fair": ("exact_fair", "agreed", "paired", "fairness", "rounds", "damaged"),
    "queues/persistent": _PROXIES,
    "queues/recipe": _ITEMS,
    "queues/recipe/calls": ("item_partitions", "exact_items", "recipe", "paired", "batches", "holding"),
    "queues/unacked": _PROXIES,
    "tasks": (*_TASKS, "exact_defaults", "results", "bounded"),
    "tasks/calls": (*_PARTED, "together", "paired", "bounded", "unique", "keyed", "acks"),
    "tasks/dead_letters": _DEAD,
    "tasks/firing": _SCHEDULES,
    "tasks/group_members": _GROUPS,
    "tasks/group_settling": _GROUPS,
    "tasks/groups": _GROUPS,
    "tasks/limited": _LIMITS,
    "tasks/limits": _LIMITS,
    "tasks/parted": _PARTED,
    "tasks/redrive": _DEAD,
    "tasks/repartition": _PARTED,
    "tasks/schedules": _SCHEDULES,
    "tasks/source": (*_PARTED, *_TASKS),
    "tasks/stored": _KEYED,
    "tasks/stored/records": ("results", "weighty", "exact_mixed", "exact"),
    "tasks/verbs": (*_PARTED, *_TASKS),
}
"""The near workloads of folders and files in `fdbqueue`; those of a file go before those of its folder."""


def near(paths: Iterable[str]) -> frozenset[str]:
    """The workloads that are near to these files: their own, or those of their innermost folder."""
    return frozenset(chain.from_iterable(map(_near, map(PurePath, paths))))


def _near(path: PurePath) -> Sequence[str]:
    parts = path.with_suffix("").parts
    inside = parts[parts.index("fdbqueue") + 1 :] if "fdbqueue" in parts else parts
    rooms = ("/".join(inside[:end]) for end in range(len(inside), 0, -1))
    return next((ROOMS[room] for room in rooms if room in ROOMS), ())
