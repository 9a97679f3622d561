"""The checkers of the workload `composed`."""

from collections import Counter
from collections.abc import Iterator

from fdbqueue.core.database import Database
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.testing.trace import Trace
from tests.system.workloads.common import SPACE
from tests.system.workloads.notes import Notes
from tests.system.workloads.task_judge import Judge

NAME = "composed"
NOTES = Notes(SPACE[NAME])
ROUND = b"\x03"  # the round of a fair queue stays (disciplines/keyed.py)


def each_answer_is_right(trace: Trace, database: Database) -> Iterator[str]:
    """Check each call of each committed transaction against the model, in the order of the commits."""
    for op in trace.of(NAME, "end"):
        judge = Judge(op.argument)
        judge.judge(NOTES.entries(database))
        yield from judge.errors[:5]


def counted_by_the_notes(trace: Trace, database: Database) -> Iterator[str]:
    """Check the counters of the calls against the notes, and that no other task is left than expired
    ones.
    """
    for op in trace.of(NAME, "end"):
        judge = Judge(op.argument)
        judge.judge(NOTES.entries(database))
        judge.close()
        yield from judge.errors[:5]
        sure, most = judge.sure, judge.sure + judge.maybe
        for name, count in (op.result or {}).items():
            if not sure[name] <= count <= most[name]:
                yield f"{count} calls of {name} are counted, the notes have {sure[name]} to {most[name]}"


def nothing_is_left(_: Trace, database: Database) -> Iterator[str]:
    """Check that the empty queue has no key of a task, and no task is counted."""
    q = TaskQueue.open(database, NAME)
    keys = TaskKeys(q.contents)
    for under in (keys.contents, keys.failures, keys.classed, keys.class_counts):
        for row in database.get_range(under.start, under.stop):
            if row.key != keys.beside + ROUND and any(row.value):
                yield f"left behind: {row.key!r} = {row.value!r}"
    live = Counter(q.statistics(database)["tasks"])
    if live["total"]:
        yield f"an empty queue counts {dict(live)}"
