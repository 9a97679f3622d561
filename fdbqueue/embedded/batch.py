"""Commits a batch of requests in one LMDB transaction: checks conflicts, applies the writes, logs them.

Each request is still all or nothing. Every reason to refuse one is checked before its first write; a later
failure (no room, a broken disk) fails the whole LMDB transaction. A batch has one version. Its requests have
an order within it, and a request conflicts with the earlier ones.
"""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import lmdb

from fdbqueue.core import limits
from fdbqueue.core.errors import StorageFull
from fdbqueue.core.fdberror import FDBError
from fdbqueue.embedded import commitlog, layout, request
from fdbqueue.embedded.causes import no_room
from fdbqueue.embedded.commitlog import RecentCommits, Written
from fdbqueue.embedded.durability import NotDurable
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.journal import JournalLost, Writes
from fdbqueue.embedded.pool import NO_ROOM, Answer, Pool, SlotRequests
from fdbqueue.embedded.request import CommitRequest, Flush
from fdbqueue.embedded.reserve import makes_room, need_bytes
from fdbqueue.embedded.writes import KeySet, Pending, WriteBuffer, place, resolve, stamp

BATCH_BYTES_MAX = 2 * limits.TRANSACTION_BYTES_MAX
_READER_CHECK_EVERY_VERSIONS = 64
_TRIMS = 8
_TRIMMED_WORTH_A_TRY = 256
_UNKNOWN = 1021

_Done = tuple[int, Written | None, list[Answer]]  # version, writes (None: all refused), answers to others


