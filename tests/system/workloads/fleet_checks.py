"""The promises of a fleet, checked after a simulated run: effects, burials, histories, the row of the run."""

from collections.abc import Iterator
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runs import ENDS
from fdbqueue.tasks.failures import BURIED, EXCUSED, EXHAUSTED
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys, id_in, record_of
from fdbqueue.tasks.records.statistics import unpacked
from fdbqueue.testing.trace import Trace
from tests.system.workloads.effects import effects_in
from tests.system.workloads.tasks import all_tasks

KEYS = RootKeys(DEFAULT_ROOT)
NAME = "jobs"
LOOK = "look at the remaining tasks"
RUN = b"a run" + bytes(11)


def left(q: TaskQueue, tr: Any) -> list[tuple[str, int, list[str]]]:
    """Return for each remaining task its data, its number of failed attempts, and its recorded outcomes."""
    found = [record_of(entry.value) for entry in all_tasks(q, tr)]
    under = TaskKeys(q.contents).failures
    owners = {id_in(entry.key[:-1]) for entry in tr.snapshot.get_range(under.start, under.stop)}
    assert owners <= {record.id for record in found}, "failures are left of a task that is gone"
    tasks = [task for state in "rt!~" for task in q.tasks(tr, state, limits.BATCH_ITEMS_MAX)]
    return [(task.data, task.failures, [f.outcome for f in q.failures(tr, task)]) for task in tasks]


def done_once_or_buried(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each put task either had its effect once, or is buried."""
    effects = effects_in(database)
    buried = {data for look in trace.of(NAME, LOOK) for data, _, _ in look.result or ()}
    for value, count in effects.items():
        if count != 1 or value in buried:
            yield f"{count} effects of {value!r}{', which is buried' if value in buried else ''}"
    for put in trace.of(NAME, "put"):
        if put.done and put.argument not in effects and put.argument not in buried:
            yield f"lost: {put.argument!r}"


def run_counted(_: Trace, database: Database) -> Iterator[str]:
    """Check that the run's counts hold each effect as done, and each remaining task as buried."""
    effects = sum(effects_in(database).values())
    queue = TaskQueue.open(database, NAME)
    found = {"done": effects, "buried": queue.statistics(database)["tasks"]["buried"]}
    counted = unpacked(ENDS, database[KEYS.run(RUN)])
    if counted | found != counted:
        yield f"the row of the run has {counted}, and there are {found}"


def histories_told(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each buried task has its failed attempts recorded, the last one with the reason."""
    for look in trace.of(NAME, LOOK):
        for data, failures, outcomes in look.result or ():
            told = [outcome for outcome in outcomes if outcome != EXCUSED]
            forgot = len(outcomes) == limits.FAILURES_KEPT
            if len(told) > failures or (len(told) < failures and not forgot):
                yield f"{data!r} failed {failures} times, and {len(told)} outcomes are recorded"
            if not told or told[-1] not in (BURIED, EXHAUSTED):
                yield f"{data!r} is left, and its last attempt was {told[-1:]}"
