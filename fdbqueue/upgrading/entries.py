"""The rows of a task queue that differ in layout 1: the entries of tasks that are taken, delayed or buried.

    S[4], S[5], S[6]   the value is the task key; empty in layout 0
    S[17], S[18]       buried tasks by class of failure; missing in layout 0

Both are only missing, never wrong. So processes read either layout, and a kill between two batches harms
nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from fdbqueue import limits
from fdbqueue.records.keys import Record, TaskKeys, id_in, record_to_bytes, sound_record
from fdbqueue.seam import KeyValue, Transaction
from fdbqueue.task import TaskState
from fdbqueue.tasks import classes
from fdbqueue.tasks.failures import ask_last, class_of


@dataclass(frozen=True)
class Batch:
    """Entries that one transaction has brought to the layout. `next`: the next key, None at the end."""

    entries: int
    rewritten: int
    next: bytes | None


def bring(tr: Transaction, keys: TaskKeys, begin: bytes | None) -> Batch:
    """Bring the next entries of a queue, or of one partition, to the layout.

    Reads: at most limits.VERB_BATCH entries from the key `begin` on, their records and last failures, by
        snapshot.
    Writes: the entries without their task key; the records, classes and counts of buried tasks in no class.
    Conflicts: a change of a task that it writes.
    """
    start = keys.taken.start if begin is None else begin
    rows = tr.snapshot.get_range(start, keys.buried.stop, limit=limits.VERB_BATCH).to_list()
    asked = [tr.snapshot.get(keys.task(id_in(row.key))) for row in rows]
    rewritten, written = 0, 0
    for number, (row, found) in enumerate(zip(rows, asked, strict=True)):
        if written > limits.BATCH_BYTES_MAX:
            return Batch(number, rewritten, bytes(row.key))
        record = sound_record(found.value, id_in(row.key))
        if record is None:
            continue  # damaged: a take or a sweep sets it aside
        size = _bring_one(tr, keys, row, record)
        rewritten, written = rewritten + bool(size), written + size
    is_last = len(rows) < limits.VERB_BATCH
    return Batch(len(rows), rewritten, None if is_last else bytes(rows[-1].key) + b"\x00")


def _bring_one(tr: Transaction, keys: TaskKeys, row: KeyValue, record: Record) -> int:
    """Bring one task to the layout. Return the bytes written, 0 if it is as it should be."""
    needs_key, needs_class = lacks(keys, row, record)
    if not needs_key and not needs_class:
        return 0
    tr.add_read_conflict_key(keys.task(record.id))
    if needs_key:
        tr.set(row.key, record.key)
    if needs_class:
        _file(tr, keys, row, record)
    return len(record_to_bytes(record)) + len(record.key)


def lacks(keys: TaskKeys, row: KeyValue, record: Record) -> tuple[bool, bool]:
    """True if the entry lacks its task key, and if the task lacks its class of failure."""
    is_buried = row.key.startswith(keys.buried.start)
    return bool(record.key) and not row.value, is_buried and record.error is None


def _file(tr: Transaction, keys: TaskKeys, row: KeyValue, record: Record) -> None:
    """File a buried task under the class of its last failure since the last kick, an empty one without."""
    last = ask_last(tr, keys, record)() if record.failures > record.forgiven else None
    filed = replace(record, error="" if last is None else class_of(last.error))
    tr.set(keys.task(record.id), record_to_bytes(filed))
    classes.enter(tr, keys, filed, row.key[len(keys.buried.start) :])


def waiting(counts: Sequence[dict[str, int]]) -> int:
    """The number of entries that an upgrade looks at, from the live counters of all partitions."""
    states = (TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED)
    return sum(one[state.name.lower()] for one in counts for state in states)
