"""The stored half of a persistent queue, shared by all its proxies: puts with a bound, acks, counts.

maxsize belongs to the opener, not to the queue. A put waits until fewer than maxsize items wait. Puts never
exceed it if all of them give one; if these differ, the largest counts. Items that come back to the queue
never wait.

The fetched and un-acked items of a proxy, in the order of fetching. `ack` is given the object that `get`
returned. It is found by identity; if the same object was fetched several times, the first one counts.
Otherwise the first equal item is meant. Items need not be hashable.

Owners: clients with a name. A client that reopens a name gets back at once the items of the client before
it.

    S[14, owner]            claim   16 random bytes
    S[14, owner, session]   member  the claim it belongs to

S is the queue. The first fetch of a client reads the claim. The next opening of the name replaces the
claim, and reads the members. Opening in an owner's name *claims* it. Then the sessions of earlier claims
are ended, and their items are at the front of the queue. A session enrols before it takes anything, in a
transaction that reads the claim. If another client has claimed the name meanwhile, `enrol` raises
OwnerReplaced, and the session takes no item.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_payload, too_many, too_much
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, NotUnacked, OwnerReplaced
from fdbqueue.core.once import run_once
from fdbqueue.core.runtime import Lock, Stop
from fdbqueue.core.seam import Future, Transaction
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.keeper import Keeper, keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks import edges
from fdbqueue.tasks.calls import TaskCalls, ask_index, ask_owner, calls_of, require_alone
from fdbqueue.tasks.capacity import Room, admit
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.ending import end_in
from fdbqueue.tasks.feature import NoRoom
from fdbqueue.tasks.options import Draft
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import LIVE_NAMES, OWNERS, Record, id_bytes, unpacked
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
    check_owner, counters = ask_owner(tr, change.shape), tr.snapshot.get(keys.counters)
    index = ask_index(change, puts)

    def place() -> int | NoRoom:
        check_owner()
        waiting = waiting_in(counters.value)
        if maxsize <= 0 or admit(tr, keys, maxsize, waiting, len(puts), random):
            return index()
        return NoRoom(waiting, more_due=False)

    return place


def release(change: Change, tasks: Sequence[Task]) -> None:
    """Give tasks back to their old places, without those that are no longer held."""
    records = change.read(id_bytes(task.id) for task in tasks)
    pairs = zip(tasks, records, strict=True)
    edges.release(change, [record for task, record in pairs if record and _holds(change, task, record)])


def counters_in(change: Change) -> bytes | None:
    found: bytes | None = change.tr.snapshot.get(change.shape.keys.counters).value
    return found


def waiting_in(counters: bytes | None) -> int:
    """The number of items that wait, by the counters of the queue."""
    return unpacked(LIVE_NAMES, counters)["ready"]


def unfinished_in(counters: bytes | None) -> int:
    """The number of items that wait or are un-acked, by the counters of the queue."""
    counts = unpacked(LIVE_NAMES, counters)
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
        return run(self.database, lambda tr: waiting_in(self._counters(tr))) or None

    def _ask_any(self, tr: Transaction) -> Callable[[], bool]:
        return lambda: waiting_in(self._counters(tr)) > 0

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

    def _counters(self, tr: Transaction) -> bytes | None:
        calls = self.calls
        require_alone(calls.shape)
        return calls.source.look(tr, counters_in)

    def _watch_unless_finished(self, tr: Transaction) -> Future | None:
        return tr.watch(self.shape.keys.counters) if unfinished_in(self._counters(tr)) else None


@dataclass(frozen=True, eq=False)
class Delivery:
    """A task held by a proxy: its place in the order of fetching, and the thread that fetched it."""

    number: int
    task: Task
    thread: int

    @property
    def item(self) -> Any:
        return self.task.data


class Unacked:
    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._next = self._first = 0
        self._deliveries: dict[int, Delivery] = {}
        self._of_object: dict[int, list[Delivery]] = {}

    def add(self, task: Task, thread: int) -> Delivery:
        with self._lock:
            delivery = Delivery(self._next, task, thread)
            self._next += 1
            self._insert(delivery)
        return delivery

    def pick(self, item: Any) -> Delivery:
        """Remove and return the delivery that `ack(item)` means. Raises: NotUnacked."""
        with self._lock:
            same = self._of_object.get(id(item)) or [d for d in self._deliveries.values() if d.item == item]
            if not same:
                raise NotUnacked(item=item)
            return self._remove(same[0])

    def pick_oldest(self, thread: int) -> Delivery | None:
        """Remove and return the oldest delivery of `thread`; of all threads, if it has none.

        Threads may share a proxy and call task_done() for finished items. One must not ack an item on which
        another still works: it would be lost if the process died now.
        """
        with self._lock:
            own = (d for d in self._deliveries.values() if d.thread == thread)
            oldest = next(own, None) or next(iter(self._deliveries.values()), None)
            return None if oldest is None else self._remove(oldest)

    def discard(self, deliveries: list[Delivery]) -> None:
        with self._lock:
            for delivery in deliveries:
                if delivery.number in self._deliveries:
                    self._remove(delivery)

    def put_back(self, deliveries: list[Delivery]) -> None:
        """Make these items un-acked again, each in its old place, but none of a session that is over."""
        with self._lock:
            held = (delivery for delivery in deliveries if delivery.number >= self._first)
            there = sorted([*self._deliveries.values(), *held], key=lambda d: d.number)
            self._clear()
            for delivery in there:
                self._insert(delivery)

    def clear(self) -> None:
        with self._lock:
            self._first = self._next
            self._clear()

    def items(self) -> list[Any]:
        with self._lock:
            return [delivery.item for delivery in self._deliveries.values()]

    def _insert(self, delivery: Delivery) -> None:
        self._deliveries[delivery.number] = delivery
        self._of_object.setdefault(id(delivery.item), []).append(delivery)

    def _remove(self, delivery: Delivery) -> Delivery:
        del self._deliveries[delivery.number]
        same = self._of_object[id(delivery.item)]
        same.remove(delivery)
        if not same:
            del self._of_object[id(delivery.item)]
        return delivery

    def _clear(self) -> None:
        self._deliveries, self._of_object = {}, {}


@dataclass
class Unit:
    """Deliveries and puts to commit together. An ack outside of a transaction is a unit of its own."""

    fetched: list[Delivery] = field(default_factory=list)
    acked: list[Delivery] = field(default_factory=list)
    puts: list[Draft] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    """The events of its puts: each of them stops the wait for room."""
    until: float | None = None
    """The earliest time limit of the puts, as runtime.monotonic()."""
    done: bool = False

    def put(self, draft: Draft, until: float | None, stop: Stop | None) -> None:
        self.puts.append(draft)
        if stop is not None:
            self.stops.append(stop)
        if until is not None:
            self.until = until if self.until is None else min(until, self.until)

    def work(self) -> Work:
        acked = {delivery.number for delivery in self.acked}
        kept = [delivery.task for delivery in self.fetched if delivery.number not in acked]
        return Work([delivery.task for delivery in self.acked], kept, self.puts)

    def lose(self, late: NotTaken) -> Delivery:
        """Remove and return the delivery of a task that is no longer held."""
        lost = next(d for d in (*self.acked, *self.fetched) if d.task.id == vars(late)["id"])
        self.acked = [delivery for delivery in self.acked if delivery is not lost]
        self.fetched = [delivery for delivery in self.fetched if delivery is not lost]
        return lost


CLAIM_BYTES = 16


class Owner:
    """A name, claimed."""

    def __init__(self, database: Database, shape: Shape, name: str) -> None:
        """Raises: OwnerReplaced if another client claims the name meanwhile."""
        self.name = name
        self._database = database
        self._shape = shape
        self._under: bytes = layer.pack((OWNERS, name), prefix=shape.keys.prefix)
        self._claim = database.runtime.random_bytes(CLAIM_BYTES)
        self._enrolled: list[Session] = []
        parts = calls_of(database, shape).parts
        run_once(database, shape.root, partial(parts.within, verb=self._write_claim))
        self._end_earlier()

    def enrol(self, session: Session) -> None:
        run_once(self._database, self._shape.root, lambda tr: self._enrol(tr, session))
        # Sessions that ended in the background: without this their members would stay for ever.
        over = [former for former in self._enrolled if former.lost]
        self._enrolled.append(session)
        for former in over:
            self._end(former.id)
            self.strike(former)

    def strike(self, session: Session) -> None:
        run(self._database, lambda tr: tr.clear(self._member(session.id)))
        with suppress(ValueError):  # another thread has
            self._enrolled.remove(session)

    def _write_claim(self, change: Change) -> None:
        """Conflicts: a session that enrols in this name."""
        tr = change.tr
        bypass_storage_quota(tr)
        tr.set(self._under, self._claim)

    def _enrol(self, tr: Transaction, session: Session) -> None:
        self._require_mine(tr)  # a read, so another claim conflicts
        bypass_storage_quota(tr)  # also on a full disk: a fetch makes room
        tr.set(self._member(session.id), self._claim)

    def _end_earlier(self) -> None:
        while earlier := run(self._database, self._earlier):
            for session in filter(None, map(self._session_in, earlier)):
                self._end(session)
            run(self._database, lambda tr: self._clear(tr, earlier))

    def _end(self, session: bytes) -> None:
        end_session(self._database, self._shape.root, session, lambda *_: True, died=False)
        end_in(self._database, self._shape, session, died=False)  # for a session that was ended half way

    def _earlier(self, tr: Transaction) -> list[bytes]:
        """The keys of the first members. Reads: these keys, and the claim."""
        self._require_mine(tr)
        found = tr.get_range(self._under + b"\x00", self._under + b"\xff", limit=limits.DEAD_SESSIONS_MAX)
        return [bytes(entry.key) for entry in found]

    def _session_in(self, member: bytes) -> bytes | None:
        """The session of a member's key; None for a damaged key."""
        try:
            session = layer.unpack(member, prefix_len=len(self._under))[0]
        except (ValueError, IndexError, struct.error):
            return None
        return session if isinstance(session, bytes) else None

    def _clear(self, tr: Transaction, members: Sequence[bytes]) -> None:
        for member in members:
            tr.clear(member)

    def _member(self, session: bytes) -> bytes:
        key: bytes = layer.pack((session,), prefix=self._under)
        return key

    def _require_mine(self, tr: Transaction) -> None:
        if tr.get(self._under).value != self._claim:
            raise OwnerReplaced(name=self._shape.name, owner=self.name)


def claim_of(prefix: bytes, key: bytes) -> bytes | None:
    """The claim that a key of an owner belongs to: the key itself, or that of a member; None for another key.

    `prefix` is that of the queue.
    """
    try:
        parts = layer.unpack(key, prefix_len=len(prefix))
    except (ValueError, IndexError, struct.error):
        return None
    if list(map(type, parts)) not in ([int, str], [int, str, bytes]) or parts[0] != OWNERS:
        return None
    claim: bytes = layer.pack(parts[:2], prefix=prefix)
    return claim
