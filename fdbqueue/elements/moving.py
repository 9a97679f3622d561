"""Moving elements from and to a directory queue, one at a time; whoever is killed starts again.

Two stores, no common transaction: between the two steps of a move there is a moment in which only a record
can tell whether the first has been done. "Is the element there?" cannot: a consumer may have removed it. So
each move has one deciding commit in the database, which moves the element and leaves the record.

    in    taken out of the folder (a rename) | added, and ARRIVED | deleted from disk  | record cleared
    out   prepared on disk, unseen           | removed, and DEPARTED | appears (a rename) | record cleared

Who comes after a kill looks at what lies taken or prepared. Taken and arrived: delete it; taken and not
arrived: add it. Prepared and departed: let it appear; prepared and not departed: delete it. A record is
cleared once what it decides about has left the place where it is looked for, and the disk has been told.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TypeVar

from fdbqueue.calls.once import run_once
from fdbqueue.database import Database, run
from fdbqueue.elements.base import ElementBase
from fdbqueue.elements.folder import CannotMove, Folder
from fdbqueue.elements.keys import FOLDER_BYTES
from fdbqueue.elements.names import is_name
from fdbqueue.elements.store import payload_of
from fdbqueue.errors import QueueLockError
from fdbqueue.seam import Transaction

T = TypeVar("T")


@dataclass(frozen=True)
class Moved:
    """What became of one element: `left` says why it stays where it is, "" if it does not."""

    name: str
    left: str = ""


def import_from(folder: Folder, database: Database, queue: ElementBase) -> Iterator[Moved]:
    """Move every element of the folder into the queue; one that another has locked stays.

    Raises DirectoryQueueInUse, OSError, and what the database raises. An element keeps its name, if it is
    free in the queue.
    """
    mover = _Mover(folder, database, queue)
    with mover.at_the_folder():
        yield from map(mover.arrive, folder.taken())
        # A record that nothing lies there for any more must not speak for a namesake, exported back since.
        mover.clear_arrivals()
        for name in folder.names():
            problem = folder.problem(name)
            if not problem and not folder.take(name):
                problem = "it is locked"
            yield Moved(name, problem) if problem else mover.arrive(name)
        mover.clear_arrivals()


def export_to(folder: Folder, database: Database, queue: ElementBase) -> Iterator[Moved]:
    """Move every element of the queue into the folder; one that somebody has locked stays.

    Raises DirectoryQueueInUse, OSError, and what the database raises. An element keeps its name, if it is
    free in the folder.
    """
    mover = _Mover(folder, database, queue)
    with mover.at_the_folder():
        mover.finish_departures()
        yield from map(mover.depart, queue.copy().names(database))
        mover.clear_departures()


class _Mover:
    """Moves single elements; `_settled` is the record of the last one, to be cleared with the next commit."""

    def __init__(self, folder: Folder, database: Database, queue: ElementBase) -> None:
        self._folder = folder
        self._database = database
        self._store, self._root = queue.store, queue.root
        self._keys = self._store.keys
        self._settled = b""

    def at_the_folder(self) -> AbstractContextManager[None]:
        """Alone. What a killed move of another queue has left there is not ours to finish.

        Reads the queue's own mark, and writes it if there is none.
        """
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
        """Add what was taken out of the folder, unless it has arrived already.

        Reads the record and the name; writes the element and the record; conflicts with an add of that name.
        """
        record = self._keys.arrival(self._folder.id, name)
        try:
            payload = payload_of(self._folder.read(name))
        except CannotMove as reason:
            return self._do_not_arrive(name, record, str(reason))

        def body(tr: Transaction) -> None:
            if not tr.get(record).present():
                self._store.add(tr, name, payload)
                self._remember(tr, record)

        self._once(body)
        self._folder.discard(name)
        self._settled = record
        return Moved(name)

    def _do_not_arrive(self, name: str, record: bytes, reason: str) -> Moved:
        """What was taken out and is no element: rest of one that has arrived, or something for its owner."""
        if self._has(record):
            self._folder.discard(name)
            return Moved(name)
        try:
            self._folder.put_back(name)
        except OSError as error:
            reason = f"{reason}; it cannot be put back ({error.strerror}), and lies in PATH/fdbqueue"
        return Moved(name, reason)

    def depart(self, name: str) -> Moved:
        """Remove an element that is not locked, and let it appear in the folder.

        Reads the element and its lock; clears it, writes the record; conflicts with any change of it.
        """
        if not is_name(name):
            return Moved(name, "its name is none of an element")
        try:
            pieces = run(self._database, lambda tr: self._store.peek(tr, name))
            self._folder.prepare(name, pieces)
        except QueueLockError as refused:
            return Moved(name, refused.reason)
        except CannotMove as reason:
            return Moved(name, str(reason))
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
        self._settled = record
        return Moved(name)

    def finish_departures(self) -> None:
        """Decide what a killed export has prepared."""
        for name in self._folder.prepared():
            if self._has_departed(name):
                self._folder.publish(name)
            else:
                self._folder.forget(name)
        self.clear_departures()

    def _has_departed(self, name: str) -> bool:
        return self._has(self._keys.departure(self._folder.id, name))

    def _has(self, record: bytes) -> bool:
        return run(self._database, lambda tr: bool(tr.get(record).present()))

    def clear_arrivals(self) -> None:
        self._clear(self._keys.arrivals(self._folder.id))

    def clear_departures(self) -> None:
        self._clear(self._keys.departures(self._folder.id))

    def _remember(self, tr: Transaction, record: bytes) -> None:
        tr.set(record, b"")
        if self._settled:
            tr.clear(self._settled)

    def _clear(self, records: slice) -> None:
        """Blind; there are a few at most."""
        self._once(lambda tr: tr.clear_range(records.start, records.stop))
        self._settled = b""

    def _once(self, body: Callable[[Transaction], T]) -> T:
        return run_once(self._database, self._root, body)
