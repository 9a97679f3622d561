"""Large payloads lie in several keys: one value has a bound, and one payload has another."""

from collections.abc import Iterator

from fdbqueue import limits


def pieces_of(payload: bytes) -> Iterator[bytes]:
    """Cut `payload` into pieces of at most limits.PAYLOAD_PIECE_BYTES_MAX bytes."""
    step = limits.PAYLOAD_PIECE_BYTES_MAX
    return (payload[start : start + step] for start in range(0, len(payload), step))
