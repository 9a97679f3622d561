"""Receipts: a call given a database has its effect once, even when the result of a commit is unknown (I3).

Each attempt also sets one key, blindly, to its own id. The key is a *slot* of the process, one for each call
in flight. After commit_unknown_result (1021) or cluster_version_changed (1039) the retry first reads the
slot, serialisably. If the id of an earlier attempt is there, that attempt committed, and its answer is
returned. If not, that attempt can only commit by aborting the retry. An item itself is no receipt: a consumer
may have removed it in between. A lease is one: without it, the take has no effect any more.

Writes of several callers share one transaction, which happens once. The callers hand in items. The leader
(calls.py) writes the items of all callers that it claims.
"""

import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, count
from operator import attrgetter
from typing import Any, Protocol, TypeVar

from msgspec import Struct, field

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import writable
from fdbqueue.core.calls import Call, Combiner
from fdbqueue.core.database import Database, as_database, is_transaction, run, unknown_result
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.observing import MAYBE_COMMITTED, NOT_COMMITTED, Counters
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import (
    DatabaseOrTransaction,
    Future,
    NotDirect,
    ReadTransaction,
    Transaction,
    engine_errors,
)

T = TypeVar("T")

ATTEMPT = struct.Struct(">QQ")  # microseconds since the epoch, number of the attempt in its process


class LostConflict(Exception):
    """The attempt conflicted, and its caller asked for this error in place of a retry."""


class Receipts:
    """The slots of one process on one database."""

    def __init__(self, database: Database, keys: RootKeys) -> None:
        self._database = database
        self._keys = keys
        self._process = database.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        # list.pop, list.append and next() are atomic: no lock on the way of every call.
        self.free: list[bytes] = []
        """The slots that no call uses."""
        self._slots = count(1)
        self.attempts = count(1)
        """The numbers of the attempts. With its time, each makes an id: so a sweep knows an old receipt."""

    def new_slot(self) -> bytes:
        return self._keys.receipt(self._process, next(self._slots))

    def close(self) -> None:
        """Clear the free slots of this process, and some slots of dead processes.

        Best effort: the cluster may be gone or the disk full, and the next steps of closing must still run.
        The slot of a call in flight stays: without it, a retry after an unknown result would repeat the
        effect. A later sweep clears it.
        """
        free, self.free = self.free, []
        if next(self.attempts) > 1:
            place = self._keys.receipt(int(self._database.runtime.random() * 2**64).to_bytes(8, "big"), 0)
            with suppress(*engine_errors(), FdbQueueError):
                run(self._database, lambda tr: self._clear(tr, free, place), timeout_s=limits.CLOSE_TIMEOUT_S)

    def is_needed(self) -> bool:
        """True: only this object knows the slots of the calls in flight."""
        return True

    def _clear(self, tr: Transaction, free: Sequence[bytes], place: bytes) -> None:
        for slot in free[: limits.BATCH_ITEMS_MAX]:
            tr.clear(slot)
        sweep(tr, self._keys, self._database.runtime.now_us(), place)


def receipts_of(database: Database, keys: RootKeys) -> Receipts:
    return database.service(("receipts", keys.prefix), lambda owner: Receipts(owner, keys))


def sweep(tr: Transaction, keys: RootKeys, now_us: int, place: bytes) -> int:
    """Clear slots that have not been written for a day. Return their number.

    `place`: the key at which it begins; behind the last slot it goes on with the first one. Each sweep has
    another place, or slots behind many of live processes would never be seen.
    Reads: `limits.RECEIPTS_SWEPT_MAX` slots by snapshot, and serialisably each slot that it clears.
    Conflicts: a call that uses one of these slots at the same moment.
    """
    _, stale = _ask_stale(tr.snapshot, keys, now_us, place)()
    for key in stale:
        tr.add_read_conflict_key(key)
        tr.clear(key)
    return len(stale)


