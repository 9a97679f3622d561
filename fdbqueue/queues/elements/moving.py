"""Moving elements from and to a directory queue, one at a time; a killed move is finished by the next one.

A directory and a database have no common transaction. After a kill between the two steps of a move, only a
record can tell whether the first was done. The element cannot: a consumer may have removed it. So
each move has one deciding commit in the database, which moves the element and writes the record.

    in    taken out of the folder (a rename) | added, and ARRIVED | deleted from disk  | record cleared
    out   prepared on disk, unseen           | removed, and DEPARTED | appears (a rename) | record cleared

The next move looks at the taken and the prepared elements. Taken and arrived: delete it; taken and not
arrived: add it. Prepared and departed: let it appear; prepared and not departed: delete it. A record is
cleared when its element has left PATH/fdbqueue, on the disk too.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import DamagedElement, PayloadTooLarge, QueueLockError
from fdbqueue.core.once import run_once
from fdbqueue.core.seam import Transaction
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.folder import CannotMove, Folder
from fdbqueue.queues.elements.store import FOLDER_BYTES, is_name, payload_of

T = TypeVar("T")


@dataclass(frozen=True)
class Moved:
    """The result for one element: `left` is the reason why it stays in its place, "" if it was moved."""

    name: str
    left: str = ""


def import_from(folder: Folder, database: Database, queue: ElementBase) -> Iterator[Moved]:
    """Move every unlocked element of the folder into the queue. It keeps its name if that is free there."""
    mover = _Mover(folder, database, queue)
    with mover.at_the_folder():
        yield from map(mover.arrive, folder.taken())
        # A record left behind would decide about a later element of the same name, exported meanwhile.
        mover.clear_arrivals()
        for name in folder.names():
            problem = folder.problem(name)
            if not problem and not folder.take(name):
                problem = "it is locked"
            yield Moved(name, problem) if problem else mover.arrive(name)
        mover.clear_arrivals()


def export_to(folder: Folder, database: Database, queue: ElementBase) -> Iterator[Moved]:
    """Move every unlocked element of the queue into the folder. It keeps its name if that is free there."""
    mover = _Mover(folder, database, queue)
    with mover.at_the_folder():
        mover.finish_departures()
        yield from map(mover.depart, queue.copy().names(database))
        mover.clear_departures()


class _Mover:
    """Moves single elements; `_moved` is the record of the last move, which the next commit clears."""

    def __init__(self, folder: Folder, database: Database, queue: ElementBase) -> None:
        self._folder = folder
        self._database = database
        self._store, self._root = queue.store, queue.root
        self._keys = self._store.keys
        self._moved = b""

    def at_the_folder(self) -> AbstractContextManager[None]:
        """Exclude other movers. Leftovers of other queues, which have another mark, stay."""
        runtime, key = self._database.runtime, self._keys.mark
        new = runtime.random_bytes(FOLDER_BYTES)

        def body(tr: Transaction) -> bytes:
            found = tr.get(key)
            if found.present():
                return bytes(found.value)
            tr.set(key, new)
            return new

        return self._folder.exclusively(runtime.random_bytes(FOLDER_BYTES), self._once(body))

    def arrive(self, name: str) -> Moved:
        """Add a taken element to the queue, unless it has arrived already, and delete it from the disk."""
        record = self._keys.arrival(self._folder.id, name)
        try:
            payload = payload_of(self._folder.read(name))
        except (CannotMove, PayloadTooLarge) as reason:  # it may have grown since it was looked at
            return self._do_not_arrive(name, record, str(reason))

        def body(tr: Transaction) -> None:
            if not tr.get(record).present():
                self._store.add(tr, name, payload)
                self._remember(tr, record)

        self._once(body)
        self._folder.discard(name)
        self._moved = record
        return Moved(name)

    def _do_not_arrive(self, name: str, record: bytes, reason: str) -> Moved:
        """Delete the rest of an element that has arrived; put back any other entry that is no element."""
        if self._has(record):
            self._folder.discard(name)
            return Moved(name)
        try:
            self._folder.put_back(name)
        except OSError as error:
            reason = f"{reason}; it cannot be put back ({error.strerror}), and lies in PATH/fdbqueue"
        return Moved(name, reason)

    def depart(self, name: str) -> Moved:
        """Move an unlocked element from the queue to the folder. A damaged one is set aside."""
        if not is_name(name):
            return Moved(name, "its name is not that of an element")
        try:
            pieces = run(self._database, lambda tr: self._store.peek(tr, name))
            self._folder.prepare(name, pieces)
        except QueueLockError as refused:
            return Moved(name, refused.reason)
        except CannotMove as reason:
            return Moved(name, str(reason))
        except DamagedElement as error:
            self._once(partial(self._store.set_aside, name=name))
            return Moved(name, str(error))
        record = self._keys.departure(self._folder.id, name)

        def body(tr: Transaction) -> bool:
            if self._store.peek(tr, name) != pieces:
                return False
            self._store.discard(tr, name)
            self._remember(tr, record)
            return True

        try:
            departed = self._once(body)
        except QueueLockError:
            departed = False
        if not departed:
            self._folder.forget(name)
            return Moved(name, "it was locked meanwhile")
        self._folder.publish(name)
        self._moved = record
        return Moved(name)

    def finish_departures(self) -> None:
        """Publish or delete the elements that a killed export has prepared."""
        for name in self._folder.prepared():
            if self._has(self._keys.departure(self._folder.id, name)):
                self._folder.publish(name)
            else:
                self._folder.forget(name)
        self.clear_departures()

    def _has(self, record: bytes) -> bool:
        return run(self._database, lambda tr: bool(tr.get(record).present()))

    def clear_arrivals(self) -> None:
        self._clear(self._keys.arrivals(self._folder.id))

    def clear_departures(self) -> None:
        self._clear(self._keys.departures(self._folder.id))

    def _remember(self, tr: Transaction, record: bytes) -> None:
        tr.set(record, b"")
        if self._moved:
            tr.clear(self._moved)

    def _clear(self, records: slice) -> None:
        """Clear the records, without reading them; there are a few at most."""
        run(self._database, lambda tr: tr.clear_range(records.start, records.stop))
        self._moved = b""

    def _once(self, body: Callable[[Transaction], T]) -> T:
        return run_once(self._database, self._root, body)
