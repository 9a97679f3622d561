"""Common parts of the tests of element queues: a clock set by hand, and a look at the stored keys."""

from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue import ElementQueue, SimpleElementQueue

SCHEMA = {"body": "string", "blob": "binary?", "header": "table?"}
NOBODY = "00000000/5f000000000000"
MALFORMED = ("", "foo", "/", NOBODY + "\n", NOBODY.upper().replace("5F", "5G"), "0/0", "x" * 20_000)


def element_queue(space: Subspace, schema: Any = SCHEMA, **options: Any) -> ElementQueue:
    return ElementQueue(space["queue"], schema=schema, root=space["root"], **options)


def simple_queue(space: Subspace, name: str = "simple", **options: Any) -> SimpleElementQueue:
    return SimpleElementQueue(space[name], root=space["root"], **options)


def filled(db: Any, queue: ElementQueue, count: int) -> list[str]:
    return [queue.add(db, {"body": str(number)}) for number in range(count)]


def stored(db: Any, space: Subspace) -> list[tuple[bytes, bytes]]:
    """All keys of the queue, and their values."""
    return [(bytes(row.key), bytes(row.value)) for row in db.get_range_startswith(space["queue"].key())]
