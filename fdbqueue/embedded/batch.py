"""One LMDB transaction for the commits of many: check each for conflicts, apply it, log what was written.

Each is still all or nothing on its own: what can refuse a transaction is checked before its first write,
and what can fail afterwards (no room, a broken disk) fails the whole LMDB transaction. A batch has one
version; its transactions are ordered within it, and see each other as conflicts.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import lmdb

from fdbqueue.embedded import commitlog, layout, request
from fdbqueue.embedded.commitlog import RecentCommits, Written
from fdbqueue.embedded.conflicts import KeySet
from fdbqueue.embedded.pool import NO_ROOM, Answer, Asked, Pool
from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.reserve import makes_room, need_bytes
from fdbqueue.embedded.versionstamp import place, stamp
from fdbqueue.embedded.writes import Pending, WriteBuffer, resolve
from fdbqueue.errors import StorageFull
from fdbqueue.fdberror import FDBError
from fdbqueue.limits import TRANSACTION_BYTES_MAX

if TYPE_CHECKING:
    from fdbqueue.embedded.store import Store

BATCH_BYTES_MAX = 2 * TRANSACTION_BYTES_MAX
_READER_CHECK_EVERY_VERSIONS = 64
_REMOVED_NOTED_MAX = 1_001
_TRIMS = 8
_TRIMMED_WORTH_A_TRY = 256
_UNKNOWN = 1021

_Done = tuple[int, Written | None, list[Answer]]  # version, what was written if anything, what to tell others


class Batches:
    """Commits batches of one store, with what this process remembers of the log; for one thread at a time."""

    def __init__(self, store: "Store") -> None:
        self._store = store
        self._checked = not store.private
        self._reserve = store.reserve
        self._recent = RecentCommits()

    def commit(self, own: Sequence[CommitRequest], pool: Pool | None) -> Written | None:
        """Finish `own` and, as the leader of `pool`, what other processes ask. What was written, if anything.

        Raises lmdb.Error, StorageFull, and then nothing was committed and nobody was told anything.
        """
        version, written, answers = self._done(own, pool)
        # From here on it has happened: nothing that fails now may have it tried again.
        if pool is not None and answers:
            pool.answer(version, answers)
        if written is not None:
            self._recent.add(written)
        return written

    def _done(self, own: Sequence[CommitRequest], pool: Pool | None) -> _Done:
        is_short = self._reserve is not None and (
            not self._reserve.is_whole if pool is None else pool.is_short
        )
        if is_short and self._lacks_room(own, pool):
            return self._sparingly(own, pool)
        try:
            return self._within_map(own, pool, own_only=False)
        except Exception as error:
            if self._store.is_full(error):
                return self._without_room(own, pool)
            # It may be what another process asks for that cannot be done: that one shall hear of it, once it
            # leads, and nobody else.
            if pool is None or not pool.is_owed:
                raise
            return self._within_map(own, pool, own_only=True)

    # -- a full disk (reserve.py) -----------------------------------------------------------------------

    def _lacks_room(self, own: Sequence[CommitRequest], pool: Pool | None) -> bool:
        assert self._reserve is not None
        if self._reserve.make():
            if pool is not None:
                pool.note_short(False)
            return False
        need = need_bytes(own)
        while not self._reserve.has_room(self._store, need):
            if not self._trims(pool):
                return True
        return False

    def _without_room(self, own: Sequence[CommitRequest], pool: Pool | None) -> _Done:
        # LMDB looks for the oldest snapshot now and then: it may not know yet of all pages that are free.
        has_free_pages = self._reserve is not None and self._reserve.has_room(self._store, need_bytes(own))
        if self._trims(pool) or has_free_pages:
            with suppress(lmdb.Error, StorageFull):
                return self._within_map(own, pool, own_only=False)
        return self._sparingly(own, pool)

    def _trims(self, pool: Pool | None) -> bool:
        """Whether the commit log had many records that no transaction needs; they are free pages now.

        With few, each put would be made, at the cost of several commits, with the room of the one before.
        """
        self._store.handed_out.release_all()
        found = 0
        for _ in range(_TRIMS):  # LMDB uses freed pages again from the transaction after the next on
            count = self._trim_once(pool)
            found += count
            if not count:
                break
        return found >= _TRIMMED_WORTH_A_TRY

    def _trim_once(self, pool: Pool | None) -> int:
        try:
            return self._trimmed()
        except lmdb.Error:
            pass  # it needs room itself
        try:
            with self._reserve_given_up(pool):
                return self._trimmed()
        except lmdb.Error:
            return 0

    def _trimmed(self) -> int:
        with self._store.begin(write=True) as txn:
            return commitlog.trim_before(txn, self._store.oldest_reader(txn.id() - 1))

    def _sparingly(self, own: Sequence[CommitRequest], pool: Pool | None) -> _Done:
        """Commit what makes room, with the reserve if need be; refuse all else of this process's own."""
        or_moves = self._reserve is None or self._reserve.is_half_there(self._store)

        def attempt() -> _Done:
            return self._within_map(own, pool, own_only=True, sparing=True, or_moves=or_moves)

        for get_room in (self._store.forget_dead_readers, self._store.end_snapshots):
            get_room()
            try:
                return attempt()
            except Exception as error:
                if not self._store.is_full(error):
                    raise
        with self._reserve_given_up(pool):
            return attempt()

    @contextmanager
    def _reserve_given_up(self, pool: Pool | None) -> Iterator[None]:
        """For one transaction: what it leaves of the room is kept again."""
        if self._reserve is None:
            yield
            return
        self._reserve.give_up()
        try:
            yield
        finally:
            is_whole = self._reserve.make()
            if pool is not None:
                pool.note_short(not is_whole)

    def _within_map(
        self,
        own: Sequence[CommitRequest],
        pool: Pool | None,
        *,
        own_only: bool,
        sparing: bool = False,
        or_moves: bool = False,
    ) -> _Done:
        while True:
            try:
                return self._try(own, pool, own_only, sparing, or_moves)
            except lmdb.MapFullError:
                self._store.grow()

    def _try(
        self, own: Sequence[CommitRequest], pool: Pool | None, own_only: bool, sparing: bool, or_moves: bool
    ) -> _Done:
        txn = self._store.begin(write=True)
        try:
            if self._checked:
                self._store.require_in_place()
            if txn.id() % _READER_CHECK_EVERY_VERSIONS == 0:
                self._store.forget_dead_readers()
            others = self._others(txn, pool, own_only) if pool is not None and pool.is_owed else ()
            version = txn.id()
            requests = [*(one for _, of in others for one in of), *own] if others else own
            if sparing:
                commitlog.trim_before(txn, self._store.oldest_reader(version - 1))
                requests = [one for one in requests if self._is_allowed(txn, one, or_moves)]
            written = self._apply(txn, requests)
            answers = _answers(others) if others else []
            if written is None:
                txn.abort()
            else:
                now_us = int(self._store.runtime.now() * 1_000_000)
                commitlog.append(txn, written, now_us, answers, pool.file if pool is not None else 0)
                if pool is not None and answers:
                    pool.note_committing(written.version)
                txn.commit()
        except BaseException:
            txn.abort()  # without effect after a commit that failed: it has aborted itself
            raise
        return version, written, answers

    def _apply(self, txn: Any, requests: Sequence[CommitRequest]) -> Written | None:
        version = txn.id()
        asked = version - 1
        for one in requests:
            if one.read_version is not None and one.read_version < asked:
                asked = one.read_version
        live = self._store.oldest_live_version()
        self._recent.catch_up(txn, version - 1, asked)
        self._recent.forget_before(asked if live is None else min(asked, live))
        written = Written(version, KeySet(), KeySet())
        accepted = 0
        for one in requests:
            earlier = written.conflicts if accepted else None
            one.version, one.error = None, self._refusal(txn, one, earlier)
            if one.error is None:
                one.version, one.order = version, accepted
                _apply_one(txn, one.buffer, stamp(version, accepted), written)
                accepted += 1
        return written if accepted else None

    def _is_allowed(self, txn: Any, one: CommitRequest, or_moves: bool) -> bool:
        if makes_room(txn, one, or_moves=or_moves):
            return True
        one.version, one.error = None, StorageFull(path=self._store.path)
        return False

    def _refusal(self, txn: Any, one: CommitRequest, earlier: KeySet | None) -> FDBError | None:
        if one.read_version is None or not one.reads:
            return None
        try:
            if self._recent.conflict(txn, one.reads, one.read_version):
                return FDBError(1020)
        except FDBError as error:
            return error
        return FDBError(1020) if earlier is not None and one.reads.meets(earlier) else None

    def _others(self, txn: Any, pool: Pool, own_only: bool) -> list[tuple[Asked, list[CommitRequest]]]:
        """What other processes ask for, as far as it is not too much for one batch."""
        self._deliver_for_the_dead(txn, pool)
        found, size_bytes = [], 0
        for asked in pool.pending(own_only=own_only):
            size_bytes += len(asked.body)
            if size_bytes > BATCH_BYTES_MAX:
                break  # the next leader's
            found.append((asked, request.decode(asked.body)))
        return found

    def _deliver_for_the_dead(self, txn: Any, pool: Pool) -> None:
        """Give the answers that a leader owed when it died: what it committed is in the log."""
        version = pool.unanswered_version
        if not version:
            return
        answers = commitlog.answers_at(txn, version, pool.file)
        if answers is None:
            pool.give_up(_UNKNOWN)
            return
        if answers:
            self._store.flush()  # it may have died between writing and flushing
        pool.answer(version, answers)


