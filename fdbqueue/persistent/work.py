"""The work of a proxy on the queue in one transaction: acks and puts that happen together."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fdbqueue import limits
from fdbqueue.arguments import too_much
from fdbqueue.errors import NotTaken
from fdbqueue.records.keys import Record, id_bytes
from fdbqueue.records.statistics import LIVE, unpacked
from fdbqueue.seam import Value
from fdbqueue.task import Task
from fdbqueue.tasks import edges, verbs
from fdbqueue.tasks.capacity import NoRoom, admit_to
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.verbs import AskOwner, Target


@dataclass(frozen=True)
class Work:
    """Tasks to ack, tasks that must still be held but stay, tasks to put: all or none."""

    acked: Sequence[Task] = ()
    kept: Sequence[Task] = ()
    puts: Sequence[Draft] = ()

    def require_bounded(self) -> None:
        """Raises: TooMuchForOneTransaction."""
        count = len(self.acked) + len(self.kept) + len(self.puts)
        size_bytes = sum(len(draft.payload) for draft in self.puts)
        if count > limits.BATCH_ITEMS_MAX or (len(self.puts) > 1 and size_bytes > limits.BATCH_BYTES_MAX):
            raise too_much(count, size_bytes)


def do(change: Change, work: Work, maxsize: int, random: bytes, ask_owner: AskOwner) -> NoRoom | None:
    """Do the work, if there is room for its puts; if not, nothing is written.

    Reads: the tasks of `work`, serialisably; for puts, the last task and the counters, by snapshot.
    Conflicts: a change of these tasks; in a bounded queue other puts (tasks/capacity.py).
    Raises: NotTaken if one of the tasks is not held any more.
    """
    admit = partial(admit_waiting, maxsize)
    ask = partial(verbs.ask_place, change, work.puts, random, ask_owner, admit)
    place = ask() if work.puts else lambda: 0
    records = change.read(id_bytes(task.id) for task in (*work.acked, *work.kept))
    held = _all_held(change, [*work.acked, *work.kept], records)
    index = place()
    if isinstance(index, NoRoom):
        return index
    edges.ack(change, held[: len(work.acked)])
    edges.put(change, work.puts, index, random)
    return None


def admit_waiting(maxsize: int, change: Change, live: Value, wanted: int, random: bytes) -> NoRoom | None:
    """None if `wanted` more items may wait. Conflicts: other puts, as in tasks/capacity.py."""
    waiting = waiting_in(live.value)
    if maxsize <= 0 or admit_to(change.tr, change.shape.keys, maxsize, waiting, wanted, random):
        return None
    return NoRoom(waiting, more_due=False)


def release(change: Change, tasks: Sequence[Task]) -> None:
    """Give tasks back to their old places, without those that are no longer held.

    Reads: the tasks.
    Writes: moves them.
    Conflicts: a change of the tasks.
    """
    records = change.read(id_bytes(task.id) for task in tasks)
    pairs = zip(tasks, records, strict=True)
    edges.release(change, [record for task, record in pairs if record and _holds(change, task, record)])


def live_counters(change: Change) -> bytes | None:
    """Reads: the counters, by snapshot. Conflicts: none."""
    found: bytes | None = change.tr.snapshot.get(change.shape.keys.live).value
    return found


def waiting_in(live: bytes | None) -> int:
    """The number of items that wait, by the counters of the queue."""
    return unpacked(LIVE, live)["ready"]


def unfinished_in(live: bytes | None) -> int:
    """The number of items that wait or are un-acked, by the counters of the queue."""
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
