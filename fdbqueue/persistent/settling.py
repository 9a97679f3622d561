"""What a proxy does to the queue at one stroke, in one transaction: acks and puts that happen together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fdbqueue import limits
from fdbqueue.arguments import too_much
from fdbqueue.errors import NotTaken
from fdbqueue.records.keys import Record, id_bytes
from fdbqueue.records.statistics import LIVE, unpacked
from fdbqueue.seam import Transaction
from fdbqueue.task import Task
from fdbqueue.tasks import edges
from fdbqueue.tasks.capacity import admit_to
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.verbs import Target

AskOwner = Callable[[Transaction], Callable[[], None]]


@dataclass(frozen=True)
class Work:
    """Tasks to be acked, tasks that must still be held but stay, tasks to be put: all or none."""

    acked: Sequence[Task] = ()
    kept: Sequence[Task] = ()
    puts: Sequence[Draft] = ()

    def require_bounded(self) -> None:
        """Raises TooMuchForOneTransaction."""
        count = len(self.acked) + len(self.kept) + len(self.puts)
        size_bytes = sum(len(draft.payload) for draft in self.puts)
        if count > limits.BATCH_ITEMS_MAX or (len(self.puts) > 1 and size_bytes > limits.BATCH_BYTES_MAX):
            raise too_much(count, size_bytes)


def settle(change: Change, work: Work, maxsize: int, random: bytes, ask_owner: AskOwner) -> bool:
    """Whether there was room for the puts; if not, nothing is written.

    Reads the definition and the tasks of `work` serialisably, for puts the last task and the counter by
    snapshot; clears the acked ones, writes the new ones and the counters. Conflicts with any change of the
    former and, in a bounded queue, with other puts (tasks/capacity.py). Raises NotTaken if one of them is not
    held any more.
    """
    place = _ask_place(change, len(work.puts), maxsize, random, ask_owner) if work.puts else lambda: 0
    records = change.read(id_bytes(task.id) for task in (*work.acked, *work.kept))
    held = _all_held(change, [*work.acked, *work.kept], records)
    index = place()
    if index is None:
        return False
    edges.ack(change, held[: len(work.acked)])
    edges.put(change, work.puts, index, random)
    return True


def _ask_place(
    change: Change, wanted: int, maxsize: int, random: bytes, ask_owner: AskOwner
) -> Callable[[], int | None]:
    """Ask where new tasks belong; the reply is their first index, None if there is no room for them."""
    tr, keys = change.tr, change.shape.keys
    check = ask_owner(tr)
    last = tr.snapshot.get_range(keys.tasks.start, keys.index_end, limit=1, reverse=True)
    live = tr.snapshot.get(keys.live)

    def reply() -> int | None:
        check()
        if maxsize > 0 and not admit_to(tr, keys, maxsize, waiting_in(live.value), wanted, random):
            return None
        return next((keys.index_of(task.key) + 1 for task in last), 0)

    return reply


def release(change: Change, tasks: Sequence[Task]) -> None:
    """Give tasks back to their old places, but those that are not held any more.

    Reads and moves the tasks; conflicts with any change of them.
    """
    records = change.read(id_bytes(task.id) for task in tasks)
    pairs = zip(tasks, records, strict=True)
    edges.release(change, [record for task, record in pairs if record and _holds(change, task, record)])


def live_counters(change: Change) -> bytes | None:
    """Reads: the counters, by snapshot. Conflicts: none."""
    found: bytes | None = change.tr.snapshot.get(change.shape.keys.live).value
    return found


def waiting_in(live: bytes | None) -> int:
    """How many items wait, by the counters of the queue."""
    return unpacked(LIVE, live)["ready"]


def unfinished_in(live: bytes | None) -> int:
    """How many items wait or are un-acked, by the counters of the queue."""
    counts = unpacked(LIVE, live)
    return sum(counts.values()) - counts["buried"]


def _all_held(change: Change, tasks: Sequence[Task], records: Sequence[Record | None]) -> list[Record]:
    held: list[Record] = []
    for task, record in zip(tasks, records, strict=True):
        if record is None or not _holds(change, task, record):
            raise NotTaken(id=task.id)
        held.append(record)
    return held


def _holds(change: Change, task: Task, record: Record) -> bool:
    return Target(record.id, task.token).holds(record, change.now_us)
