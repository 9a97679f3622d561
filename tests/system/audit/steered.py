"""The answer of a worker to a pause or a drain is true: from its commit on, the session gets no task."""

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.workers import pause_end
from fdbqueue.core.task import TaskState
from fdbqueue.fleet.gate import DRAINING
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import Record, id_text, sound_record
from tests.system.audit.model import Mirror, Values


class _Answer(msgspec.Struct):
    state: str = ""
    pause: float = 0.0


_read = msgspec.json.Decoder(_Answer).decode


def taken_after_the_answer(
    keys: RootKeys, prefixes: Iterable[bytes], changes: Mapping[bytes, Values], mirror: Mirror
) -> Iterator[str]:
    """Check the tasks that a commit has given to sessions. `prefixes`: those of all queues."""
    for record in _taken(prefixes, changes):
        shown = mirror.value(keys.presence(record.session))
        answer = _Answer() if shown is None else _read(shown)
        if answer.state == DRAINING or (answer.pause and answer.pause == _pause(keys, mirror)):
            yield f"the task {id_text(record.id)} is taken for a worker that has answered: {answer.state}"


def _taken(prefixes: Iterable[bytes], changes: Mapping[bytes, Values]) -> Iterator[Record]:
    for prefix in prefixes:
        under = prefix + records.TASK.code
        for key, values in changes.items():
            if key.startswith(under) and values.after is not None:
                before, after = (sound_record(value, key[len(under) :]) for value in values)
                is_taken = after is not None and after.state == TaskState.TAKEN
                if after is not None and is_taken and (before is None or before.token != after.token):
                    yield after


def _pause(keys: RootKeys, mirror: Mirror) -> float:
    """The end of the pause in force; 0 without one. No workload is long enough to see one end by itself."""
    value = mirror.value(keys.pause)
    return 0.0 if value is None else pause_end(value)
