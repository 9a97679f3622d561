"""The keys of keyed disciplines under `beside`, for mending and for a reader that takes nothing."""

from collections.abc import Callable

from msgspec.structs import replace

from fdbqueue.core.seam import EXACT, Transaction
from fdbqueue.core.task import TaskPlace
from fdbqueue.tasks.disciplines.discipline import no_mending, read_index
from fdbqueue.tasks.disciplines.fair import Fair
from fdbqueue.tasks.disciplines.key_counts import IDLE, SLUG_BYTES, readable_state, slug_of
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import ID_BYTES, Record, TaskKeys

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


def ask_place(
    keyed: Keyed, keys: TaskKeys, tr: Transaction, record: Record, limit: int
) -> Callable[[], Callable[[], TaskPlace]]:
    """Ask for the place of a ready task, by snapshot; its numbers count up to `limit`.

    The reply asks for the keys ahead, and its reply is the place. A damaged state counts as none.
    """
    snapshot, now = tr.snapshot, keyed.ask_now(tr)
    state, fifo = snapshot.get(keyed.state_key(record.key)), keyed.fifo(record.key)
    before = snapshot.get_range(fifo.start, keyed.filed(record), limit=limit, streaming_mode=EXACT)

    def pointers() -> Callable[[], TaskPlace]:
        stored = readable_state(state.value if state.present() else None)
        known, ahead = stored or IDLE, list(read_index(tr, before.to_list(), no_mending))
        if not known.pointer:  # its key is busy: the pointer is the one that the key will get
            known = keyed.begin(known, now())
        at = known.pointer or keyed.point(known, ahead[0] if ahead else record)
        start, stop = keys.ready.start, keys.ready_at(at)
        earlier = snapshot.get_range(start, stop, limit=limit, streaming_mode=EXACT)

        def place() -> TaskPlace:
            round_ = keyed.turn(known, ahead, record, now()) if isinstance(keyed, Fair) else None
            current = None if round_ is None else now()
            return TaskPlace(len(earlier.to_list()), len(ahead), True, keyed.open(known), round_, current)

        return place

    return pointers
