"""The common part of both kinds of element queue: everything but the data of an element.

Given a *transaction*, a call happens if and only if that commits. Given a *database*, a call is retried until
it has happened exactly once (core/once.py).
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NewType, Self, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_function, checked_int, checked_prefix, checked_seconds, too_many
from fdbqueue.core.database import Handle, as_database, at_pace, is_transaction, run, runtime_in
from fdbqueue.core.errors import (
    CannotLock,
    DamagedElement,
    ElementNotLocked,
    InvalidArgument,
    InvalidElementName,
)
from fdbqueue.core.once import LostConflict, run_in, run_once
from fdbqueue.core.registry import Guard
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.queues.elements.store import (
    GRANULARITY_S,
    ElementKeys,
    Elements,
    Lock,
    Pieces,
    is_name,
    name_at,
    payload_of,
)

ReadNames = Callable[[str, int], list[str]]
"""Given a name and a limit: the next names, at most `limit`."""


class Cursor:
    """The position of a pass over a queue's names, and the names that it has read ahead.

    Names are read in batches, each in a transaction of its own, from the last name of the batch before. So no
    transaction stays open between elements. An element that exists during the whole pass is shown once. A
    cursor is for one thread at a time, like the queue object that owns it.
    """

    def __init__(self, batch_max: int) -> None:
        self._batch_max = max(1, min(batch_max, limits.BATCH_ITEMS_MAX))
        self.end()

    def fresh(self) -> "Cursor":
        """Make a cursor with the same batches, without a pass."""
        return Cursor(self._batch_max)

    def rewind(self) -> None:
        self._ahead: list[str] = []  # in reverse
        self._last = ""
        self._ended = False
        self._batch = min(limits.NAMES_READ_FIRST, self._batch_max)

    def end(self) -> None:
        self.rewind()
        self._ended = True

    def next(self, read: ReadNames) -> str:
        """The next name; "" at the end, and from then on."""
        if not self._ahead and not self._ended:
            self._read_ahead(read)
        return self._ahead.pop() if self._ahead else ""

    def _read_ahead(self, read: ReadNames) -> None:
        found = read(self._last, self._batch)
        self._ended = len(found) < self._batch
        # A short pass, to the first element that can be locked, should not read a thousand names.
        self._batch = min(2 * self._batch, self._batch_max)
        self._last = found[-1] if found else self._last
        self._ahead = found[::-1]


T = TypeVar("T")

LockToken = NewType("LockToken", str)
"""Identity of one lock of an element; printable."""


class ElementBase(Handle, KeepsAside):
    """Every method takes a database or a transaction first.

    One thread at a time may use the cursor of an object (`first`, `next`, `names`, `purge`); `copy()` has
    its own.
    """

    __slots__ = (
        "_aside",
        "_ask_exists",
        "_cursor",
        "_digit",
        "_named_us",
        "_receipts",
        "id",
        "path",
        "root",
        "store",
    )

    granularity = GRANULARITY_S
    _names_are_checked = True

    def __init__(
        self,
        subspace: Any,
        *,
        rndhex: int | None,
        umask: int | None,
        root: Any,
        guard: Guard | None,
        batch_max: int = limits.BATCH_ITEMS_MAX,
    ) -> None:
        """`umask` is checked and not used: there is no file system. Raises WrongType."""
        prefix = checked_prefix("subspace", subspace)
        if guard is not None:
            checked_function("guard", guard)
        for name, value in (("umask", umask), ("rndhex", rndhex)):
            if value is not None:
                checked_int(name, value)
        self.id: str = prefix.hex()
        """The same for all objects on the same queue."""
        self.path: str = repr(prefix)
        self._digit = None if rndhex is None else rndhex % 16
        self._named_us = 0
        self.root = RootKeys(root)
        self.store = Elements(ElementKeys(subspace), guard, self.root.prefix)
        self._aside, self._ask_exists = self.store.aside, self.store.guard
        self._receipts = self.root
        self._cursor = Cursor(batch_max)

    def copy(self) -> Self:
        """An independent object on the same queue, without a pass."""
        twin = self._twin()
        twin._cursor = self._cursor.fresh()
        return twin

    def _shown(self) -> dict[str, Any]:
        return {"path": self.path}

    # Locks.

    def acquire(self, tr: DatabaseOrTransaction, name: str, permissive: bool = True) -> LockToken | None:
        """Lock the element, and return a token of this lock; None if it is locked already, or gone.

        Given the token, `get`, `unlock` and `remove` fail if a `purge` has broken this lock meanwhile.
        Reads: the element, its lock.
        Conflicts: any change of the element or its lock.
        Raises: InvalidElementName; without `permissive`, CannotLock, an OSError, in place of None.
        """
        self._check_name(name)
        runtime = runtime_in(tr)
        lock = Lock(runtime.now_us(), runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES))
        refused = self._once(
            tr,
            lambda tr: self.store.acquire(tr, name, lock),
            wrote=lambda refused: not refused,
            look_again=True,
        )
        if refused and not permissive:
            raise CannotLock(name=name, reason=refused)
        return None if refused else LockToken(lock.token.hex())

    def lock(self, tr: DatabaseOrTransaction, name: str, permissive: bool = True) -> bool:
        """Lock the element. False if it is locked already, or gone. All else like `acquire`."""
        return self.acquire(tr, name, permissive) is not None

    def unlock(
        self,
        tr: DatabaseOrTransaction,
        name: str,
        permissive: bool = False,
        *,
        token: LockToken | str | None = None,
    ) -> bool:
        """Unlock the element; given a `token`, only from that very lock.

        Reads: the lock.
        Writes: clears the lock.
        Conflicts: any change of the lock.
        Raises: InvalidElementName; ElementNotLocked, LockLost (OSErrors); if `permissive`, returns False
            in place of these two.
        """
        self._check_name(name)
        try:
            self._once(tr, lambda tr: self.store.release(tr, name, _bytes(token)))
        except ElementNotLocked:
            if not permissive:
                raise
            return False
        return True

    def touch(self, tr: DatabaseOrTransaction, name: str) -> None:
        """Renew the time of the element's lock, which `purge` reads; no effect on an unlocked element.

        Reads: the element, its lock.
        Writes: the lock.
        Conflicts: any change of the element or its lock.
        Raises: ElementNotFound, an OSError.
        """
        now_us = runtime_in(tr).now_us()
        self._once(tr, lambda tr: self.store.touch(tr, name, now_us), wrote=bool)

    def remove(self, tr: DatabaseOrTransaction, name: str, *, token: LockToken | str | None = None) -> None:
        """Remove a locked element; given a `token`, only under that very lock.

        Reads: the lock.
        Writes: clears the element.
        Conflicts: any change of the lock.
        Raises: ElementNotLocked (also if the element is gone), LockLost, InvalidElementName.
        """
        self._check_name(name)
        self._once(tr, lambda tr: self.store.remove(tr, name, _bytes(token)))

    # Browsing.

    def count(self, tr: DatabaseOrTransaction) -> int:
        """The exact number of elements, locked or not. Reads one key by snapshot. Conflicts: none."""
        return run(tr, self.store.count)

    def first(self, tr: DatabaseOrTransaction) -> str:
        """Start a pass: the first name, "" if there is none.

        A pass shows every element that exists during the whole pass once, locked or not. Others, added or
        removed meanwhile, it may show.
        Reads: names by snapshot, in batches.
        Conflicts: none.
        """
        self._cursor.rewind()
        return self.next(tr)

    def next(self, tr: DatabaseOrTransaction) -> str:
        """The next name of the pass, "" at its end, or if there is no pass. Reads like `first`."""
        return self._cursor.next(lambda after, limit: run(tr, lambda tr: self.store.names(tr, after, limit)))

    def names(self, tr: DatabaseOrTransaction) -> Iterator[str]:
        """Every name: a pass, with the same cursor as `first` and `next`."""
        self._cursor.rewind()
        return iter(lambda: self.next(tr), "")

    def purge(self, tr: DatabaseOrTransaction, maxtemp: float = 300, maxlock: float = 600) -> None:
        """Remove locks older than `maxlock` seconds; none if that is 0. Ends the cursor's pass.

        `maxtemp` has no effect: an interrupted add leaves nothing. Given a database, each old lock is read
        again and broken in a transaction of its own.
        Reads: the locks by snapshot, in batches.
        Conflicts: changes of the locks that it breaks.
        Raises: InvalidArgument; given a transaction and limits.BATCH_ITEMS_MAX locks,
        TooMuchForOneTransaction.
        """
        checked_seconds("maxtemp", maxtemp)
        checked_seconds("maxlock", maxlock)
        self._cursor.end()
        tr = at_pace(tr, "background")
        if maxlock:
            before_us = runtime_in(tr).now_us() - round(maxlock * 1_000_000)
            old = self._old_locks(tr, before_us)
            # A transaction with too many locks must raise before it has broken any of them.
            for name in list(old) if is_transaction(tr) else old:
                self._once(tr, partial(self.store.break_lock, name=name, before_us=before_us), wrote=bool)

    # How it is done.

    def _add(self, target: DatabaseOrTransaction, pieces: Pieces) -> str:
        payload = payload_of(pieces)
        name = self._new_name(runtime_in(target))
        return self._once(target, lambda tr: self.store.add(tr, name, payload))

    def _get(self, target: DatabaseOrTransaction, name: str, token: LockToken | str | None) -> Pieces:
        self._check_name(name)
        body = partial(self.store.get, name=name, token=_bytes(token))
        return self._setting_aside(target, name, lambda: run(target, body))

    def _setting_aside(self, target: DatabaseOrTransaction, name: str, act: Callable[[], T]) -> T:
        """Run `act`, and pass its errors on; a damaged element is set aside."""
        try:
            return act()
        except DamagedElement:
            if not is_transaction(target) or hasattr(target, "snapshot"):
                self._once(target, partial(self.store.set_aside, name=name))
            raise

    def _take(
        self,
        target: DatabaseOrTransaction,
        name: str,
        permissive: bool,
        body: Callable[[Transaction, str], T],
        wrote: bool,
    ) -> T:
        """Run `body`, which raises QueueLockError for an element that cannot be locked."""
        self._check_name(name)

        def checked(tr: Transaction) -> T:
            refused = "" if permissive else self.store.refusal(tr, name)
            if refused:
                raise CannotLock(name=name, reason=refused)
            return body(tr, name)

        return self._once(target, checked, wrote=lambda _: wrote, look_again=True)

    def _old_locks(self, target: DatabaseOrTransaction, before_us: int) -> Iterator[str]:
        after, limit = "", limits.BATCH_ITEMS_MAX
        while found := run(target, partial(self.store.locks, after=after, limit=limit)):
            yield from (name for name, lock in found if lock.since_us < before_us)
            after = found[-1][0]
            if len(found) < limit:
                return
            if is_transaction(target):
                raise too_many(len(found))

    def _once(
        self,
        target: DatabaseOrTransaction,
        body: Callable[[Transaction], T],
        wrote: Callable[[T], bool] = lambda _: True,
        look_again: bool = False,
    ) -> T:
        """Run `body` once, or in the caller's transaction.

        With `look_again`, the first conflict is retried at once: mostly another caller has just locked the
        element, and that is the answer. A usual retry would wait first.
        """
        if look_again and not is_transaction(target):
            with suppress(LostConflict):
                return run_once(as_database(target), self.root, body, wrote=wrote, yield_to_conflict=True)
        return run_in(target, self.root, body, wrote=wrote)

    def _new_name(self, runtime: Runtime) -> str:
        if self._digit is None:
            self._digit = runtime.random_bytes(1)[0] % 16
        # Elements added by one object are in order, even if the clock stands still or is set back.
        named_us = max(runtime.now_us(), self._named_us + 1)
        name = name_at(named_us, self._digit, self.granularity)  # before it is remembered: it may raise
        self._named_us = named_us
        return name

    def _check_name(self, name: str) -> None:
        if self._names_are_checked and not is_name(name):
            raise InvalidElementName(name=name)


def _bytes(token: LockToken | str | None) -> bytes | None:
    if token is None:
        return None
    try:
        return bytes.fromhex(token)
    except (TypeError, ValueError):
        raise InvalidArgument(name="token", wanted="a token from acquire()", got=token) from None
