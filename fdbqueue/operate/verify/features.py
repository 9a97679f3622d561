"""The checks of the parts that few tasks have: results, ended tasks that are kept, steps, slots, and owners.

Each key names its task, its end or its claim, and is named by it. An ended task has an entry by id, one by
time, and one by task key. A result has a time at which it is over, and pieces if it is large.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.checks import Check, OfShape, Row, Suspect, readable, under
from fdbqueue.operate.verify.slices import rows_of
from fdbqueue.operate.verify.values import FOREIGN, Flaw
from fdbqueue.queues.persistent.unacked import claim_of
from fdbqueue.tasks import edges
from fdbqueue.tasks.disciplines.lanes import keyed_limit
from fdbqueue.tasks.limiting.keys import KEYED, Held, encode_held
from fdbqueue.tasks.records.extra import NEVER_US, Extra
from fdbqueue.tasks.records.keys import ID_BYTES, Record, TaskKeys, id_in, id_text, sound_record
from fdbqueue.tasks.results import Stored, is_whole, stored_of
from fdbqueue.tasks.retaining import Entry, entry_of
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.source import change_of
from fdbqueue.tasks.steps import Counted, counted_in, has_steps, step_of


class FeatureChecks(OfShape):
    # Ended tasks that are kept.

    def ended(self, row: Row, id_: bytes) -> Check:
        entry = readable(entry_of, row.value)
        if entry is None:
            yield self.found(Flaw.VALUE, row, f"The entry of the ended task {id_text(id_)} cannot be read.")
            return
        indexes = self._indexes(entry, id_)
        if not all(map((yield indexes).has, indexes)):
            text = f"No listing, or no sweep, finds the ended task {id_text(id_)}."
            yield self.found(Flaw.STATE, row, text, dict(zip(indexes, [entry.key, b""], strict=False)))

    def ended_index(self, row: Row, _: bytes) -> Check:
        id_ = id_in(row.key)
        stored = (yield [self._keys.ended(id_)]).value(self._keys.ended(id_))
        entry = readable(entry_of, stored)
        if stored is None or (entry is not None and row.key not in self._indexes(entry, id_)):
            text = f"A listing of ended tasks has the task {id_text(id_)}, which is not kept there."
            yield self.found(Flaw.STRAY, row, text)

    def _indexes(self, entry: Entry, id_: bytes) -> list[bytes]:
        by_time = self._keys.ended_at(entry.ended_us, id_)
        return [by_time, self._keys.ended_of(entry.key, entry.ended_us, id_)] if entry.key else [by_time]

    # Results.

    def weight(self, row: Row, rest: bytes) -> int:
        stored = readable(stored_of, row.value) if len(rest) == ID_BYTES else None
        return 0 if stored is None or _is_whole(stored) else stored.size_bytes or 0

    def result(self, row: Row, rest: bytes) -> Check:
        return self._result(row, rest) if len(rest) == ID_BYTES else self._piece(row, rest[:ID_BYTES])

    def _result(self, row: Row, id_: bytes) -> Check:
        stored, remove = readable(stored_of, row.value), partial(self._remove_result, id_)
        if stored is None:
            text = f"The result of the task {id_text(id_)} cannot be read."
            yield self.found(Flaw.VALUE, row, text, remove)
            return
        over_at, pieces = self._shared.result_at(stored.until_us, id_), under(self._shared.pieces_of(id_))
        seen = yield [over_at] if _is_whole(stored) else [over_at, pieces]
        if stored.until_us != NEVER_US and not seen.has(over_at):
            text = f"No sweep finds the result of the task {id_text(id_)}."
            yield self.found(Flaw.TIMER, row, text, {over_at: b""})
        there = len(stored.payload) if _is_whole(stored) else seen.size_bytes(pieces)
        if there != (stored.size_bytes or 0):
            text = f"The result of the task {id_text(id_)} has {there} bytes of its {stored.size_bytes}."
            yield self.found(Flaw.PAYLOAD, row, text, remove)

    def _piece(self, row: Row, id_: bytes) -> Check:
        value = (yield [self._shared.result(id_)]).value(self._shared.result(id_))
        stored = readable(stored_of, value)
        if value is None or (stored is not None and _is_whole(stored)):
            text = f"A piece of a result belongs to the task {id_text(id_)}, which has no such result."
            yield self.found(Flaw.STRAY, row, text)

    def result_time(self, row: Row, _: bytes) -> Check:
        id_ = id_in(row.key)
        value = (yield [self._shared.result(id_)]).value(self._shared.result(id_))
        stored = readable(stored_of, value)
        if value is None or (stored is not None and self._shared.result_at(stored.until_us, id_) != row.key):
            text = f"A time of a result names the task {id_text(id_)}, which has none that is over then."
            yield self.found(Flaw.STRAY, row, text)

    def _remove_result(self, id_: bytes, tr: Transaction) -> None:
        pieces = self._shared.pieces_of(id_)
        tr.clear(self._shared.result(id_))
        tr.clear_range(pieces.start, pieces.stop)

    # Steps.

    def steps(self, row: Row, record: Record) -> Check:
        if not has_steps(record):
            return
        steps = under(self._keys.steps_of(record.id))
        stored, told = _counted(self._keys, (yield [steps]).rows(steps)), counted_in(record)
        if stored != told:
            text = (
                f"The task {id_text(record.id)} counts {told.steps} steps of {told.size_bytes} bytes, and"
                f" has {stored.steps} of {stored.size_bytes} bytes."
            )
            yield self.found(Flaw.COUNTER, row, text, partial(_count, self._shape, record.id))

    def step(self, row: Row, rest: bytes) -> Check:
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
            yield self.found(Flaw.COUNTER, row, text, partial(_count, self._shape, id_))

    def _remove_step(self, key: bytes, id_: bytes, tr: Transaction) -> None:
        tr.clear(key)
        _count(self._shape, id_, tr)

    # Slots of limits.

    def slots(self, row: Row, record: Record) -> Check:
        holders = list(self._holders(record))
        seen = yield [key for _, _, key in holders]
        for name, cell, key in holders:
            if not seen.has(key):
                text = f"The task {id_text(record.id)} holds a slot of the limit {name!r}, and is no holder."
                held = encode_held(Held(cell, self._shape.name, self._shape.keys.partition, record.session))
                yield self.found(Flaw.STATE, row, text, {key: held})

    def _holders(self, record: Record) -> Iterator[tuple[str, int, bytes]]:
        limits = self._shape.limits
        for name, cell in slots_of(record).items():
            keyed = keyed_limit(record) if cell == KEYED else None
            of_key = None if keyed is None or keyed[0] != name else keyed[1]
            key = None if limits is None else limits.holder(name, record.id, of_key)
            if key is not None:
                yield name, cell, key

    # Owners of a persistent queue.

    def owner(self, row: Row, _: bytes) -> Check:
        claim = claim_of(self._keys.prefix, row.key)
        if claim is None:
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a queue has this shape.", FOREIGN)
        elif not (yield [claim]).has(claim):
            yield self.found(Flaw.STRAY, row, "A session is enrolled for an owner that has claimed nothing.")


def _is_whole(stored: Stored) -> bool:
    return stored.size_bytes is None or is_whole(stored.size_bytes)


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


def slots_of(record: Record) -> dict[str, int]:
    return {} if record.extra is None else record.extra.slots
