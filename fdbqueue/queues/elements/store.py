"""The elements of one queue, in one transaction each.

    -         add      ->  unlocked
    unlocked  acquire  ->  locked
    locked    touch    ->  locked, from now on
    locked    release  ->  unlocked
    locked    break_lock, once it is old  ->  unlocked
    locked    remove   ->  gone
    unlocked  peek, discard  ->  gone

A transaction that reads an element's lock conflicts with one that changes it: there is no other mutual
exclusion. Payloads never change, and are read by snapshot.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.binding import bypass_storage_quota
from fdbqueue.core.codec import pieces_of
from fdbqueue.core.errors import (
    DamagedElement,
    ElementNotFound,
    ElementNotLocked,
    LockLost,
    PayloadTooLarge,
    QueueLockError,
)
from fdbqueue.core.registry import Guard, SubspaceGuard
from fdbqueue.core.seam import KeyValue, Transaction
from fdbqueue.core.unreadable import DAMAGED, Aside
from fdbqueue.queues.elements.keys import COUNTER, ElementKeys, Lock, following
from fdbqueue.queues.elements.schema import Pieces

_to_bytes = msgspec.msgpack.Encoder().encode
_from_bytes = msgspec.msgpack.Decoder(Pieces).decode


GONE = "there is no such element"


def payload_of(pieces: Pieces) -> bytes:
    payload = _to_bytes(pieces)
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=len(payload), limit_bytes=limits.PAYLOAD_BYTES_MAX)
    return payload


class Elements:
    def __init__(self, keys: ElementKeys, guard: Guard | None, root: bytes | None = None) -> None:
        """Without a `guard` the queue is not registered: its subspace may hold keys of another program."""
        self.keys = keys
        self.aside = Aside(keys.prefix, keys.aside)
        self.guard = guard or SubspaceGuard(keys.prefix, keys.is_key, root).ask_until_known

    def add(self, tr: Transaction, name: str, payload: bytes) -> str:
        """Add an element as `name`, or as the next free name, and return the name."""
        check = self.guard(tr)
        while tr.get(self.keys.element(name)).present():
            name = following(name)
        check()
        for number, piece in enumerate(pieces_of(payload)):
            tr.set(self.keys.payload(name, number), piece)
        tr.set(self.keys.element(name), b"")
        tr.add(self.keys.count, COUNTER.pack(1))
        return name

    def acquire(self, tr: Transaction, name: str, lock: Lock) -> str:
        """Lock the element, and return "", or the reason for a refusal."""
        refused = self.refusal(tr, name)
        if not refused:
            bypass_storage_quota(tr)  # on a full disk, too: a consumer locks in order to remove
            tr.set(self.keys.lock(name), lock.to_bytes())
        return refused

    def refusal(self, tr: Transaction, name: str) -> str:
        """The reason why the element cannot be locked, or "". Reads the element and its lock."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))
        element = tr.get(self.keys.element(name))
        check()
        if not element.present():
            return GONE
        return "it is locked" if held.present() else ""

    def release(self, tr: Transaction, name: str, token: bytes | None) -> None:
        self._require_lock(tr, name, token, "unlock")()
        tr.clear(self.keys.lock(name))

    def get(self, tr: Any, name: str, token: bytes | None) -> Pieces:
        require, payload = self._require_lock(tr, name, token, "get"), self._ask_payload(tr, name)
        require()
        return payload()

    def remove(self, tr: Transaction, name: str, token: bytes | None) -> None:
        self._require_lock(tr, name, token, "remove")()
        self._clear(tr, name)

    def peek(self, tr: Transaction, name: str) -> Pieces:
        """The pieces of an unlocked element."""
        payload = self._ask_payload(tr, name)
        refused = self.refusal(tr, name)
        if refused:
            raise QueueLockError(name=name, reason=refused)
        return payload()

    def set_aside(self, tr: Transaction, name: str) -> None:
        payload, element = self._ask_payload(tr, name), tr.get(self.keys.element(name))
        if not element.present():
            return
        try:
            payload()
        except DamagedElement as damage:
            under = self.keys.payload_of(name)
            pieces = tr.get_range(under.start, under.stop, limit=limits.ASIDE_PARTS_MAX)
            values = [element.value, *(bytes(piece.value) for piece in pieces)]
            self.aside.put(tr, self.keys.element(name), values, str(damage))
            self._clear(tr, name)

    def discard(self, tr: Transaction, name: str) -> None:
        """Remove an element that this transaction has just peeked at."""
        self._clear(tr, name)

    def touch(self, tr: Transaction, name: str, now_us: int) -> bool:
        """Set the lock's time to `now_us`, and never back: clocks differ. True if there is a lock."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))
        element = tr.get(self.keys.element(name))
        check()
        if not element.present():
            raise ElementNotFound(action="touch", name=name)
        if held.present():
            lock = Lock.from_bytes(held.value)
            tr.set(self.keys.lock(name), Lock(max(now_us, lock.since_us), lock.token).to_bytes())
        return bool(held.present())

    def break_lock(self, tr: Transaction, name: str, before_us: int) -> bool:
        """True if the lock was from before `before_us`, and not renewed meanwhile: then it is broken."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))
        check()
        old = held.present() and Lock.from_bytes(held.value).since_us < before_us
        if old:
            tr.clear(self.keys.lock(name))
        return bool(old)

    def names(self, tr: Any, after: str, limit: int) -> list[str]:
        """At most `limit` names after `after`, in order. Reads by snapshot. Conflicts: none."""
        return [
            self.keys.name_in(entry.key) for entry in self._sound(tr, self.keys.elements_after(after), limit)
        ]

    def locks(self, tr: Any, after: str, limit: int) -> list[tuple[str, Lock]]:
        """At most `limit` locks after `after`, in order of the names. Reads by snapshot. Conflicts: none."""
        found = self._sound(tr, self.keys.locks_after(after), limit)
        return [(self.keys.name_in(entry.key), Lock.from_bytes(entry.value)) for entry in found]

    def count(self, tr: Any) -> int:
        """The number of elements. Reads one key by snapshot. Conflicts: none."""
        check, counter = self.guard(tr), _snapshot(tr).get(self.keys.count)
        check()
        return int.from_bytes((counter.value or b"")[: COUNTER.size], "little", signed=True)

    def _sound(self, tr: Any, under: slice, limit: int) -> list[KeyValue]:
        """The first `limit` keys that end in a name; damaged ones are passed over."""
        check, start, sound = self.guard(tr), under.start, list[KeyValue]()
        while True:
            found = _snapshot(tr).get_range(start, under.stop, limit=limit).to_list()
            check()
            sound += [entry for entry in found if self.keys.is_sound(entry.key)]
            if len(found) < limit or len(sound) >= limit:
                return sound[:limit]
            start = found[-1].key + b"\x00"

    def _require_lock(self, tr: Any, name: str, token: bytes | None, action: str) -> Callable[[], None]:
        """Ask for the lock; the reply raises ElementNotLocked or LockLost."""
        check, held = self.guard(tr), tr.get(self.keys.lock(name))

        def require() -> None:
            check()
            if not held.present():
                there = _snapshot(tr).get(self.keys.element(name)).present()
                raise ElementNotLocked(action=action, name=name, reason="" if there else f": {GONE}")
            if token is not None and Lock.from_bytes(held.value).token != token:
                raise LockLost(action=action, name=name)

        return require

    def _ask_payload(self, tr: Any, name: str) -> Callable[[], Pieces]:
        under = self.keys.payload_of(name)
        asked = _snapshot(tr).get_range(under.start, under.stop)
        return lambda: self._pieces_of(name, _joined([piece.value for piece in asked]))

    def _pieces_of(self, name: str, payload: bytes) -> Pieces:
        try:
            return _from_bytes(payload)
        except DAMAGED as reason:
            raise DamagedElement(name=name, queue=repr(self.keys.prefix), reason=str(reason)) from reason

    def _clear(self, tr: Transaction, name: str) -> None:
        payload = self.keys.payload_of(name)
        tr.clear_range(payload.start, payload.stop)
        tr.clear(self.keys.element(name))
        tr.clear(self.keys.lock(name))
        tr.add(self.keys.count, COUNTER.pack(-1))


def is_readable(payload: bytes) -> bool:
    try:
        _from_bytes(payload)
    except DAMAGED:
        return False
    return True


def _joined(pieces: Sequence[bytes]) -> bytes:
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snapshot(tr: Any) -> Any:
    return getattr(tr, "snapshot", tr)
