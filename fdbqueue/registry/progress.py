"""The progress of an upgrade of a queue, R[18, id]: (partition, rest).

`rest` is the next key without the prefix of the partition, empty at its beginning.
"""

from fdb import tuple as layer

from fdbqueue.registry.definition import UNPACKING


def place(partition: int, rest: bytes) -> bytes:
    value: bytes = layer.pack((partition, rest))
    return value


BEGINNING = place(0, b"")


def place_in(value: bytes) -> tuple[int, bytes] | None:
    """The partition and the rest of a key; None for a damaged value."""
    try:
        partition, rest = layer.unpack(value)
    except (*UNPACKING, TypeError):
        return None
    sound = isinstance(partition, int) and partition >= 0 and isinstance(rest, bytes)
    return (partition, rest) if sound else None
