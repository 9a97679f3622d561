"""Results: the end of a task that was put with a `result_ttl`, kept for that time with the value of its ack.

The transaction that ends the task writes it, without a read. It lies among the keys that all partitions
share, since it outlives the partition of its task. A task without a `result_ttl` has none of these keys.

A wait watches the record of the task, and looks again at each change of it. So the renewals of its lease wake
the wait, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_payload, checked_positive
from fdbqueue.core.calls import Waiter
from fdbqueue.core.codec import TYPED_HINT, PayloadCodec, pieces_of
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NoResult, PayloadUnreadable, PayloadUnsupported, ResultTimeout, TaskFailed
from fdbqueue.core.partitions import RESULT, RESULT_AT, SharedKeys
from fdbqueue.core.rows import (
    Batch,
    Check,
    ContentLine,
    Flaw,
    OfColumn,
    Pair,
    Row,
    Section,
    read_as,
    readable,
    rows_in,
    set_rows,
    under,
)
from fdbqueue.core.seam import Future, KeyValue, Transaction
from fdbqueue.core.task import TaskState
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.edges import as_of
from fdbqueue.tasks.failures import ask_last
from fdbqueue.tasks.feature import ACKED, Encode, End, Feature, Site
from fdbqueue.tasks.options import later, whole_us
from fdbqueue.tasks.rows import FeatureRows
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.records import ID_BYTES, NEVER_US, Record, id_in, id_text


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The end of a task as stored. Append fields with a default; never reorder them."""

    outcome: str
    until_us: int
    """The time at which it is over."""
    size_bytes: int | None = None
    """Of the result. None: the task was acked with the result None, or was not acked."""
    payload: bytes = b""
    """The result, if it fits into one value."""

    @property
    def is_whole(self) -> bool:
        """True if there are no pieces of it beside this value."""
        return self.size_bytes is None or is_whole(self.size_bytes)


_to_bytes = msgspec.msgpack.Encoder().encode
stored_of = msgspec.msgpack.Decoder(Stored).decode
"""Decode the end of a task. Raises one of aside.DAMAGED for damaged bytes."""


def encoder(codec: PayloadCodec, result: Any) -> Encode | None:
    """Return the function that encodes a result; None for the result None, which needs no codec."""

    def encode() -> bytes:
        try:
            return checked_payload(codec.encode(result))
        except PayloadUnsupported as error:
            place, reason = "result" + error.place.removeprefix("data"), error.reason.removesuffix(TYPED_HINT)
            raise PayloadUnsupported(
                codec=error.codec, type=error.type, place=place, reason=reason
            ) from error

    return None if result is None else encode


def is_asked(record: Record) -> bool:
    return record.extra is not None and record.extra.result_ttl_us > 0


