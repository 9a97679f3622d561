"""Receipts: a call given a database has its effect once, even when the result of a commit is unknown (I3).

Every attempt also sets, blindly, one key of its own process (a *slot*, one per call in flight) to an id of
this very attempt. After commit_unknown_result (1021) or cluster_version_changed (1039) the retry first reads
the slot, serialisably: if an earlier attempt's id is there, that attempt committed and what it computed is
the answer; if not, it never will commit without aborting the retry. "Is my item there?" is no receipt: a
consumer may have removed it in between.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

from fdbqueue import limits
from fdbqueue.counters import MAYBE_COMMITTED, NOT_COMMITTED, Counters
from fdbqueue.database import Database, engine_errors, run
from fdbqueue.errors import FdbQueueError
from fdbqueue.root_keys import RootKeys
from fdbqueue.seam import Transaction

T = TypeVar("T")

ATTEMPT = struct.Struct(">QQ")  # microseconds since the epoch, number of the attempt in its process


class LostConflict(Exception):
    """The attempt conflicted, and its caller asked to hear of it rather than to retry."""


class Receipts:
    """The slots of one process on one database."""

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys
        self._process = database.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        # list.pop, list.append and next() are atomic: no lock on the way of every call.
        self._free: list[bytes] = []
        self._slots = count(1)
        self._attempts = count(1)

    def take_slot(self) -> bytes:
        try:
            return self._free.pop()
        except IndexError:
            return self._keys.receipt(self._process, next(self._slots))

    def give_slot(self, slot: bytes) -> None:
        self._free.append(slot)

    def attempt_id(self) -> bytes:
        """Unique in this process; carries the time by which a sweeper recognises what a dead one left."""
        return ATTEMPT.pack(self._database.runtime.now_us(), next(self._attempts))

    def close(self) -> None:
        """Clear this process's slots and some that dead ones left. Best effort: the cluster may be gone,
        or the disk full, and what comes after in closing matters more.

        Not the slot of a call that is still in flight: its retry after an unknown result would find nothing
        there, and take what it has done for undone. It is swept some day.
        """
        free, self._free = self._free, []
        if next(self._attempts) > 1:
            with suppress(*engine_errors(), FdbQueueError):
                run(self._database, lambda tr: self._clear(tr, free), timeout_s=limits.CLOSE_TIMEOUT_S)

    def is_needed(self) -> bool:
        """The slots of calls in flight are known here."""
        return True

    def _clear(self, tr: Transaction, free: Sequence[bytes]) -> None:
        for slot in free[: limits.BATCH_ITEMS_MAX]:
            tr.clear(slot)
        sweep(tr, self._keys, self._database.runtime.now_us())


def receipts_of(database: Database, keys: RootKeys) -> Receipts:
    return database.service(("receipts", keys.prefix), lambda owner: Receipts(owner, keys))


def sweep(tr: Transaction, keys: RootKeys, now_us: int) -> int:
    """Clear slots that nobody has written for a day, at most `limits.RECEIPTS_SWEPT_MAX` of those looked at.

    Reads the first slots by snapshot, and serialisably each one that it clears; conflicts only with a call
    that uses such a slot again at this moment. Returns how many it cleared.
    """
    seen = tr.snapshot.get_range(
        keys.receipts.start, keys.receipts.stop, limit=limits.RECEIPTS_SWEPT_MAX
    ).to_list()
    # Something else may use this root: only a receipt of ours is cleared.
    ours = [slot for slot in seen if keys.is_receipt(slot.key) and len(slot.value) == ATTEMPT.size]
    stale = [slot.key for slot in ours if is_stale(slot.value, now_us)]
    for key in stale:
        tr.add_read_conflict_key(key)
        tr.clear(key)
    return len(stale)


def is_stale(receipt: bytes, now_us: int) -> bool:
    written_us, _ = ATTEMPT.unpack(receipt)
    return bool(written_us < now_us - limits.RECEIPT_STALE_S * 1_000_000)


def run_once(
    database: Database,
    keys: RootKeys,
    body: Callable[[Transaction], T],
    *,
    wrote: Callable[[T], bool] = lambda _: True,
    keep: Callable[[T], None] = lambda _: None,
    yield_to_conflict: bool = False,
) -> T:
    """Run `body` in transactions of `database` until one commits; its effect happens once.

    Returns what the attempt that committed computed; the body is told nothing and may run many times.
    `wrote` says of an answer whether its attempt wrote anything: one that did not needs no receipt.
    `keep` is given the answer as soon as it is known to be committed, even if this thread is interrupted
    while it waits for the commit. With `yield_to_conflict` a conflict that certainly changed nothing
    raises LostConflict. Raises what the body raises, and the engine's FDBError when it is not retryable.
    """
    receipts = receipts_of(database, keys)
    slot = receipts.take_slot()
    call = _Call(database, receipts, slot, body, wrote, keep, yield_to_conflict)
    try:
        answer: T = call.run()
    except BaseException:
        # Where an attempt may still be under way, the slot is kept for good: that attempt would overwrite the
        # receipt of whoever used the slot next.
        if not call.is_in_doubt:
            receipts.give_slot(slot)
        raise
    receipts.give_slot(slot)
    return answer


class _Call:
    """One call in flight: its transaction, its slot, and its attempts whose result is unknown."""

    def __init__(
        self,
        database: Database,
        receipts: Receipts,
        slot: bytes,
        body: Callable[[Transaction], Any],
        wrote: Callable[[Any], bool],
        keep: Callable[[Any], None],
        yield_to_conflict: bool,
    ) -> None:
        self._tr = database.create_transaction()
        self._counters: Counters = database.counters
        self._receipts = receipts
        self._slot = slot
        self._body = body
        self._wrote = wrote
        self._keep = keep
        self._yield_to_conflict = yield_to_conflict
        self._unsure: dict[bytes, Any] = {}
        self._committing = False

    @property
    def is_in_doubt(self) -> bool:
        """Whether an attempt may have committed, or may yet, that nobody has heard of."""
        return self._committing or bool(self._unsure)

    def run(self) -> Any:
        attempt, answer = b"", None
        while True:
            self._committing = False
            try:
                known = self._committed_before_all()
                if known is not None:
                    return self._settled(known[0])
                attempt, answer = self._receipts.attempt_id(), self._body(self._tr)
                if self._unsure or self._wrote(answer):
                    self._tr.set(self._slot, attempt)
                self._committing = True
                self._commit(answer)
                return self._settled(answer)
            except engine_errors() as error:
                self._note(error, attempt, answer)
                self._tr.on_error(error).wait()

    def _committed_before_all(self) -> tuple[Any] | None:
        """The answer of an earlier attempt that turns out to have committed, in a box."""
        if not self._unsure:
            return None
        found = self._tr.get(self._slot).value
        return (self._unsure[found],) if found in self._unsure else None

    def _commit(self, answer: Any) -> None:
        commit = self._tr.commit()
        try:
            commit.wait()
        except engine_errors():
            raise
        except BaseException:  # an interrupt: the commit goes on without us, and its effect is someone's
            commit.wait()
            self._settled(answer)
            raise

    def _settled(self, answer: Any) -> Any:
        self._keep(answer)
        return answer

    def _note(self, error: Any, attempt: bytes, answer: Any) -> None:
        self._counters.note_error(error.code)
        if error.code in MAYBE_COMMITTED:
            self._unsure[attempt] = answer
        elif error.code == NOT_COMMITTED:
            self._committing = False
            if self._yield_to_conflict and not self._unsure:
                raise LostConflict from None