class Batches:
    """Commits the batches of one store, and keeps the end of the commit log decoded. One thread at a time."""

    def __init__(self, environment: Environment, durability: NotDurable) -> None:
        self._environment = environment
        self._checked = not environment.private
        self._reserve = environment.reserve
        self._recent = RecentCommits()
        self._durability = durability
        self._lack = errno.ENOSPC

    def tidy(self) -> None:
        """Do what may follow a commit, once its callers have their answers. Any thread may call it."""
        self._durability.tidy()

    def let_go(self) -> None:
        """Close the files of the parent in a forked child. Locks of the parent may be held for ever."""
        self._durability.let_go()

    def close(self) -> None:
        self._durability.close()

    def commit(self, own: Sequence[CommitRequest], pool: Pool | None) -> Written | None:
        """Finish `own` and, as the leader of `pool`, the requests of other processes; return the writes.
        Raises: lmdb.Error, StorageFull; then nothing is committed, and no other process has an answer.
        """
        version, written, answers = self._done(own, pool)
        # The commit has happened: no failure after this line may cause another try.
        if pool is not None and answers:
            pool.answer(version, answers)
        if written is not None:
            self._recent.add(written)
        return written

    def _done(self, own: Sequence[CommitRequest], pool: Pool | None) -> _Done:
        is_short = self._reserve is not None and (
            not self._reserve.is_whole if pool is None else pool.is_short
        )
        if self._durability.failure:
            self._durability.make_room()
        if self._durability.failure or (is_short and self._lacks_room(own, pool)):
            return self._sparingly(own, pool, self._durability.failure or errno.ENOSPC)
        try:
            return self._within_map(own, pool, own_only=False)
        except FDBError:
            raise  # no request is the cause
        except Exception as error:
            lack = self._environment.lack_in(error)
            if lack is not None:
                return self._without_room(own, pool, lack)
            # A request of another process may be the cause. Without the requests of others, that process
            # meets the error when it leads, and no other one does.
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
        while not self._reserve.has_room(self._environment.free_bytes(), need):
            if not self._trims(pool):
                return True
        return False

    def _without_room(self, own: Sequence[CommitRequest], pool: Pool | None, lack: int) -> _Done:
        self._durability.make_room()
        # LMDB looks for the oldest snapshot only now and then, so it may have missed some free pages.
        reserve, free_bytes = self._reserve, self._environment.free_bytes
        has_free_pages = reserve is not None and reserve.has_room(free_bytes(), need_bytes(own))
        if self._trims(pool) or has_free_pages:
            with suppress(lmdb.Error, OSError, StorageFull):
                return self._within_map(own, pool, own_only=False)
        # For its own list of free pages LMDB may ask for a new one, though that list is long.
        if reserve is not None and has_free_pages and reserve.is_half_on_disk:
            with suppress(lmdb.Error, OSError, StorageFull), self._reserve_given_up(pool):
                return self._within_map(own, pool, own_only=False)
        return self._sparingly(own, pool, lack)

    def _trims(self, pool: Pool | None) -> bool:
        """Delete the commit log's records that no transaction needs; True if that frees enough to try again.
        After a few records only, each put would cost several commits to use the room of the put before it.
        """
        self._environment.handed_out.release_all()
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
        except (lmdb.Error, OSError):
            pass  # trimming needs room itself
        try:
            with self._reserve_given_up(pool):
                return self._trimmed()
        except (lmdb.Error, OSError):
            return 0

    def _trimmed(self) -> int:
        with self._environment.begin(write=True) as txn:
            return commitlog.trim_before(txn, self._environment.oldest_reader(txn.id() - 1))

    def _sparingly(self, own: Sequence[CommitRequest], pool: Pool | None, lack: int = errno.ENOSPC) -> _Done:
        """Commit the requests that make room, if needed with the reserve; refuse other own requests."""
        self._lack = lack
        or_moves = self._reserve is None or self._reserve.is_half_there(self._environment.free_bytes())

        def attempt() -> _Done:
            return self._within_map(own, pool, own_only=True, sparing=True, or_moves=or_moves)

        for get_room in (self._environment.forget_dead_readers, self._environment.end_snapshots):
            get_room()
            try:
                return attempt()
            except Exception as error:
                if self._environment.lack_in(error) is None:
                    raise
        with self._reserve_given_up(pool):
            self._durability.make_room()
            return attempt()

    @contextmanager
    def _reserve_given_up(self, pool: Pool | None) -> Iterator[None]:
        """Give the reserve up for one transaction; then keep the room that the transaction has left."""
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
                self._environment.grow()
            except JournalLost:
                self._durability.renew()

    def _try(
        self, own: Sequence[CommitRequest], pool: Pool | None, own_only: bool, sparing: bool, or_moves: bool
    ) -> _Done:
        txn = self._environment.begin(write=True)
        entry, flush = None, Flush.NOW
        try:
            if self._checked:
                self._environment.require_in_place()
            if txn.id() % _READER_CHECK_EVERY_VERSIONS == 0:
                self._environment.forget_dead_readers()
            others = self._others(txn, pool, own_only) if pool is not None and pool.is_owed else ()
            version = txn.id()
            requests = [*(one for _, of in others for one in of), *own] if others else own
            if sparing:
                commitlog.trim_before(txn, self._environment.oldest_reader(version - 1))
                requests = [one for one in requests if self._is_allowed(txn, one, or_moves)]
            written, writes = self._apply(txn, requests)
            answers = _answers(others) if others else []
            if written is None:
                txn.abort()
            else:
                now_us = int(self._environment.runtime.now() * 1_000_000)
                asked_in = pool.file if pool is not None else 0
                flush = min(one.flush for one in requests if one.error is None)
                entry = self._durability.record(txn, version, writes)
                commitlog.append(txn, written, now_us, answers, asked_in, entry.end)
                self._durability.write(entry, flush)
                if pool is not None and answers:
                    pool.note_committing(written.version)
                txn.commit()
        except BaseException:
            txn.abort()  # without effect after a commit that failed: it has aborted itself
            if entry is not None:
                self._durability.failed(entry, flush)
            raise
        if entry is not None:
            self._durability.committed(entry, flush)
        return version, written, answers

    def _apply(self, txn: Any, requests: Sequence[CommitRequest]) -> tuple[Written | None, list[Writes]]:
        version = txn.id()
        asked = version - 1
        for one in requests:
            if one.read_version is not None and one.read_version < asked:
                asked = one.read_version
        live = self._environment.oldest_live_version()
        self._recent.catch_up(txn, version - 1, asked)
        self._recent.forget_before(asked if live is None else min(asked, live))
        written = Written(version, KeySet(), KeySet())
        writes: list[Writes] = []
        for one in requests:
            order = len(writes)
            earlier = written.conflicts if order else None
            one.version, one.error = None, self._refusal(txn, one, earlier)
            if one.error is None:
                one.version, one.order = version, order
                writes.append(_apply_one(txn, one.buffer, stamp(version, order), written))
        return (written if writes else None), writes

    def _is_allowed(self, txn: Any, one: CommitRequest, or_moves: bool) -> bool:
        if makes_room(txn, one, or_moves=or_moves):
            return True
        one.version, one.error = None, no_room(self._environment.path, self._lack)
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

    def _others(self, txn: Any, pool: Pool, own_only: bool) -> list[tuple[SlotRequests, list[CommitRequest]]]:
        self._deliver_for_the_dead(txn, pool)
        found, size_bytes = [], 0
        for asked in pool.pending(own_only=own_only):
            size_bytes += len(asked.body)
            if size_bytes > BATCH_BYTES_MAX:
                break  # left to the next leader
            found.append((asked, request.decode(asked.body)))
        return found

    def _deliver_for_the_dead(self, txn: Any, pool: Pool) -> None:
        """Give the answers that a dead leader owed; the commit log holds those of each commit."""
        version = pool.unanswered_version
        if not version:
            return
        answers = commitlog.answers_at(txn, version, pool.file)
        if answers is None:
            pool.give_up(_UNKNOWN)
            return
        pool.answer(version, answers)


def _answers(others: Iterable[tuple[SlotRequests, list[CommitRequest]]]) -> list[Answer]:
    return [Answer(asked.slot, asked.number, [_result(one) for one in of]) for asked, of in others]


def _result(one: CommitRequest) -> int:
    if isinstance(one.error, StorageFull):
        return -NO_ROOM
    return -one.error.code if isinstance(one.error, FDBError) else one.order


def _apply_one(txn: Any, buffer: WriteBuffer, stamp_bytes: bytes, written: Written) -> Writes:
    """Write the buffer of one request: range clears first, since entries inside a cleared range are newer."""
    values: dict[bytes, bytes | None] = {}
    for begin, end in buffer.cleared:
        for key in layout.delete_range(txn, begin, end):
            if len(written.removed) <= limits.KEYS_RUNG_MAX:
                written.removed.add(key)
    for key, entry in buffer.entries.items():
        value = resolve(entry, layout.get(txn, key), stamp_bytes) if isinstance(entry, Pending) else entry
        if value is None:
            layout.delete(txn, key)
        else:
            layout.put(txn, key, value)
        values[key] = value
    written.conflicts.update(buffer.conflicts)
    if buffer.silent.points or buffer.silent.ranges:
        written.silent.update(buffer.silent)
    for body, offset, value in buffer.stamped_keys:
        key = place(body, offset, stamp_bytes)
        layout.put(txn, key, value)
        values[key] = value
        written.conflicts.points.add(key)
    return Writes(list(buffer.cleared), values)
