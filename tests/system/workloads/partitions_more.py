"""What only some runs of the workload `partitions` have."""

from dataclasses import dataclass
from random import Random
from typing import Any, Self

from fdbqueue.testing.simulation import Client
from tests.system.workloads.partitions_checks import KEYS

BOUNDED = {"fifottl": "limfifottl", "fair": "fair"}
"""Kinds with a capacity, in place of others."""


@dataclass(frozen=True)
class More:
    kind: str
    capacity: int | None
    ttl_s: float | None
    key: str | None
    """The task key of most tasks; None for several."""
    by_two: bool
    """A worker works by two threads, each with a database of its own, and one handle."""

    @classmethod
    def drawn(cls, seed: int, kind: str) -> Self:
        # From other dice, so that all else of a seed is as it would be without.
        dice = Random(f"{seed} more")
        ttl_s, by_two = dice.choice((None, None, 0.5, 3)), dice.random() < 0.3
        capacity = dice.choice((None, 2, 4)) if kind in BOUNDED else None
        key = dice.choice("abcdefgh") if dice.random() < 0.3 else None
        return cls(kind if capacity is None else BOUNDED[kind], capacity, ttl_s, key, by_two)

    def options(self, client: Client, key: str | None) -> dict[str, Any]:
        """Options of the put of a task that would have that task key."""
        options: dict[str, Any] = {}
        if self.key is not None and key in KEYS:
            options["key"] = self.key
        if self.ttl_s is not None and client.random.random() < 0.5:
            options["ttl"] = self.ttl_s
        return options