def asked(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED."""
    return {"result_ttl_us": whole_us(checked_positive("result_ttl", options["result_ttl"], "seconds"))}


class ResultLine(ContentLine, tag="result"):
    """The end of a task with its result, in an export."""

    id: bytes
    value: bytes
    pieces: list[Pair]


class ResultRows(FeatureRows):
    """A result has a time at which it is over, and pieces if it is large."""

    lines = (ResultLine,)

    def shared_sections(self) -> Iterator[Section]:
        yield Section(self._shared.results, self._read)

    def _read(self, tr: Transaction, rows: Sequence[KeyValue]) -> Batch:
        """A result of several pieces lies before them: their rows are passed over."""
        asked: list[tuple[bytes, bytes, Callable[[], list[Pair]]]] = []
        used = 0
        for row in rows:
            id_ = bytes(row.key[len(self._shared.results.start) :])
            if len(id_) == ID_BYTES:
                stored = readable(stored_of, row.value)
                is_large = stored is None or not stored.is_whole
                if asked and is_large:
                    break
                asked.append((id_, bytes(row.value), rows_in(tr, self._pieces(id_)) if is_large else list))
            used += 1
        lines = [ResultLine(id_, value, pieces()) for id_, value, pieces in asked]
        return Batch(lines, used, {"results": len(lines)})

    def _pieces(self, id_: bytes) -> slice:
        return slice(self._shared.result(id_), self._shared.pieces_of(id_).stop)

    def place(self, tr: Transaction, lines: Sequence[ContentLine]) -> None:
        keys = self._shared
        for line in lines:
            if isinstance(line, ResultLine):
                tr.set(keys.result(line.id), line.value)
                set_rows(tr, keys.result(line.id), line.pieces)
                until_us = read_as(stored_of, line.value).until_us
                if until_us != NEVER_US:
                    tr.set(keys.result_at(until_us, line.id), b"")

    def shared(self) -> dict[int, OfColumn]:
        return {RESULT: self._result_or_piece, RESULT_AT: self._time}

    def weight(self, column: int, row: Row, rest: bytes) -> int:
        if column != RESULT or len(rest) != ID_BYTES:
            return 0
        stored = readable(stored_of, row.value)
        return 0 if stored is None or stored.is_whole else stored.size_bytes or 0

    def _result_or_piece(self, row: Row, rest: bytes) -> Check:
        return self._result(row, rest) if len(rest) == ID_BYTES else self._piece(row, rest[:ID_BYTES])

    def _result(self, row: Row, id_: bytes) -> Check:
        stored, remove = readable(stored_of, row.value), partial(_remove, self._shared, id_)
        if stored is None:
            text = f"The result of the task {id_text(id_)} cannot be read."
            yield self.found(Flaw.VALUE, row, text, remove)
            return
        over_at, pieces = self._shared.result_at(stored.until_us, id_), under(self._shared.pieces_of(id_))
        seen = yield [over_at] if stored.is_whole else [over_at, pieces]
        if stored.until_us != NEVER_US and not seen.has(over_at):
            text = f"No sweep finds the result of the task {id_text(id_)}."
            yield self.found(Flaw.TIMER, row, text, {over_at: b""})
        there = len(stored.payload) if stored.is_whole else seen.size_bytes(pieces)
        if there != (stored.size_bytes or 0):
            text = f"The result of the task {id_text(id_)} has {there} bytes of its {stored.size_bytes}."
            yield self.found(Flaw.PAYLOAD, row, text, remove)

    def _piece(self, row: Row, id_: bytes) -> Check:
        value = (yield [self._shared.result(id_)]).value(self._shared.result(id_))
        stored = readable(stored_of, value)
        if value is None or (stored is not None and stored.is_whole):
            text = f"A piece of a result belongs to the task {id_text(id_)}, which has no such result."
            yield self.found(Flaw.STRAY, row, text)

    def _time(self, row: Row, _: bytes) -> Check:
        id_ = id_in(row.key)
        value = (yield [self._shared.result(id_)]).value(self._shared.result(id_))
        stored = readable(stored_of, value)
        if value is None or (stored is not None and self._shared.result_at(stored.until_us, id_) != row.key):
            text = f"A time of a result names the task {id_text(id_)}, which has none that is over then."
            yield self.found(Flaw.STRAY, row, text)


class Results(Feature):
    rows = ResultRows

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:
        """Keep the ends of those tasks that were asked for a result. Writes: two keys each, and large
        results.
        """
        for record in records:
            if end.outcome and is_asked(record):
                _keep(site, record, end.outcome, None if end.result is None else end.result())

    def ask_due(self, site: Site) -> Callable[[], int | None]:
        """Reads: the oldest result."""
        keys = site.shared
        first = site.tr.snapshot.get_range(keys.result_times.start, keys.result_times.stop, limit=1)
        return lambda: next((keys.result_time(row.key) for row in first), None)

    def sweep(self, site: Site) -> bool:
        """Remove one batch of the results that are over.

        Reads: the oldest, by snapshot.
        Writes: clears them. Two sweeps at once clear the same keys, and nothing counts them.
        """
        tr, keys = site.tr, site.shared
        under = keys.results_until(site.now_us)
        rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.VERB_BATCH).to_list()
        for row in rows:
            tr.clear(row.key)
            _clear(tr, keys, id_in(row.key))
        return bool(rows)


def _keep(site: Site, record: Record, outcome: str, payload: bytes | None) -> None:
    tr, keys = site.tr, site.shared
    assert record.extra is not None  # it was asked for
    until_us = later(site.now_us, record.extra.result_ttl_us)
    if payload is None:
        stored = Stored(outcome, until_us)
    elif is_whole(len(payload)):
        stored = Stored(outcome, until_us, len(payload), payload)
    else:
        stored = Stored(outcome, until_us, len(payload))
        for number, piece in enumerate(pieces_of(payload)):
            tr.set(keys.result_piece(record.id, number), piece)
    tr.set(keys.result(record.id), _to_bytes(stored))
    if until_us != NEVER_US:
        tr.set(keys.result_at(until_us, record.id), b"")


def is_whole(size_bytes: int) -> bool:
    """True if a result of that size lies in one value with the end of its task."""
    return size_bytes <= limits.PAYLOAD_PIECE_BYTES_MAX


def forget_one(change: Change, id_: bytes) -> bool:
    """Remove the result of a task before its time. False if there is none."""
    tr, keys = change.tr, change.shape.shared
    asked = tr.get(keys.result(id_))
    change.require_queue()
    if not asked.present():
        return False
    with suppress(*DAMAGED):  # without the time of a damaged end: a sweep clears that key at its time
        tr.clear(keys.result_at(stored_of(asked.value).until_us, id_))
    _clear(tr, keys, id_)
    return True


def _clear(tr: Transaction, keys: SharedKeys, id_: bytes) -> None:
    pieces = keys.pieces_of(id_)
    tr.clear(keys.result(id_))
    tr.clear_range(pieces.start, pieces.stop)


_ENDED = {"deleted": "it was deleted", "cancelled": "it was cancelled", "expired": "its ttl was over"}
_OVER = "its result_ttl is over"
_UNASKED = "it was put without result_ttl"
_GONE = (
    "it is not there, and its result_ttl is over, or it had none, or forget_result or truncate has removed "
    "it, or it never was in this queue"
)


class Found(NamedTuple):
    payload: bytes | None


class Pending(NamedTuple):
    """The state of a task that has not ended, and a watch of its record, if that was asked for."""

    state: TaskState
    watch: Future | None


def look(change: Change, id_: bytes, watches: bool) -> Found | Pending:
    """The result of a task, or its state if it has not ended."""
    asked = change.tr.get(change.shape.shared.result(id_))
    [record] = change.read([id_])
    if asked.present():
        return _found(change, id_, asked.value)
    if record is None:
        change.require_sound(id_)
        raise _no_result(change, id_, _GONE)
    if not is_asked(record):
        raise _no_result(change, id_, _UNASKED)
    return Pending(_state(change, record), change.tr.watch(change.shape.keys.task(id_)) if watches else None)


def at_once(change: Change, id_: bytes) -> Found:
    """`look`, which raises ResultTimeout for a task that has not ended."""
    found = look(change, id_, watches=False)
    if isinstance(found, Pending):
        raise _timeout(change.shape.name, id_, found)
    return found


def wait(database: Database, parts: Parts, id_: bytes, until: float, waiter: Waiter) -> Found:
    """Wait for the result until `until` (runtime.monotonic())."""
    see = partial(parts.look, verb=partial(look, id_=id_, watches=True), id_=id_)
    while isinstance(found := run(database, see), Pending):
        assert found.watch is not None  # it was asked for
        patience_s = until - database.runtime.monotonic()
        if patience_s <= 0:
            found.watch.cancel()
            raise _timeout(parts.shape.name, id_, found)
        # The end of a task by its time changes no key before a sweep.
        waiter.sleep([found.watch], min(limits.LOOK_EVERY_S, patience_s))
    return found


def decoded(codec: PayloadCodec, found: Found) -> Any:
    return None if found.payload is None else codec.decode(found.payload)


def _state(change: Change, record: Record) -> TaskState:
    """Return the state of a task, unless it is buried, or has ended and is not swept."""
    current = as_of(record, change.now_us)
    if current is None:
        raise _no_result(change, record.id, _ENDED["cancelled" if record.cancelled_us else "expired"])
    if current.state == TaskState.BURIED:
        failure = ask_last(change.tr, change.shape.keys, record)()
        told = "no failure is stored" if failure is None else f"{failure.error}: {failure.message}"
        name = change.shape.name
        raise TaskFailed(id=id_text(record.id), name=name, failure=failure, reason=told)
    return TaskState(current.state)


def _found(change: Change, id_: bytes, value: bytes) -> Found:
    try:
        stored = stored_of(value)
    except DAMAGED as error:
        raise PayloadUnreadable(codec="any", reason="the end of its task cannot be read") from error
    if stored.until_us <= change.now_us:
        raise _no_result(change, id_, _OVER)
    if stored.outcome != ACKED:
        raise _no_result(change, id_, _ENDED.get(stored.outcome, stored.outcome))
    return Found(None if stored.size_bytes is None else _payload(change, id_, stored, stored.size_bytes))


def _payload(change: Change, id_: bytes, stored: Stored, size_bytes: int) -> bytes:
    payload = stored.payload
    if not is_whole(size_bytes):
        under = change.shape.shared.pieces_of(id_)
        payload = b"".join(row.value for row in change.tr.snapshot.get_range(under.start, under.stop))
    if len(payload) != size_bytes:
        reason = f"{len(payload)} of the {size_bytes} bytes of a result are there"
        raise PayloadUnreadable(codec="any", reason=reason)
    return payload


def _no_result(change: Change, id_: bytes, reason: str) -> NoResult:
    return NoResult(id=id_text(id_), name=change.shape.name, reason=reason)


def _timeout(name: str, id_: bytes, found: Pending) -> ResultTimeout:
    return ResultTimeout(id=id_text(id_), name=name, state=found.state.name.lower())


def _remove(keys: SharedKeys, id_: bytes, tr: Transaction) -> None:
    _clear(tr, keys, id_)
