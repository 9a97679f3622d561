"""Schedules: those that cannot be fired, and those that no process passes, as checks."""

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.page import Page, every_row
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate.diagnosis.check import Check, fine, warning
from fdbqueue.operate.verify.values import command
from fdbqueue.tasks.firing import ScheduleStatus
from fdbqueue.tasks.schedules import page

CHECK = "schedules"


def see_schedules(database: Database, keys: RootKeys) -> list[ScheduleStatus]:
    """The first limits.QUEUES_LISTED_MAX schedules. Reads by snapshot."""

    def listing(after: str | None = None) -> Page[ScheduleStatus]:
        return run(database, lambda tr: page(tr.snapshot, keys, limits.SCHEDULES_LISTED_MAX, after or ""))

    return list(islice(every_row(listing), limits.QUEUES_LISTED_MAX))


def check_schedules(
    found: Sequence[ScheduleStatus], now: float, queues: Collection[str] | None = None
) -> list[Check]:
    """One result that counts the schedules if all are fine. `queues`: None if they are not known."""
    told = [
        result
        for one in found
        for result in (
            _of_schedule(one, now) if queues is None or one.queue in queues else _without_queue(one)
        )
    ]
    count = f"{len(found):,} schedule{'' if len(found) == 1 else 's'}"
    return told or ([fine(CHECK, count, schedules=len(found))] if found else [])


def _without_queue(found: ScheduleStatus) -> Iterator[Check]:
    name = found.name
    if not found.queue:  # it cannot be read
        yield warning(CHECK, f"the schedule {name} is not fired: {found.error}", _show(name), schedule=name)
        return
    text = f"the queue {found.queue} of the schedule {name} does not exist"
    cure = f"Create that queue, or {command('schedule', 'delete', name)}"
    yield warning(CHECK, text, cure, schedule=name, queue=found.queue)


def _show(name: str) -> str:
    return command("schedule", "show", name)


def _of_schedule(found: ScheduleStatus, now: float) -> Iterator[Check]:
    name = found.name
    if found.error is not None:
        text = f"the schedule {name} is not fired: {found.error}"
        yield warning(CHECK, text, _show(name), schedule=name, tries=found.tries)
    elif found.next_try is not None and now - found.next_try > limits.SWEEP_LAG_WARNING_S:
        late_s = now - found.next_try
        text = f"the schedule {name} is due since {late_s:.0f} s, and no process passes"
        cure = "Start a worker: each process with one fires schedules. Its log names a package that it lacks."
        yield warning(CHECK, text, cure, schedule=name, late_s=late_s)
    elif found.last_fired is not None and found.last_fired > now + limits.CLOCK_SKEW_S:
        early_s = found.last_fired - now
        text = f"the schedule {name} was fired by a clock that is {early_s:.0f} s ahead of this one"
        cure = f"Correct that clock, then pause and resume it: {command('schedule', 'pause', name)}"
        yield warning(CHECK, text, cure, schedule=name, early_s=early_s)
