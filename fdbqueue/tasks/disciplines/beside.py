"""The keys of keyed disciplines under `beside`, taken apart, and the state of a task key made anew."""

from msgspec.structs import replace

from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.disciplines.key_counts import IDLE, SLUG_BYTES, readable_state, slug_of
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import ID_BYTES

WAITING, STATE, ROUND, COUNTS, BUSY, LEVEL, FLOOR = range(1, 8)


def parts_of(beside: bytes, key: bytes) -> tuple[int, bytes]:
    """The number of the key's column under `beside`, and the part behind it."""
    rest = key[len(beside) :]
    return (rest[0], rest[1:]) if rest else (0, b"")


def is_slug(part: bytes) -> bool:
    """True if the part is a task key with its length in front, and nothing else."""
    return len(part) >= SLUG_BYTES and len(part) == SLUG_BYTES + int.from_bytes(part[:SLUG_BYTES], "big")


def task_key_in(waiting: bytes) -> bytes | None:
    """The task key in the part of a waiting key behind its column; None for another shape."""
    end = SLUG_BYTES + int.from_bytes(waiting[:SLUG_BYTES], "big")
    return waiting[SLUG_BYTES:end] if len(waiting) >= end + ID_BYTES else None


def rebuild(keyed: Keyed, tr: Transaction, key: bytes) -> None:
    """Make the state of a task key and its pointer anew, from its counters and its first task.

    Reads: the state, the counters and the first task of the key, serialisably.
    Writes: the state, the pointer.
    Conflicts: any change of the tasks of the key.
    """
    fifo, counters = keyed.fifo(key), keyed.counts.counts_key(slug_of(key))
    stored, first = tr.get(keyed.state_key(key)), tr.get_range(fifo.start, fifo.stop, limit=1)
    tr.add_read_conflict_key(counters)
    now = keyed.ask_now(tr)
    old = readable_state(stored.value if stored.present() else None) or IDLE
    head = next(keyed.waiting(key, first), None)
    taken = keyed.counts.numbers(tr, slug_of(key))["taken"] if keyed.counts_taken else 0
    state = replace(old, taken=taken)
    if head is not None and not old.head:
        state = keyed.begin(state, now())
    keyed.store(tr, key, old, state, head if keyed.is_open(state) else None)
