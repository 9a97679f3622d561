"""The trace context that is stored with a task: names and texts, such as those of a `traceparent`.

The stored bytes are a msgpack map. It is read with the record, so it costs no key and no round trip.
"""

from collections.abc import Mapping

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.unreadable import DAMAGED

_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(dict[str, str]).decode


def packed(carrier: Mapping[str, str]) -> bytes:
    """The context as stored bytes: its first entries, up to limits.TRACE_BYTES_MAX."""
    kept: dict[str, str] = {}
    stored = b""
    for name, text in carrier.items():
        kept[name] = text
        longer = _to_bytes(kept)
        if len(longer) > limits.TRACE_BYTES_MAX:
            break
        stored = longer
    return stored


def unpacked(stored: bytes) -> dict[str, str] | None:
    """The context of stored bytes; None if there is none, or if it cannot be read."""
    if not stored:
        return None
    try:
        return _from_bytes(stored)
    except DAMAGED:
        return None
