"""Results: the end of a task that was put with a `result_ttl`, kept for that time with the value of its ack.

The transaction that ends the task writes it, without a read. It lies among the keys that all partitions
share, since it outlives the partition of its task. A task without a `result_ttl` has none of these keys.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_payload
from fdbqueue.core.aside import DAMAGED
from fdbqueue.core.codec import TYPED_HINT, PayloadCodec, pieces_of
from fdbqueue.core.errors import PayloadUnsupported
from fdbqueue.core.partitions.keys import SharedKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import Encode, End, Feature, Site
from fdbqueue.tasks.kinds import later
from fdbqueue.tasks.records.keys import NEVER_US, Record, id_in


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """The end of a task as stored. Append fields with a default; never reorder them."""

    outcome: str
    until_us: int
    """The time at which it is over."""
    size_bytes: int | None = None
    """Of the result. None: the task was acked with the result None, or was not acked."""
    payload: bytes = b""
    """The result, if it fits into one value."""


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


class Results(Feature):
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
