"""The model of the workload `exact_mixed`: tasks as in `exact` that may be in groups, or wait for one.

A sweep settles the groups, too: a cancelled one ends its members, and an ended one lets its task start.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.partitions.plan import home_of
from fdbqueue.core.task import Task
from fdbqueue.tasks.records.keys import id_bytes, partition_of
from tests.system.workloads.exact_calls import added, is_over
from tests.system.workloads.exact_groups_model import Gathered
from tests.system.workloads.exact_looks import KEYED
from tests.system.workloads.exact_model import Life, Model


class MixedModel(Model):
    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__(kind, options)
        self.groups: dict[str, Gathered] = {}
        self.away: list[dict[str, bool]] = []
        """The groups of each task that a redrive has moved into the other queue, in order."""

    def in_state(self, state: str) -> list[Life]:
        """As in `exact`. In its partition, a task that has moved there comes before those put there."""
        found = super().in_state(state)
        if state == "r" and self.is_parted and self.kind in KEYED:
            found.sort(key=lambda life: (life.pri, self._is_at_home(life), life.id))
        return found

    def _is_at_home(self, life: Life) -> bool:
        home = home_of(key_bytes(life.key), self.options["partitions"])
        return partition_of(id_bytes(life.id)) == home

    # Members.

    def join(self, life: Life, group: Gathered) -> None:
        life.groups[group.id] = False
        group.total += 1
        if life.state == "!":
            self._count_buried(life)

    def end(self, life: Life, call: str, outcome: str, value: Any = None) -> Task:
        self.count_off(life.groups, outcome == "acked")
        return super().end(life, call, outcome, value)

    def count_off(self, groups: dict[str, bool], acked: bool = False) -> None:
        for name, counted in groups.items():
            self.groups[name].done += acked
            self.groups[name].failed += (not acked) - counted

    def put_aside(self, life: Life) -> None:
        super().put_aside(life)
        self._count_buried(life)

    def _count_buried(self, life: Life) -> None:
        for name, counted in life.groups.items():
            if not counted and not self.groups[name].holds:
                life.groups[name] = True
                self.groups[name].failed += 1

    def kick(self, lives: Iterable[Life]) -> None:
        """As in `exact`. A task that waits for a group goes on waiting."""
        for life in lives:
            super().kick([life])
            life.state = "r" if life.waits is None else "~"

    def truncate(self) -> None:
        for life in self.lives.values():
            self.count_off(life.groups)
        super().truncate()

    def send_away(self, life: Life) -> None:
        """Move a buried task into another queue. It stays a member."""
        self.away.append(life.groups)
        life.groups = {}
        self.end(life, "delete", "deleted")

    def members(self, group: Gathered) -> list[Life]:
        return [life for life in self.lives.values() if group.id in life.groups]

    def buried(self, group: Gathered) -> int:
        return sum(life.state == "!" for life in self.members(group))

    # Time.

    def is_contested(self) -> bool:
        """True, too, if a sweep may let a group end for which a task waits."""
        awaited = {life.waits for life in self.lives.values()}
        return super().is_contested() or any(awaited & life.groups.keys() for life in self.due())

    def is_open_to(self, now: int) -> bool:
        """True if the order of partitions would not decide at that time which task has a unique key: a task
        that comes back takes its key if another one has expired before it, in whatever scope.
        """
        due = [life for life in self.lives.values() if is_over(life.timer, now)]
        returning = {life.unique for life in due if life.scope == "queued"}
        return not self.is_parted or not rivals(due) & returning

    def sweep(self) -> None:
        super().sweep()
        for group in [*self.groups.values()]:
            if group.cancelled:
                self._cancel(group)
        for group in [*self.groups.values()]:
            if group.ended is None and group.left <= 0 and (group.cancelled or not group.is_open):
                group.ended = self.now
                self._start(group)

    def _cancel(self, group: Gathered) -> None:
        for life in self.members(group):
            if life.state == "t":
                life.cancelled = life.cancelled or self.now
            else:
                self.end(life, "cancel", "cancelled")
        gone = [groups for groups in self.away if group.id in groups]
        self.away = [groups for groups in self.away if group.id not in groups]
        for groups in gone:
            self.count_off(groups)

    def _start(self, group: Gathered) -> None:
        for life in [life for life in self.lives.values() if life.waits == group.id]:
            if group.cancelled:
                self.end(life, "cancel", "cancelled")
                continue
            life.waits = None
            if life.state == "~":
                span = None if life.expires is None else life.expires - life.created
                life.state, life.expires = "r", added(self.now, span)
                self.calls["delay"] += 1


def rivals(lives: Sequence[Life]) -> set[Any]:
    """The unique keys that more than one of these tasks has."""
    counts = Counter(life.unique for life in lives if life.unique is not None)
    return {unique for unique, count in counts.items() if count > 1}
