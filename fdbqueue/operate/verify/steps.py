"""The checks of steps: each belongs to a task and can be read, and the task counts all of them."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Row, Seen, Under, rows_of, under
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks import edges
from fdbqueue.tasks.records.keys import ID_BYTES, Extra, Record, TaskKeys, id_text, sound_record
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import change_of
from fdbqueue.tasks.steps import Counted, counted_in, has_steps, step_of


class StepChecks:
    def __init__(self, shape: Shape, mending: str) -> None:
        self._shape = shape
        self._keys = shape.keys
        self._mending = mending

    # The record of a task, and its steps.

    def ask_task(self, record: Record) -> Iterable[Under]:
        return (under(self._keys.steps_of(record.id)),) if has_steps(record) else ()

    def judge_task(self, row: Row, record: Record, seen: Seen) -> Iterator[Suspect]:
        for asked in self.ask_task(record):
            stored, told = _counted(self._keys, seen.rows(asked)), counted_in(record)
            if stored != told:
                name = id_text(record.id)
                text = (
                    f"The task {name} counts {told.steps} steps of {told.size_bytes} bytes, and has "
                    f"{stored.steps} of {stored.size_bytes} bytes."
                )
                mend = partial(_count, self._shape, record.id)
                yield Suspect(Flaw.COUNTER, row.key, text, self._mending, mend)

    # A step, and the record of its task.

    def judge(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[:ID_BYTES]
        stored = seen.value(self._keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None:
            text = f"A step belongs to the task {id_text(id_)}, which is missing."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif not _is_readable(row.value):
            text = f"A step of the task {id_text(id_)} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, partial(self._remove, row.key, id_))
        elif record is not None and not has_steps(record):
            text = f"A step belongs to the task {id_text(id_)}, which counts no steps."
            mend = partial(_count, self._shape, id_)
            yield Suspect(Flaw.COUNTER, row.key, text, self._mending, mend)

    def _remove(self, key: bytes, id_: bytes, tr: Transaction) -> None:
        tr.clear(key)
        _count(self._shape, id_, tr)


def _counted(keys: TaskKeys, rows: Sequence[Row]) -> Counted:
    names = (keys.step_name(row.key).encode() for row in rows)
    return Counted(len(rows), sum(len(row.value) + len(name) for row, name in zip(rows, names, strict=True)))


def _count(shape: Shape, id_: bytes, tr: Transaction) -> None:
    """Let the record of a task count its steps. Reads: both, serialisably."""
    steps = shape.keys.steps_of(id_)
    found = tr.get_range(steps.start, steps.stop)
    change = change_of(tr, shape, now_us=0)  # the time counts for ends of tasks only
    [record] = change.read([id_])
    if record is not None:
        counted = _counted(shape.keys, list(rows_of(found)))
        edges.step(change, record, (record.extra or Extra()).with_steps(*counted))
    change.finish()


def _is_readable(value: bytes) -> bool:
    try:
        step_of(value)
    except DAMAGED:
        return False
    return True
