"""The fetched and un-acked items of a proxy, in the order of fetching.

`ack` is given the object that `get` returned. It is found by identity; if the same object was fetched several
times, the first one counts. Otherwise the first equal item is meant. Items need not be hashable.

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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import NotTaken, NotUnacked, OwnerReplaced
from fdbqueue.core.once import run_once
from fdbqueue.core.runtime import Lock, Stop
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.queues.persistent.stored import Work
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.ending import end_in
from fdbqueue.tasks.options import Draft
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import OWNERS


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
