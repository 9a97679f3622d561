"""Versionstamps: 8 bytes of commit version and 2 bytes of order in its batch.

The last four bytes of a template key or value are the offset of the stamp, little-endian (API version 520).
"""

from fdbqueue.fdberror import FDBError

STAMP_BYTES = 10
_OFFSET_BYTES = 4


def stamp(version: int, order: int) -> bytes:
    return version.to_bytes(8, "big") + order.to_bytes(2, "big")


def split(template: bytes) -> tuple[bytes, int]:
    """Return (bytes without the offset, offset).

    Raises: FDBError 2000 if the stamp does not fit there.
    """
    body, offset = template[:-_OFFSET_BYTES], int.from_bytes(template[-_OFFSET_BYTES:], "little", signed=True)
    if len(template) < _OFFSET_BYTES or offset < 0 or offset + STAMP_BYTES > len(body):
        raise FDBError(2000)
    return body, offset


def place(body: bytes, offset: int, stamp_bytes: bytes) -> bytes:
    return body[:offset] + stamp_bytes + body[offset + STAMP_BYTES :]


def possible_keys(body: bytes, offset: int, version_min: int) -> tuple[bytes, bytes]:
    """Return the range [begin, end) of the keys that the commit may make of this template."""
    first = place(body, offset, stamp(version_min, 0))
    last = place(body, offset, b"\xff" * STAMP_BYTES)
    return first, last + b"\x00"
