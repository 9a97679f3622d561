"""The stored half of a persistent queue, shared by all its proxies: puts with a bound, acks, counts.

maxsize belongs to the opener, not to the queue. A put waits until fewer than maxsize items wait. Puts never
exceed it if all of them give one; if these differ, the largest counts. Items that come back to the queue
never wait.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_payload, too_many, too_much
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.once import run_once
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.core.sessions.keeper import Keeper, keeper_of
from fdbqueue.core.task import Task
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import TaskCalls, ask_index, ask_owner, calls_of, require_alone
from fdbqueue.tasks.capacity import Room, admit
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import NoRoom
from fdbqueue.tasks.options import Draft
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import LIVE_NAMES, Record, id_bytes, unpacked
from fdbqueue.tasks.verbs import Target


@dataclass(frozen=True)
class Work:
    """Tasks to ack, tasks that must still be held but stay, tasks to put: all or none."""

    acked: Sequence[Task] = ()
    kept: Sequence[Task] = ()
    puts: Sequence[Draft] = ()

    def require_bounded(self) -> None:
        count = len(self.acked) + len(self.kept) + len(self.puts)
        size_bytes = sum(len(draft.payload) for draft in self.puts)
        if count > limits.BATCH_ITEMS_MAX:
            raise too_many(count)
        if len(self.puts) > 1 and size_bytes > limits.BATCH_BYTES_MAX:
            raise too_much(len(self.puts), size_bytes)


def do(change: Change, work: Work, maxsize: int, random: bytes) -> NoRoom | None:
    """Do the work, if there is room for its puts; if not, nothing is written."""
    place = _ask_place(change, work.puts, maxsize, random) if work.puts else lambda: 0
    records = change.read(id_bytes(task.id) for task in (*work.acked, *work.kept))
    held = _all_held(change, [*work.acked, *work.kept], records)
    index = place()
    if isinstance(index, NoRoom):
        return index
    edges.ack(change, held[: len(work.acked)])
    edges.put(change, work.puts, index, random)
    return None


def _ask_place(
    change: Change, puts: Sequence[Draft], maxsize: int, random: bytes
) -> Callable[[], int | NoRoom]:
    """Ask for the reads of a put. The reply is the index of the first new item, or NoRoom.

    Conflicts: other puts, as in tasks/capacity.py.
    """
    tr, keys = change.tr, change.shape.keys
    check_owner, live = ask_owner(tr, change.shape), tr.snapshot.get(keys.live)
    index = ask_index(change, puts)

    def place() -> int | NoRoom:
        check_owner()
        waiting = waiting_in(live.value)
        if maxsize <= 0 or admit(tr, keys, maxsize, waiting, len(puts), random):
            return index()
        return NoRoom(waiting, more_due=False)

    return place


def release(change: Change, tasks: Sequence[Task]) -> None:
    """Give tasks back to their old places, without those that are no longer held."""
    records = change.read(id_bytes(task.id) for task in tasks)
    pairs = zip(tasks, records, strict=True)
    edges.release(change, [record for task, record in pairs if record and _holds(change, task, record)])


def live_counters(change: Change) -> bytes | None:
    found: bytes | None = change.tr.snapshot.get(change.shape.keys.live).value
    return found


def waiting_in(live: bytes | None) -> int:
    """The number of items that wait, by the counters of the queue."""
    return unpacked(LIVE_NAMES, live)["ready"]


def unfinished_in(live: bytes | None) -> int:
    """The number of items that wait or are un-acked, by the counters of the queue."""
    counts = unpacked(LIVE_NAMES, live)
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


class Stored:
    def __init__(self, database: Database, shape: Shape, maxsize: int) -> None:
        self.database = database
        self.runtime = database.runtime
        self.shape = shape
        self.maxsize = maxsize

    @property
    def calls(self) -> TaskCalls:
        # Looked up each time: a forked child has services of its own.
        return calls_of(self.database, self.shape)

    @property
    def keeper(self) -> Keeper:
        return keeper_of(self.database, self.shape.root)

    def draft(self, item: Any) -> Draft:
        """Raises: TypeError for an item that the codec cannot carry; PayloadTooLarge."""
        payload = checked_payload(self.shape.codec.encode(item))
        return self.shape.draft(item, payload, {})

    def put(self, draft: Draft, until: float | None, stop: Stop | None) -> bool:
        """False if there was no room `until` then, None for ever. Raises: WaitStopped once `stop` is set;
        UnsupportedOption if the queue has got partitions.
        """
        if self.maxsize > 0:
            return self.do(Work(puts=[draft]), until, [] if stop is None else [stop])
        self.calls.put_alone(draft, stop)
        return True

    def do(
        self,
        work: Work,
        until: float | None,
        stops: Sequence[Stop] = (),
        keep: Callable[[bool], None] = lambda _: None,
    ) -> bool:
        """Do the work. False if there was no room for the puts `until` then, None for ever; then nothing is
        done.

        `keep` hears of the result as soon as it is known, even if this thread is interrupted.
        """
        work.require_bounded()
        room = Room(self.database, self.calls.parts.holding, waiting_in, lambda: self.maxsize, len(work.puts))
        attempt = partial(self._do, work, keep)
        with self.database.waiter(*stops) as waiter:
            return room.put(attempt, float("inf") if until is None else until, waiter) is None

    def release(self, tasks: Sequence[Task]) -> None:
        """Give tasks back to their old places, limits.VERB_BATCH at a time; not those lost since."""
        for start in range(0, len(tasks), limits.VERB_BATCH):
            body = partial(release, tasks=tasks[start : start + limits.VERB_BATCH])
            run_once(self.database, self.shape.root, partial(self.calls.parts.within, verb=body))

    def waiting(self) -> int:
        """The number of items that wait. Overdue sessions are ended before the answer is zero."""
        return self._waiting_now() or self.keeper.try_again(self._waiting_now, self._ask_any) or 0

    def _waiting_now(self) -> int | None:
        return run(self.database, lambda tr: waiting_in(self._live(tr))) or None

    def _ask_any(self, tr: Transaction) -> Callable[[], bool]:
        return lambda: waiting_in(self._live(tr)) > 0

    def wait_until_finished(self, stop: Stop | None) -> None:
        """Wait until every task is gone or buried. A task that cannot be read is buried."""
        with self.database.waiter(stop) as waiter:
            while (changed := run(self.database, self._watch_unless_finished)) is not None:
                waiter.sleep([changed], limits.LOOK_EVERY_S)
                # The counters of a busy queue change a thousand times for each time that it runs empty.
                self.runtime.sleep(limits.JOIN_PAUSE_S)

    def _do(self, work: Work, keep: Callable[[bool], None]) -> NoRoom | None:
        calls = self.calls
        random = self.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        body = partial(do, work=work, maxsize=self.maxsize, random=random)
        return run_once(
            self.database,
            self.shape.root,
            partial(calls.alone, verb=body),
            wrote=lambda full: full is None,
            keep=lambda full: keep(full is None),
        )

    def _live(self, tr: Transaction) -> bytes | None:
        calls = self.calls
        require_alone(calls.shape)
        return calls.source.look(tr, live_counters)

    def _watch_unless_finished(self, tr: Transaction) -> Future | None:
        return tr.watch(self.shape.keys.live) if unfinished_in(self._live(tr)) else None
