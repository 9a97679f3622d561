"""The stored steps of a task: for each step that is done, its name and its result, in a key of its own.

The record of the task has their number and their bytes. A task without steps has none of these keys, and its
end costs nothing more.

A step that is done is not run again by a later attempt at its task. Its result is stored under the lease of
the attempt. Given a transaction, the step runs in it: its effect and its result are committed together.

The progress of a taken task: its holder tells it, and any process may wait for it. It is a part of the task's
record: no key more, no read more where a task is shown, and it goes with the lease. The wait watches the
record, so each renewal of the lease wakes it, and it looks again.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.calls import Waiter
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import PayloadTooLarge, PayloadUnreadable, StepUnderWay, TaskNotFound, TooManySteps
from fdbqueue.core.rows import Check, Flaw, OfColumn, Row, readable, rows_of, under
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.core.task import Task
from fdbqueue.core.unreadable import DAMAGED, shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import TaskCalls
from fdbqueue.tasks.change import Change, ask_payload, task_of
from fdbqueue.tasks.explaining import stored_and_current
from fdbqueue.tasks.feature import Encode, End, Feature, Site
from fdbqueue.tasks.rows import FeatureRows
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import Parts, change_of
from fdbqueue.tasks.stored.records import ID_BYTES, STEP, Extra, Record, TaskKeys, id_text, sound_record
from fdbqueue.tasks.verbs import Target, done, held


class Step(msgspec.Struct, frozen=True, array_like=True):
    """The result of a step as stored. Append fields with a default; never reorder them."""

    payload: bytes | None
    """None for the result None."""


to_bytes = msgspec.msgpack.Encoder().encode
step_of = msgspec.msgpack.Decoder(Step).decode
"""Decode a step. Raises one of aside.DAMAGED for damaged bytes."""


def has_steps(record: Record) -> bool:
    return record.extra is not None and record.extra.steps > 0


class Counted(NamedTuple):
    """The number of steps of a task that are done, and their bytes: names and stored results."""

    steps: int
    size_bytes: int


def counted_in(record: Record) -> Counted:
    return Counted(0, 0) if record.extra is None else Counted(record.extra.steps, record.extra.steps_bytes)


class StepRows(FeatureRows):
    """A step belongs to a task, whose record has the number of its steps and their bytes."""

    name = "steps"

    def beside(self, record: Record) -> slice | None:
        return self._keys.steps_of(record.id) if has_steps(record) else None

    def columns(self) -> dict[int, OfColumn]:
        return {STEP: self._step}

    def weight_of_task(self, record: Record) -> int:
        return counted_in(record).size_bytes

    def task(self, row: Row, record: Record) -> Check:
        if not has_steps(record):
            return
        steps = under(self._keys.steps_of(record.id))
        stored, told = _told_by(self._keys, (yield [steps]).rows(steps)), counted_in(record)
        if stored != told:
            text = (
                f"The task {id_text(record.id)} counts {told.steps} steps of {told.size_bytes} bytes, and"
                f" has {stored.steps} of {stored.size_bytes} bytes."
            )
            yield self.found(Flaw.COUNTER, row, text, partial(_recount, self._shape, record.id))

    def _step(self, row: Row, rest: bytes) -> Check:
        id_ = rest[:ID_BYTES]
        stored = (yield [self._keys.task(id_)]).value(self._keys.task(id_))
        record, name = sound_record(stored, id_), id_text(id_)
        if stored is None:
            text = f"A step belongs to the task {name}, which is missing."
            yield self.found(Flaw.STRAY, row, text)
        elif readable(step_of, row.value) is None:
            text = f"A step of the task {name} cannot be read."
            yield self.found(Flaw.VALUE, row, text, partial(self._remove_step, row.key, id_))
        elif record is not None and not has_steps(record):
            text = f"A step belongs to the task {name}, which counts no steps."
            yield self.found(Flaw.COUNTER, row, text, partial(_recount, self._shape, id_))

    def _remove_step(self, key: bytes, id_: bytes, tr: Transaction) -> None:
        tr.clear(key)
        _recount(self._shape, id_, tr)


class Steps(Feature):
    rows = StepRows

    def overwritten(self, site: Site, record: Record) -> None:
        """They were steps of other work."""
        _clear(site.tr, site.keys.steps_of(record.id))

    def carried(self, site: Site, record: Record) -> Callable[[TaskKeys], None]:
        """Reads: the steps, by snapshot: they change only with their record."""
        tr, under = site.tr, site.keys.steps_of(record.id)
        rows = tr.snapshot.get_range(under.start, under.stop) if has_steps(record) else ()

        def move(there: TaskKeys) -> None:
            for row in list(rows):
                tr.set(there.steps_of(record.id).start + row.key[len(under.start) :], row.value)
            _clear(tr, under)

        return move

    def fitted(self, extra: Extra, settings: Any) -> Extra:  # noqa: ARG002
        """It begins anew there."""
        return extra.with_steps(0, 0)

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:  # noqa: ARG002
        for record in records:
            if has_steps(record):
                _clear(site.tr, site.keys.steps_of(record.id))


def _clear(tr: Transaction, under: slice) -> None:
    tr.clear_range(under.start, under.stop)


Running = tuple[bytes, bytes | None, bytes, str]
"""A step that runs now: its task, token and session, and its name."""


@contextmanager
def only(calls: TaskCalls, target: Target, name: str) -> Iterator[None]:
    """Run no step twice under one lease.

    Raises StepUnderWay if that step runs already, in another thread or around this call.
    """
    key = (target.id, target.token, target.session, name)
    with calls.steps_lock:
        if key in calls.steps:
            raise _under_way(calls.shape.name, target, name)
        calls.steps.add(key)
    try:
        yield
    finally:
        with calls.steps_lock:
            calls.steps.discard(key)


def find(change: Change, target: Target, name: str) -> Step | None:
    """The stored step of a held task; None if it is not done.

    Reads: the task and the step, serialisably.
    Conflicts: a change of the task.
    Raises: NotTaken, PayloadUnreadable.
    """
    asked = change.tr.get(change.shape.keys.step(target.id, name))
    held(change, target)
    if not asked.present():
        return None
    try:
        return step_of(asked.value)
    except DAMAGED as error:
        raise PayloadUnreadable(codec="any", reason=f"the step {name!r} cannot be read") from error


def store(change: Change, target: Target, name: str, encode: Encode | None) -> None:
    """Store the result of a step of a held task; `encode` is None for the result None.

    Reads: the task and the step, serialisably.
    Writes: the task, the step.
    Conflicts: a change of the task.
    Raises: NotTaken; StepUnderWay if it is there already; TooManySteps, PayloadTooLarge, PayloadUnsupported.
    """
    key = change.shape.keys.step(target.id, name)
    asked = change.tr.get(key)
    record = held(change, target)
    if asked.present():
        raise _under_way(change.shape.name, target, name)
    payload = None if encode is None else encode()
    if payload is not None and len(payload) > limits.STEP_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.STEP_BYTES_MAX)
    value = to_bytes(Step(payload))
    extra = _with_step(change, record, name, len(value) + len(name.encode()))
    change.tr.set(key, value)
    edges.step(change, record, extra)


def names(change: Change, id_: bytes) -> list[str]:
    """The names of the steps of a task that are done, sorted.

    Reads: the task, serialisably; its steps by snapshot.
    Conflicts: a change of the task.
    Raises: TaskNotFound, RecordUnreadable.
    """
    [record] = change.read([id_])
    if record is None:
        change.require_sound(id_)
        raise TaskNotFound(id=id_text(id_), name=change.shape.name)
    if not has_steps(record):
        return []
    under = change.shape.keys.steps_of(id_)
    rows = change.tr.snapshot.get_range(under.start, under.stop)
    return sorted(change.shape.keys.step_name(row.key) for row in rows)


def _with_step(change: Change, record: Record, name: str, size_bytes: int) -> Extra:
    """The extra parts of the record, with one step more. Raises TooManySteps."""
    extra = record.extra or Extra()
    steps, total = extra.steps + 1, extra.steps_bytes + size_bytes
    if steps > limits.STEPS_MAX or total > limits.STEPS_BYTES_MAX:
        raise TooManySteps(
            id=id_text(record.id),
            name=change.shape.name,
            step=name,
            steps_max=limits.STEPS_MAX,
            bytes_max=limits.STEPS_BYTES_MAX,
        )
    return extra.with_steps(steps, total)


def _under_way(queue: str, target: Target, name: str) -> StepUnderWay:
    return StepUnderWay(id=id_text(target.id), name=queue, step=name)


def _told_by(keys: TaskKeys, rows: Sequence[Row]) -> Counted:
    names = (keys.step_name(row.key).encode() for row in rows)
    return Counted(len(rows), sum(len(row.value) + len(name) for row, name in zip(rows, names, strict=True)))


def _recount(shape: Shape, id_: bytes, tr: Transaction) -> None:
    """Let the record of a task count its steps. Reads: both, serialisably."""
    steps = shape.keys.steps_of(id_)
    found = tr.get_range(steps.start, steps.stop)
    change = change_of(tr, shape, now_us=0)  # the time counts for ends of tasks only
    [record] = change.read([id_])
    if record is not None:
        counted = _told_by(shape.keys, list(rows_of(found)))
        edges.step(change, record, (record.extra or Extra()).with_steps(*counted))
    change.finish()


def tell_progress(change: Change, target: Target, fraction: float) -> Task:
    record = held(change, target)
    return done(change, target, record, lambda: edges.progress(change, [record], fraction))


def wait_for_progress(
    database: Database, parts: Parts, id_: bytes, seen: float | None, until: float, waiter: Waiter
) -> Task | None:
    """Wait until the progress is other than `seen`. None if it is `until` (runtime.monotonic()) before."""
    look = partial(parts.look, verb=partial(_look_at_progress, id_=id_, seen=seen), id_=id_)
    while not isinstance(found := run(database, look), Task):
        patience_s = until - database.runtime.monotonic()
        if patience_s <= 0:
            found.cancel()
            return None
        # The end of a lease by its time changes no key.
        waiter.sleep([found], min(limits.LOOK_EVERY_S, patience_s))
    return found


def _look_at_progress(change: Change, id_: bytes, seen: float | None) -> Task | Future:
    _, record = stored_and_current(change, id_)
    if record.fraction == seen:
        return change.tr.watch(change.shape.keys.task(id_))
    return task_of(record, shown(change.shape.codec, ask_payload(change.tr, change.shape.keys, record)))
