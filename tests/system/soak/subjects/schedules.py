"""Schedules, which each process of the soak fires: each due time has exactly one task."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise

from fdbqueue.core.database import Database
from fdbqueue.core.task import Task
from fdbqueue.tasks.firing import ScheduleStatus
from fdbqueue.tasks.schedules import Schedule
from tests.system.soak.client import Client
from tests.system.soak.evidence import Evidence, key_of
from tests.system.soak.rules import SOUND, given_too_early, held_twice
from tests.system.soak.subjects.leases import Leased

PERIODS_S = (1.0, 1.25, 1.5, 2.0)
"""The distances of the due times of the schedules."""


def each_due_time(evidence: Evidence) -> Iterator[str]:
    """Between the first and the last due time of a schedule, no due time is left out."""
    ended = {value for value, count in evidence.apart.items() if count} | set(evidence.stored.effects)
    by_schedule: dict[str, list[datetime]] = {}
    for value in ended | evidence.perhaps_acked | set(evidence.stored.left):
        by_schedule.setdefault(key_of(value), []).append(datetime.fromisoformat(value.rpartition("/")[2]))
    for name, times in sorted(by_schedule.items()):
        for before, after in pairwise(sorted(times)):
            if abs((after - before).total_seconds() - float(name)) > 0.001:
                yield f"no task for a due time of every {name} s between {before} and {after}"


class Schedules(Leased):
    """The value of a task is the period and the due time."""

    name = "schedules"
    rules = (*SOUND, held_twice, given_too_early, each_due_time)
    has_order = False

    def prepare(self, db: Database) -> None:
        super().prepare(db)
        for period_s in PERIODS_S:
            Schedule.create(
                db,
                str(period_s),
                every=period_s,
                queue=self.name,
                missed="all",
                root=self.setup.queues,
            )

    def value_of(self, task: Task) -> str:
        return f"{task.headers['schedule']}/{task.headers['scheduled-for']}"

    def put(self, client: Client, count: int) -> None:
        """The schedules put."""

    def settle(self, client: Client) -> None:
        for period_s in PERIODS_S:
            self._schedule(client.db, period_s).pause(client.db)

    def _schedule(self, db: Database, period_s: float) -> Schedule:
        return Schedule.open(db, str(period_s), root=self.setup.queues)

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        told = [self._schedule(db, period_s).status(db) for period_s in PERIODS_S]
        fired = {f"due times of every {one.name} s": (one.fired, _due_times(one)) for one in told}
        puts = self.queue.statistics(db)["calls"]["put"]
        all_fired = sum(status.fired for status in told)
        return {**super().counters(db, left), **fired, "tasks of schedules": (puts, all_fired)}

    def totals(self, db: Database) -> Mapping[str, int]:
        return {"acks": super().totals(db)["acks"]}


def _due_times(status: ScheduleStatus) -> int:
    """The number of due times from the creation to the last one. The first is at most a period later."""
    if status.last_due is None or status.every is None:
        return 0
    return int((status.last_due - status.created) / status.every) + 1
