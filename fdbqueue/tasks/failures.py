"""The stored failures of a task: its last few failed attempts, in a ring of keys.

Each failure is written to the slot of its number, blindly: no read, and the ring never grows. The failures
are cleared with their task.

Classes of failure: the buried tasks of each class in an order of their own, and their number.

Both follow every change of a buried task, in its transaction. No call but those of a burial, and of the end
of one, writes or reads these keys.
"""

import dataclasses
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.seam import KeyValue, Range, ReadTransaction, Transaction, Value
from fdbqueue.core.sessions.ending import run_of
from fdbqueue.core.task import Failure
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.core.visible import text_of
from fdbqueue.tasks.stored.records import Record, TaskKeys, record_to_bytes

RETRIED, BURIED, LEASE_LOST = "retried", "buried", "lease_lost"
EXHAUSTED, EXCUSED = "exhausted", "excused"
NOT_COMPLETED = "NotCompleted"

LEASE_OVER = Failure("LeaseLost", "its lease ended before its holder ended the task")


def holder_died(process: str) -> Failure:
    return Failure("LeaseLost", "its holder's session died", worker=process)


def uncompleted(record: Record) -> Failure:
    """That of a task that nobody has completed in time."""
    handed = None if record.extra is None else record.extra.handed
    within = "" if handed is None else f" within {handed.ttl_us / 1_000_000:g} s"
    waited_for = f": it waited for {handed.waits_for}" if handed is not None and handed.waits_for else ""
    return Failure(NOT_COMPLETED, f"nobody completed it{within}{waited_for}")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A failure as stored. Append fields with a default; never reorder them."""

    number: int
    failure: Failure
    run: bytes = b""
    """The run that held a lost lease; or, if exhausted, the run that the burial was counted for."""


_ENTRY_BYTES_MAX = limits.FAILURE_DETAIL_BYTES_MAX + 4 * limits.FAILURE_MESSAGE_BYTES_MAX
_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(Entry).decode


def note(
    tr: Transaction, keys: TaskKeys, record: Record, failure: Failure, outcome: str, now_us: int
) -> Record:
    """Store the failure of an attempt. Return the record that counts it. Writes: one key."""
    whole = _whole(failure, outcome, record, now_us)
    run = run_of(record.token) if outcome == LEASE_LOST else b""
    entry = Entry(record.failures + 1, whole, run)
    tr.set(_key_of(keys, record.id, entry.number), _to_bytes(entry))
    return replace(record, failures=entry.number, error=class_of(whole.error))


def ask_failures(tr: Transaction, keys: TaskKeys, id_: bytes) -> Callable[[], list[Failure]]:
    """Ask for the stored failures, by snapshot. The reply has the oldest first."""
    asked = ask_entries(tr, keys, id_)
    return lambda: [entry.failure for entry in asked()]


def ask_last(tr: Transaction, keys: TaskKeys, record: Record) -> Callable[[], Failure | None]:
    """Ask for the last failure of a task, by snapshot. The reply is None without one."""
    if not record.failures:
        return lambda: None
    found = tr.snapshot.get(_key_of(keys, record.id, record.failures))
    return lambda: _last(found)


def _last(found: Value) -> Failure | None:
    """A damaged failure is left out, because no decision depends on it."""
    entry = entry_of(found.value) if found.present() else None
    return None if entry is None else entry.failure


def ask_entries(tr: Transaction, keys: TaskKeys, id_: bytes) -> Callable[[], list[Entry]]:
    """Ask for the stored failures with their numbers, by snapshot. The reply has the oldest first."""
    under = keys.failures_of(id_)
    found = tr.snapshot.get_range(under.start, under.stop, limit=limits.FAILURES_KEPT)
    return lambda: sorted(
        filter(None, (entry_of(row.value) for row in found)), key=lambda entry: entry.number
    )


def entry_of(value: bytes) -> Entry | None:
    try:
        return _from_bytes(value)
    except DAMAGED:
        return None


def rewrite(
    tr: Transaction,
    keys: TaskKeys,
    id_: bytes,
    entry: Entry,
    outcome: str,
    message: str | None = None,
    run: bytes | None = None,
) -> None:
    """Change the outcome of a stored failure. Writes: one key."""
    was = entry.failure
    said = dataclasses.replace(was, outcome=outcome, message=was.message if message is None else message)
    again = Entry(entry.number, said, entry.run if run is None else run)
    tr.set(_key_of(keys, id_, entry.number), _to_bytes(again))


def keep(tr: Transaction, keys: TaskKeys, id_: bytes, entries: Iterable[Entry]) -> None:
    """Store the failures that a task brings from another queue. Writes: one key each."""
    for entry in entries:
        tr.set(_key_of(keys, id_, entry.number), _to_bytes(entry))


def bytes_max(record: Record) -> int:
    """The most bytes that the stored failures of a task may have."""
    return min(record.failures, limits.FAILURES_KEPT) * _ENTRY_BYTES_MAX


def moved_bytes(record: Record) -> int:
    """The most bytes that a move of the task into another queue or partition adds to its transaction."""
    steps_bytes = 0 if record.extra is None else record.extra.steps_bytes
    groups_bytes = 0 if record.extra is None else limits.MOVED_GROUP_BYTES * len(record.extra.groups)
    record_bytes = limits.MOVED_RECORD_COPIES * len(record_to_bytes(record))
    return record.size_bytes + bytes_max(record) + steps_bytes + groups_bytes + record_bytes


def _key_of(keys: TaskKeys, id_: bytes, number: int) -> bytes:
    return keys.failure(id_, (number - 1) % limits.FAILURES_KEPT)


def clear_failures(tr: Transaction, keys: TaskKeys, record: Record) -> None:
    under = keys.failures_of(record.id)
    tr.clear_range(under.start, under.stop)


def _whole(failure: Failure, outcome: str, record: Record, now_us: int) -> Failure:
    return Failure(
        head(_text(failure.error), limits.FAILURE_MESSAGE_BYTES_MAX),
        head(_text(failure.message), limits.FAILURE_MESSAGE_BYTES_MAX),
        tail(_text(failure.detail), limits.FAILURE_DETAIL_BYTES_MAX),
        head(_text(failure.worker), limits.FAILURE_MESSAGE_BYTES_MAX),
        outcome,
        record.attempts,
        now_us / 1_000_000,
        record.taken_us / 1_000_000 if record.taken_us else None,
    )


def _text(said: object) -> str:
    """The text that is stored: of a class its name, of any other object its text."""
    if isinstance(said, str):
        return said
    return said.__name__ if isinstance(said, type) else text_of(said)


def class_of(error: str) -> str:
    return head(error, limits.FAILURE_CLASS_BYTES_MAX)


def head(text: str, bytes_max: int) -> str:
    return text.encode(errors="replace")[:bytes_max].decode(errors="ignore")


def tail(text: str, bytes_max: int) -> str:
    return text.encode(errors="replace")[-bytes_max:].decode(errors="ignore")


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