def _ask_stale(
    tr: ReadTransaction, keys: RootKeys, now_us: int, place: bytes
) -> Callable[[], tuple[list[bytes], list[bytes]]]:
    """Ask for the first slots from `place` on. The reply has the keys of receipts, and of stale ones."""
    ranges = ((place, keys.receipts.stop), (keys.receipts.start, place))
    asked = [tr.get_range(start, stop, limit=limits.RECEIPTS_SWEPT_MAX) for start, stop in ranges]

    def stale() -> tuple[list[bytes], list[bytes]]:
        seen = [slot for rows in asked for slot in rows.to_list()][: limits.RECEIPTS_SWEPT_MAX]
        # Another program may use this root: only receipts are cleared.
        ours = [slot for slot in seen if keys.is_receipt(slot.key) and len(slot.value) == ATTEMPT.size]
        found = [bytes(slot.key) for slot in ours if is_stale(slot.value, now_us)]
        return [bytes(slot.key) for slot in ours], found

    return stale


_PROCESSES = 2**64


def ask_stale_number(tr: ReadTransaction, keys: RootKeys, now_us: int, random: bytes) -> Callable[[], int]:
    """Ask for the number of receipts that sweeps have to clear: above limits.RECEIPTS_SWEPT_MAX slots, an
    estimate. Names of processes are random, so a part of the slots tells how many lie in all.
    """
    asked = _ask_stale(tr, keys, now_us, keys.receipt(random, 0))

    def number() -> int:
        seen, stale = asked()
        if len(seen) < limits.RECEIPTS_SWEPT_MAX:
            return len(stale)
        process = keys.shape_of(seen[-1])[1][0]
        span = (_number(process) - _number(random)) % _PROCESSES
        return len(stale) * _PROCESSES // max(1, span)

    return number


def _number(process: bytes) -> int:
    return int.from_bytes(process[:8].ljust(8, b"\x00"), "big")


def is_stale(receipt: bytes, now_us: int) -> bool:
    written_us, _ = ATTEMPT.unpack(receipt)
    return bool(written_us < now_us - limits.RECEIPT_STALE_S * 1_000_000)


def run_once(
    database: Database,
    keys: RootKeys,
    body: Callable[[Transaction], T],
    *,
    wrote: Callable[[T], bool] | None = None,
    may_be_lost: Callable[[T], bool] | None = None,
    keep: Callable[[T], None] | None = None,
    unsure: Callable[[], None] | None = None,
    doubt: Callable[[Exception], None] | None = None,
    evidence: Callable[[Transaction, T], bool] | None = None,
    yield_to_conflict: bool = False,
    short: "Short | None" = None,
) -> T:
    """Run `body` in transactions of `database` until one commits; its effect happens once.

    Returns the answer of the attempt that committed. The body may run many times.

    `wrote(answer)`: true if the attempt wrote something; if not, it needs no receipt. `evidence(tr, answer)`:
    true if the keys that the attempt with this answer writes show its effect. It has to read them
    serialisably, and stands for the receipt of an attempt that sets none. `may_be_lost(answer)`:
    true if a power cut may undo the attempt; without this function, it may not. `keep(answer)`: called
    as soon as the commit is known, even if this thread is interrupted while it waits for the commit.
    `unsure()`: called after an attempt with an unknown result; `keep` may yet get the answer of that one.
    `doubt(error)`: called if an interrupt leaves the result of an attempt unknown, with the error 1021 for
    callers that share it: for them, a repetition might be a second effect.
    `short`: of a body that takes less time than a commit, commits nothing, and runs no code of the user. Then
    the embedded engine may run it in a direct transaction, for which all other commits wait.
    Raises: the errors of the body; the engine's FDBError that is not retryable; with `yield_to_conflict`,
    LostConflict for a conflict that certainly changed nothing.
    """
    receipts: Receipts = database.known(("receipts", keys.prefix)) or receipts_of(database, keys)
    try:
        slot = receipts.free.pop()
    except IndexError:
        slot = receipts.new_slot()
    if database.manner is not None:
        body = database.manner.once(body, wrote)
    now, counters = database.runtime.now, database.counters
    asked = (wrote, may_be_lost, keep, unsure, evidence, yield_to_conflict)
    call = _Call(database, now, counters, receipts, slot, body, *asked)
    try:
        answer: T = call.run() if short is None else call.run_short(short)
    except BaseException as error:
        # An attempt may still be under way, and would overwrite the receipt of the next call in this slot. So
        # the slot is not used again.
        if not call.is_in_doubt:
            receipts.free.append(slot)
        elif doubt is not None and not isinstance(error, Exception):
            doubt(unknown_result(database))
        raise
    receipts.free.append(slot)
    return answer


