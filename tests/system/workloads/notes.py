"""The notes of a workload: each transaction writes the calls that it has made, with their answers.

The keys of the notes begin with the stamps of their commits. So the notes have exactly the transactions
that committed, in the order of their commits, whatever their clients know about them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task

_STAMP_BYTES = 10
_VERSION_BYTES = 8


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A task as a call has returned it."""

    id: str
    state: str
    data: Any
    pri: int
    key: Any
    attempts: int
    failures: int
    orphaned: int
    until: float | None
    expires: float | None
    token: bytes | None
    cancelled: bool

    @classmethod
    def of(cls, task: Task) -> "Seen":
        return cls(
            task.id,
            str(task.state),
            task.data,
            task.pri,
            task.key,
            task.attempts,
            task.failures,
            task.orphaned,
            task.until,
            task.expires,
            task.token,
            task.cancel_asked is not None,
        )


class Op(msgspec.Struct, array_like=True):
    """One call in a transaction: its arguments, its answer or its error, and the time."""

    verb: str
    began: float
    """By the clock of the client."""
    id: str = ""
    token: bytes | None = None
    count: int = 0
    seconds: float = 0.0
    failed: bool = False
    """With a failure."""
    options: dict[str, Any] = {}
    answers: list[Seen] = []
    number: int = 0
    told: Any = None
    error: str = ""
    ended: float = 0.0
    """By the clock of the client."""
    latest: float = 0.0
    """After the call, by the fastest clock of all clients."""


class Entry(msgspec.Struct, array_like=True):
    """The calls of a transaction, in order."""

    read_version: int
    nonce: bytes
    """Of the attempt that committed."""
    ops: list[Op]
    version: int = 0


_to_bytes = msgspec.msgpack.Encoder().encode
_entry_of = msgspec.msgpack.Decoder(Entry).decode


class Notes:
    def __init__(self, space: Subspace) -> None:
        self._entries: bytes = space["entries"].key()
        self._steps = space["steps"]

    def committed(self, tr: Transaction, step: str) -> bytes | None:
        """The nonce of the attempt that has committed this step."""
        value = tr.get(self._steps[step].key()).value
        return None if value is None else bytes(value)

    def write(self, tr: Transaction, step: str, nonce: bytes, ops: Sequence[Op]) -> None:
        version = tr.get_read_version().wait()
        tr.set(self._steps[step].key(), nonce)
        at = self._entries + bytes(_STAMP_BYTES)
        place = len(self._entries).to_bytes(4, "little")
        tr.set_versionstamped_key(at + place, _to_bytes(Entry(version, nonce, list(ops))))

    def entries(self, database: Database) -> Iterator[Entry]:
        """The committed transactions, in the order of their commits."""
        begin = len(self._entries)
        for row in database.get_range_startswith(self._entries):
            entry = _entry_of(row.value)
            entry.version = int.from_bytes(row.key[begin : begin + _VERSION_BYTES], "big")
            yield entry
