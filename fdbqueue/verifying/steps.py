"""The check of the steps of tasks: each belongs to a task with steps, and can be read."""

from collections.abc import Iterator

from fdbqueue.aside import DAMAGED
from fdbqueue.records.keys import ID_BYTES, TaskKeys, id_text, sound_record
from fdbqueue.tasks.steps import has_steps, step_of
from fdbqueue.verification import Flaw
from fdbqueue.verifying.asking import Row, Seen
from fdbqueue.verifying.slices import Suspect


class StepChecks:
    def __init__(self, keys: TaskKeys, mending: str) -> None:
        self._keys = keys
        self._mending = mending

    def judge(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[:ID_BYTES]
        stored = seen.value(self._keys.task(id_))
        record = sound_record(stored, id_)
        if stored is None or (record is not None and not has_steps(record)):
            text = f"A step belongs to the task {id_text(id_)}, which is missing, or has no steps."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))
        elif not _is_readable(row.value):
            text = f"A step of the task {id_text(id_)} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, lambda tr: tr.clear(row.key))


def _is_readable(value: bytes) -> bool:
    try:
        step_of(value)
    except DAMAGED:
        return False
    return True