def run_in(
    target: DatabaseOrTransaction,
    keys: RootKeys,
    body: Callable[[Transaction], T],
    *,
    wrote: Callable[[T], bool] | None = None,
    may_be_lost: Callable[[T], bool] | None = None,
) -> T:
    """Run `body` in a transaction of the caller; given a database, as `run_once`.

    Raises: NotADatabase for a snapshot.
    """
    if is_transaction(target):
        return body(writable(target))
    return run_once(as_database(target), keys, body, wrote=wrote, may_be_lost=may_be_lost)


class Short(Struct, eq=False):
    """Whether the short calls of one kind try a direct transaction: not for a while after a failure."""

    resting: int = 0
    """The number of calls that do not try."""


class _Call(Struct, eq=False):
    """One call in flight: its slot, its last attempt, and those with an unknown result."""

    _database: Database
    _now: Callable[[], float]
    _counters: Counters
    _receipts: Receipts
    _slot: bytes
    _body: Callable[[Transaction], Any]
    _wrote: Callable[[Any], bool] | None
    _may_be_lost: Callable[[Any], bool] | None
    _keep: Callable[[Any], None] | None
    _tell_unsure: Callable[[], None] | None
    _evidence: Callable[[Transaction, Any], bool] | None
    _yield_to_conflict: bool
    _unsure: dict[bytes, Any] = field(default_factory=dict)
    _committing: bool = False
    _number: bytes = b""
    _answer: Any = None

    @property
    def is_in_doubt(self) -> bool:
        """True if the result of an attempt is unknown: it may have committed, or may still commit."""
        return self._committing or bool(self._unsure)

    def run_short(self, short: Short) -> Any:
        """Run the first attempt in a direct transaction, if it may: it meets no conflict, so is the last."""
        run_directly, failure = getattr(self._database.engine, "run_directly", None), None
        if short.resting or run_directly is None or self._database.manner is not None:
            short.resting = max(0, short.resting - 1)
            return self.run()
        try:
            run_directly(self._attempt)
        except NotDirect:
            if self._number:  # the body has begun: it will hardly do better next time
                short.resting = limits.DIRECT_PAUSE_CALLS
        except engine_errors() as error:
            self._note(error)
            self._require_no_loss(error)
            failure = error
        else:
            return self._committed()
        return self.run(failure)

    def run(self, failure: Any = None) -> Any:
        """Run attempts until one has committed. `failure`: the error of one before."""
        tr, manner = self._database.create_transaction(), self._database.manner
        attempts = None if manner is None else manner.attempts(self._database)
        if failure is not None:
            tr.on_error(failure).wait()
        while True:
            try:
                if attempts is not None:
                    attempts.begin(tr)
                known = self._committed_before_all(tr) if self._unsure else None
                if known is not None:
                    return self._kept(known[0])
                self._attempt(tr)
                commit = tr.commit()
                try:
                    commit.wait()
                except engine_errors():
                    raise
                except BaseException:
                    self._interrupted(commit)
                    raise
                return self._committed()
            except engine_errors() as error:
                self._note(error)
                self._require_no_loss(error)
                tr.on_error(error).wait()

    def _require_no_loss(self, error: Any) -> None:
        """Raise LostConflict, if the caller asked for it."""
        if error.code == NOT_COMMITTED and self._yield_to_conflict and not self._unsure:
            raise LostConflict from None

    def _attempt(self, tr: Transaction) -> None:
        """All of an attempt but its commit."""
        self._committing = False
        self._number = ATTEMPT.pack(round(self._now() * 1_000_000), next(self._receipts.attempts))
        self._answer = answer = self._body(tr)
        if self._unsure or self._wrote is None or self._wrote(answer):
            tr.set(self._slot, self._number)
        if self._may_be_lost is not None and self._may_be_lost(answer):
            tr.options.set_durability_risky()  # as binding.may_be_lost, with fewer calls
        self._committing = True

    def _committed(self) -> Any:
        self._counters.commits += 1
        if observing.observers:
            observing.tell_committed()
        if self._keep is not None:  # as `_kept`, with one call less
            self._keep(self._answer)
        return self._answer

    def _committed_before_all(self, tr: Transaction) -> tuple[Any] | None:
        """The answer of the earlier attempt that has committed, in a tuple; None if no attempt has."""
        found = tr.get(self._slot).value
        if found in self._unsure:
            return (self._unsure[found],)
        for answer in self._unsure.values():
            if self._evidence is not None and self._evidence(tr, answer):
                return (answer,)
        return None

    def _interrupted(self, commit: Future) -> None:
        """The commit goes on without this thread, and `keep` must hear of it."""
        try:
            commit.wait()
        except engine_errors() as error:
            self._note(error)
        else:
            self._kept(self._answer)

    def _kept(self, answer: Any) -> Any:
        if self._keep is not None:
            self._keep(answer)
        return answer

    def _note(self, error: Any) -> None:
        self._counters.note_error(error.code)
        if error.code in MAYBE_COMMITTED and self._committing:  # a read may end so, too
            self._unsure[self._number] = self._answer
            if self._tell_unsure is not None:
                self._tell_unsure()
        elif error.code == NOT_COMMITTED:
            self._committing = False