def _answers(others: Iterable[tuple[Asked, list[CommitRequest]]]) -> list[Answer]:
    return [Answer(asked.seat, asked.number, [_result(one) for one in of]) for asked, of in others]


def _result(one: CommitRequest) -> int:
    if isinstance(one.error, StorageFull):
        return -NO_ROOM
    return -one.error.code if isinstance(one.error, FDBError) else one.order


def _apply_one(txn: Any, buffer: WriteBuffer, stamp_bytes: bytes, written: Written) -> None:
    """Write one transaction's buffer: clears first, since what is set inside them is newer."""
    for begin, end in buffer.cleared:
        for key in layout.delete_range(txn, begin, end):
            if len(written.removed) < _REMOVED_NOTED_MAX:
                written.removed.add(key)
    for key, entry in buffer.entries.items():
        value = resolve(entry, layout.get(txn, key), stamp_bytes) if isinstance(entry, Pending) else entry
        if value is None:
            layout.delete(txn, key)
        else:
            layout.put(txn, key, value)
    written.conflicts.update(buffer.conflicts)
    if buffer.silent.points or buffer.silent.ranges:
        written.silent.update(buffer.silent)
    for body, offset, value in buffer.stamped_keys:
        key = place(body, offset, stamp_bytes)
        layout.put(txn, key, value)
        written.conflicts.points.add(key)
