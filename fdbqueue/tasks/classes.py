"""Classes of failure: the buried tasks of each class in an order of their own, and their number.

Both follow every change of a buried task, in its transaction. No call but those of a burial, and of the end
of one, writes or reads these keys.
"""

from collections.abc import Iterable

from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction
from fdbqueue.tasks.records.keys import Record, TaskKeys

_BYTES = 8
_ONE, _LESS, _NONE = ((n & (2**64 - 1)).to_bytes(_BYTES, "little") for n in (1, -1, 0))


def class_in(record: Record) -> str:
    return record.error or ""


def enter(tr: Transaction, keys: TaskKeys, record: Record, place: bytes) -> None:
    tr.set(keys.classed_at(class_in(record), place), b"")
    tr.add(keys.class_count(class_in(record)), _ONE)


def leave(tr: Transaction, keys: TaskKeys, record: Record, place: bytes) -> None:
    _clear(tr, keys, keys.classed_at(class_in(record), place), class_in(record))


def lost(tr: Transaction, keys: TaskKeys, key: bytes) -> None:
    """Take out an entry without a task. Conflicts: another call that does the same."""
    tr.add_read_conflict_key(key)
    _clear(tr, keys, key, keys.class_in(key))


def counted(tr: ReadTransaction, keys: TaskKeys, limit: int) -> dict[str, int]:
    """The number of buried tasks of each of the first `limit` classes."""
    return counts_in(keys, ask_counts(tr, keys, limit))


def ask_counts(tr: ReadTransaction, keys: TaskKeys, limit: int) -> Range:
    """Ask for the number of buried tasks of each of the first `limit` classes."""
    return tr.get_range(keys.class_counts.start, keys.class_counts.stop, limit=limit)


def counts_in(keys: TaskKeys, rows: Iterable[KeyValue]) -> dict[str, int]:
    return {keys.class_counted(row.key): int.from_bytes(row.value, "little") for row in rows}


def _clear(tr: Transaction, keys: TaskKeys, key: bytes, error: str) -> None:
    tr.clear(key)
    tr.add(keys.class_count(error), _LESS)
    tr.compare_and_clear(keys.class_count(error), _NONE)