_items = attrgetter("payload")


class Write(Protocol):
    """Writes items in a transaction. Returns one answer for each item, in order."""

    def __call__(self, tr: Transaction, items: list[Any], random: bytes) -> Sequence[Any]:
        """`random` has limits.RANDOM_SUFFIX_BYTES bytes; it is made once, and not again for a retry."""


def writes(database: Database, root: RootKeys, write: Write, *, is_plain: bool) -> Combiner:
    """The writes of one kind, with equal options, of one process on one queue.

    The payload of a call is a sequence of items, which come into one transaction. Its answer is theirs.
    `is_plain`: no code of the user decodes what is there already.
    """
    short = Short() if is_plain else None
    return Combiner(database.runtime, partial(write_claimed, database, root, write, short=short))


def write_claimed(
    database: Database,
    root: RootKeys,
    write: Write,
    combiner: Combiner,
    _: Call,
    *,
    count_max: int = limits.BATCH_ITEMS_MAX,
    wrote: Callable[[Any], bool] | None = None,
    yield_to_conflict: bool = False,
    short: Short | None = None,
) -> None:
    """Write the items of claimed calls in one transaction, and deal out the answers. As run_once."""
    calls = combiner.claim(count_max, limits.BATCH_BYTES_MAX)
    items = list(chain.from_iterable(map(_items, calls)))
    random = database.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
    run_once(
        database,
        root,
        partial(write, items=items, random=random),
        wrote=wrote,
        keep=partial(combiner.deal, to_all=True),
        doubt=combiner.fail,
        yield_to_conflict=yield_to_conflict,
        short=short if len(items) <= limits.DIRECT_ITEMS_MAX else None,
    )
