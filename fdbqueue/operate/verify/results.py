"""The checks of results: the ends of tasks, the times at which they are over, and pieces of large results."""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.partitions.keys import RESULT, RESULT_AT, SharedKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.asking import Ask, Row, Seen, under
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.tasks.records.keys import ID_BYTES, NEVER_US, id_text
from fdbqueue.tasks.results import Stored, is_whole, stored_of

COLUMNS = (RESULT, RESULT_AT)


class ResultChecks:
    def __init__(self, keys: SharedKeys, mending: str) -> None:
        self._keys = keys
        self._mending = mending

    def weight(self, row: Row, rest: bytes) -> int:
        stored = _readable(row.value) if len(rest) == ID_BYTES else None
        return 0 if stored is None or _is_whole(stored) else stored.size_bytes or 0

    def ask_result(self, row: Row, rest: bytes) -> Iterator[Ask]:
        id_, stored = rest[:ID_BYTES], _readable(row.value)
        if id_ != rest:
            yield self._keys.result(id_)
        elif stored is not None:
            yield self._keys.result_at(stored.until_us, id_)
            if not _is_whole(stored):
                yield under(self._keys.pieces_of(id_))

    def judge_result(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[:ID_BYTES]
        if id_ != rest:
            yield from self._judge_piece(row, id_, seen)
            return
        stored = _readable(row.value)
        if stored is None:
            text = f"The result of the task {id_text(id_)} cannot be read."
            yield Suspect(Flaw.VALUE, row.key, text, self._mending, partial(self._remove, id_))
            return
        over_at = self._keys.result_at(stored.until_us, id_)
        if stored.until_us != NEVER_US and seen.value(over_at) is None:
            text = f"No sweep finds the result of the task {id_text(id_)}."
            yield Suspect(Flaw.TIMER, row.key, text, self._mending, lambda tr: tr.set(over_at, b""))
        there = len(stored.payload)
        if not _is_whole(stored):
            there = sum(len(piece.value) for piece in seen.rows(under(self._keys.pieces_of(id_))))
        if there != (stored.size_bytes or 0):
            text = f"The result of the task {id_text(id_)} has {there} bytes of its {stored.size_bytes}."
            yield Suspect(Flaw.PAYLOAD, row.key, text, self._mending, partial(self._remove, id_))

    def _judge_piece(self, row: Row, id_: bytes, seen: Seen) -> Iterator[Suspect]:
        value = seen.value(self._keys.result(id_))
        stored = None if value is None else _readable(value)
        if value is None or (stored is not None and _is_whole(stored)):
            text = f"A piece of a result belongs to the task {id_text(id_)}, which has no such result."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))

    def ask_time(self, _: Row, rest: bytes) -> Iterator[Ask]:
        yield self._keys.result(rest[-ID_BYTES:])

    def judge_time(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        id_ = rest[-ID_BYTES:]
        value = seen.value(self._keys.result(id_))
        stored = None if value is None else _readable(value)
        if value is None or (stored is not None and self._keys.result_at(stored.until_us, id_) != row.key):
            text = f"A time of a result names the task {id_text(id_)}, which has none that is over then."
            yield Suspect(Flaw.STRAY, row.key, text, self._mending, lambda tr: tr.clear(row.key))

    def _remove(self, id_: bytes, tr: Transaction) -> None:
        pieces = self._keys.pieces_of(id_)
        tr.clear(self._keys.result(id_))
        tr.clear_range(pieces.start, pieces.stop)


def _is_whole(stored: Stored) -> bool:
    return stored.size_bytes is None or is_whole(stored.size_bytes)


def _readable(value: bytes) -> Stored | None:
    try:
        return stored_of(value)
    except DAMAGED:
        return None
