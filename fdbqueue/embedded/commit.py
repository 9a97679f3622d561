"""Group commit: one LMDB transaction, and one fsync, for the commits that wait in all threads and processes.

In a process, the first thread that commits leads; requests that arrive meanwhile form the next batch. If
another process is committing, the leader hands its batch to the next leader of all processes (processes.py),
or becomes that leader itself.

A batch of requests is one LMDB transaction: it checks conflicts, applies the writes, and logs them. Each
request is still all or nothing. Every reason to refuse one is checked before its first write; a later failure
(no room, a broken disk) fails the whole LMDB transaction. A batch has one version. Its requests have an order
within it, and a request conflicts with the earlier ones.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import inf
from typing import Any

import lmdb

from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed, StorageFull, StorageReplaced
from fdbqueue.core.runtime import Lock
from fdbqueue.core.seam import TIMED_OUT, FDBError, NotDirect
from fdbqueue.embedded import layout, writes
from fdbqueue.embedded.direct import Direct
from fdbqueue.embedded.directory import LockHolder, no_room
from fdbqueue.embedded.durability import NotDurable
from fdbqueue.embedded.environment import Environment, makes_room, need_bytes
from fdbqueue.embedded.journal import JournalLost, Writes
from fdbqueue.embedded.layout import RecentCommits, Written
from fdbqueue.embedded.processes import (
    BODY_BYTES_MAX,
    NO_ROOM,
    REQUESTS_MAX,
    Answer,
    LeaderStands,
    Pool,
    PoolDamaged,
    SlotRequests,
    open_pool,
)
from fdbqueue.embedded.writes import CommitRequest, Flush, KeySet, Pending, WriteBuffer, place, resolve, stamp

BATCH_BYTES_MAX = 2 * limits.TRANSACTION_BYTES_MAX
_READER_CHECK_EVERY_VERSIONS = 64
_TRIMS = 8
_TRIMMED_WORTH_A_TRY = 256
_UNKNOWN = 1021
_OUR_FRAMES = 2  # `_run`, and the caller of the body

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
        self._is_in_lmdb = False  # True once LMDB may have the commit: then nothing may repeat it
        self.runs_for: int | None = None
        """The thread that runs the body of a direct transaction now."""

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
        is_direct = bool(own) and own[0].body is not None
        failure = self._durability.failure
        if is_direct and (is_short or failure):
            return _left_to_an_ordinary_one(own[0])
        if failure:
            self._durability.make_room()
            if self._durability.failure and self._may_use_reserve(own):
                # Behind a removal, the base has no free pages yet: this checkpoint frees them.
                with self._reserve_given_up(pool):
                    self._durability.make_room()
            failure = self._durability.failure
        if failure or (is_short and self._lacks_room(own, pool)):
            return self._sparingly(own, pool, failure or errno.ENOSPC)
        try:
            return self._within_map(own, pool, own_only=False)
        except FDBError:
            raise  # no request is the cause
        except Exception as error:
            lack = self._environment.lack_in(error)
            if is_direct and lack is not None:
                return _left_to_an_ordinary_one(own[0])
            if lack is not None:
                return self._without_room(own, pool, lack)
            # A request of another process may be the cause. Without the requests of others, that process
            # meets the error when it leads, and no other one does.
            if pool is None or not pool.is_owed or self._is_in_lmdb:
                raise
            return self._within_map(own, pool, own_only=True)

    # -- a full disk (environment.py) -----------------------------------------------------------------------

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
        has_free_pages = self._has_free_pages(own)
        if self._trims(pool) or has_free_pages:
            with suppress(lmdb.Error, OSError, StorageFull):
                return self._within_map(own, pool, own_only=False)
        # For its own list of free pages LMDB may ask for a new one, though that list is long.
        if self._may_use_reserve(own):
            with suppress(lmdb.Error, OSError, StorageFull), self._reserve_given_up(pool):
                return self._within_map(own, pool, own_only=False)
        return self._sparingly(own, pool, lack)

    def _has_free_pages(self, own: Sequence[CommitRequest]) -> bool:
        reserve = self._reserve
        return reserve is not None and reserve.has_room(self._environment.free_bytes(), need_bytes(own))

    def _may_use_reserve(self, own: Sequence[CommitRequest]) -> bool:
        return self._has_free_pages(own) and self._reserve is not None and self._reserve.is_half_on_disk

    def _trims(self, pool: Pool | None) -> bool:
        """Delete the commit log's records that no transaction needs; True if that frees enough to try again.
        After a few records only, each put would cost several commits to use the room of the put before it.
        """
        self._environment.handed_out.release()
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
            return layout.trim_before(txn, self._environment.oldest_reader(txn.id() - 1))

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
        txn, self._is_in_lmdb = self._environment.begin(write=True), False
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
                layout.trim_before(txn, self._environment.oldest_reader(version - 1))
                requests = [one for one in requests if self._is_allowed(txn, one, or_moves)]
            written, writes, flush = self._apply(txn, requests)
            answers = _answers(others) if others else []
            if written is None:
                txn.abort()
            else:
                now_us = int(self._environment.runtime.now() * 1_000_000)
                asked_in = pool.file if pool is not None else 0
                entry = self._durability.record(txn, version, writes)
                layout.append(txn, written, now_us, answers, asked_in, entry.end)
                self._durability.write(entry, flush)
                if pool is not None and answers:
                    pool.note_committing(written.version)
                self._is_in_lmdb = True
                txn.commit()
        except BaseException:
            txn.abort()  # without effect after a commit that failed: it has aborted itself
            if entry is not None:
                self._durability.failed(entry, flush)
            raise
        if entry is not None:
            self._durability.committed(entry, flush)
        return version, written, answers

    def _apply(
        self, txn: Any, requests: Sequence[CommitRequest]
    ) -> tuple[Written | None, list[Writes], Flush]:
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
        flush = Flush.NOW
        for one in requests:
            order = len(writes)
            if one.body is not None:
                made = self._run(txn, one, written, order)
            else:
                earlier = written.conflicts if order else None
                one.error = self._refusal(txn, one, earlier)
                made = None
                if one.error is None:
                    made = _apply_one(txn, one.buffer, stamp(version, order), written)
            one.version, one.order = (version, order) if one.error is None else (None, 0)
            if made is not None:
                writes.append(made)
                flush = one.flush if order == 0 else min(flush, one.flush)
        return (written if writes else None), writes, flush

    def _run(self, txn: Any, one: CommitRequest, written: Written, order: int) -> Writes | None:
        """Run the body of a direct transaction, and write for it."""
        assert one.body is not None
        one.error = None
        try:
            self.runs_for = self._environment.runtime.thread_id()
            ran: Direct = one.body(txn, order)
        except lmdb.Error:
            raise  # of the directory, so of all requests
        except (Exception, NotDirect) as error:
            one.error = _without_our_frames(error)
            return None
        finally:
            self.runs_for = None
        # An error from here on ends the LMDB transaction, since some of the writes may be in it.
        one.flush = ran.flush
        return ran.apply(written)

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
            found.append((asked, writes.decode(asked.body)))
        return found

    def _deliver_for_the_dead(self, txn: Any, pool: Pool) -> None:
        """Give the answers that a dead leader owed; the commit log holds those of each commit."""
        version = pool.unanswered_version
        if not version:
            return
        answers = layout.answers_at(txn, version, pool.file)
        if answers is None:
            pool.give_up(_UNKNOWN)
            return
        pool.answer(version, answers)


def _answers(others: Iterable[tuple[SlotRequests, list[CommitRequest]]]) -> list[Answer]:
    return [Answer(asked.slot, asked.number, [_result(one) for one in of]) for asked, of in others]


def _left_to_an_ordinary_one(direct: CommitRequest) -> _Done:
    """What is written when room is short depends on its size, which only an ordinary transaction tells."""
    direct.version, direct.error = None, NotDirect()
    return 0, None, []


def _without_our_frames(error: BaseException) -> BaseException:
    """Return `error` without the frames that hold the LMDB transaction."""
    trace = error.__traceback__
    for _ in range(_OUR_FRAMES):
        trace = trace.tb_next if trace is not None else None
    return error.with_traceback(trace)


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


class Committer:
    """The queue of commit requests of one store in one process."""

    def __init__(
        self, environment: Environment, durability: NotDurable, notify: Callable[[Written], None]
    ) -> None:
        self._environment = environment
        self._durability = durability
        self._notify = notify
        self._lock = environment.system.lock()
        self._waiting: list[CommitRequest] = []
        self._leader: CommitRequest | None = None
        self._batch: list[CommitRequest] = []  # the requests that the leader is committing
        self._decided = False  # True once the outcome of each request of the batch is final
        self._batches = Batches(environment, durability)
        self._pool = self._open_pool()

    def _open_pool(self) -> Pool | None:
        if self._environment.private:
            return None
        try:
            pool = open_pool(self._environment.directory, self._environment.runtime, self._environment.system)
        except OSError:  # without room or byte locks, LMDB's writer lock still orders the processes
            return None
        if self._environment.reserve is not None and not self._environment.reserve.is_whole:
            pool.note_short(True)
        return pool

    def commit_all(self, requests: Sequence[CommitRequest]) -> None:
        """Return when all are finished: `version` is set, or `error`; at the deadline, `late` is. Those that
        no other thread commits share a batch.
        """
        try:
            for request in requests:
                self._join(request)
            for request in requests:
                self._finish(request)
        except BaseException:
            # An interrupt may come between any two steps. No other thread may wait for this one afterwards.
            # If another leader's batch holds a request already, its result stays unknown.
            for request in requests:
                self._leave(request)
            raise

    def _finish(self, request: CommitRequest) -> None:
        try:
            if request.turn is not None:
                self._await_turn(request, request.turn)
            if request.version is None and request.error is None:
                self._lead(request.deadline_s)
        except LeaderStands:
            if not self._is_passed_on(request):
                self._leave(request)
            request.late = self.late()

    def _is_passed_on(self, request: CommitRequest) -> bool:
        """Let another thread of the batch, if any waits, lead in place of `request`."""
        with self._lock:
            request.is_left = True
            heir = next((one for one in self._batch if not one.is_left), None)
            if self._leader is not request or heir is None:
                return False
            self._leader = heir
            heir.wake()
            return True

    def _await_turn(self, request: CommitRequest, turn: Lock) -> None:
        """Return once it is finished, or leads. Raises: LeaderStands at its deadline: unknown, if batched."""
        if request.deadline_s == inf:
            turn.acquire()
            return
        left_s = request.deadline_s - self._environment.runtime.monotonic()
        if turn.acquire(timeout=max(0.0, left_s)):
            return
        with self._lock:
            if not request.finished and self._leader is not request:
                request.is_left = True
                raise LeaderStands

    def standing_leader(self, for_s: float = 0.0) -> LockHolder | None:
        """Return the other process that leads for `for_s` without an end, if any."""
        return self._pool.standing_leader(for_s) if self._pool is not None else None

    def late(self) -> FDBError:
        """Return the error of a commit that is not finished at its deadline."""
        holder = self.standing_leader()
        told = "another commit of this process" if holder is None else f"{holder}: {holder.cure}"
        return FDBError(TIMED_OUT, f"the commits of {self._environment.path} wait for {told}")

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        self._durability.close()

    def let_go(self) -> None:
        """Close the files of the parent in a forked child. Locks of the parent may be held for ever."""
        self._durability.let_go()

    def _join(self, request: CommitRequest) -> None:
        with self._lock:
            if self._leader is None:
                self._leader = request
            else:
                self._require_no_body()
                request.turn = self._environment.system.lock()
                request.turn.acquire()
            self._waiting.append(request)

    def _require_no_body(self) -> None:
        """Raise NotDirect for a commit in the body of a direct transaction: it would wait for itself."""
        if self._batches.runs_for == self._environment.runtime.thread_id():
            raise NotDirect

    def commit_directly(self, request: CommitRequest) -> None:
        """Commit a direct transaction, as the leader. Its body runs in this thread alone: in another one it
        would meet locks, context and interrupts of that one. Raises: NotDirect if there is another leader.
        """
        if self._leader is not None:
            raise NotDirect
        try:
            with self._lock:
                if self._leader is not None:
                    raise NotDirect
                self._leader, self._batch, self._decided = request, [request], False
            self._lead(inf)
        except BaseException:
            self._leave(request)
            raise

    def _lead(self, deadline_s: float) -> None:
        if not self._batch:  # else its leader has passed it on
            self._take_batch()
        written = self._commit_batch(self._batch, deadline_s)
        with self._lock:
            self._decided = True
            self._hand_over()
        if written is not None:
            self._notify(written)  # late: a callback of a watch may take long, or commit
        self._durability.tidy()  # its callers have their answers

    def _leave(self, request: CommitRequest) -> None:
        try:
            if self._leader is request and self._pool is not None:
                self._pool.abandon(request.deadline_s)
        finally:
            with self._lock:
                request.is_left = True
                if request in self._waiting:
                    self._waiting.remove(request)
                if self._leader is request:
                    if not self._decided:
                        for member in self._batch:
                            member.version, member.error = None, FDBError(1021)
                    self._hand_over()
                elif self._leader is not None:
                    self._leader.wake()  # the interrupt may have come between naming and waking it

    def _take_batch(self) -> None:
        with self._lock:
            count, size_bytes = 0, 0
            for request in self._waiting:
                size_bytes += request.size_bytes
                if count and size_bytes > BATCH_BYTES_MAX:
                    break
                count += 1
            self._decided = False
            self._batch, self._waiting = self._waiting[:count], self._waiting[count:]

    def _hand_over(self) -> None:
        """Wake the threads of finished requests, and the next leader. For holders of the lock; idempotent."""
        for request in self._batch:
            if request.turn is not None:
                request.wake()
        self._batch = []
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.wake()

    # -- one batch --------------------------------------------------------------------------------------

    def _commit_batch(self, batch: Sequence[CommitRequest], deadline_s: float = inf) -> Written | None:
        try:
            if self._pool is None:
                return self._batches.commit(batch, None)
            try:
                if not self._pool.is_asking and self._pool.try_lead():
                    return self._commit_for_all(self._pool, batch)
                if batch[0].body is not None:
                    batch[0].error = NotDirect()  # no other process can run it
                    return None
                return self._ask_for(self._pool, batch, deadline_s)
            except PoolDamaged:  # raised before any request was asked or committed
                # If the file cannot be replaced, LMDB's lock of writers does alone.
                if self._pool is not None:
                    self._pool.close()
                self._pool = self._open_pool()
                return self._commit_batch(batch, deadline_s)
        except LeaderStands:
            raise
        except Exception as error:
            for request in batch:
                request.version, request.error = None, self._failure(error)
            return None

    def _failure(self, error: Exception) -> Exception:
        """Return an exception of its own for one request: a shared one collects the frames of each raise. The
        exception keeps no frames of `error`, which hold the LMDB transaction. A transaction that LMDB has
        declared invalid ends with its last reference, and the closing of the environment waits for that.
        """
        if isinstance(error, lmdb.Error | OSError):
            return self._environment.storage_error(error)
        if isinstance(error, StorageFull):
            return no_room(self._environment.path, error.code)
        if isinstance(error, StorageReplaced):
            return type(error)(path=error.path, file=error.file)
        if isinstance(error, DatabaseClosed):
            return DatabaseClosed()
        return (
            FDBError(error.code, error.reason) if isinstance(error, FDBError) else error.with_traceback(None)
        )

    def _commit_for_all(self, pool: Pool, batch: Sequence[CommitRequest]) -> Written | None:
        """Commit `batch` and the requests of other processes, as the leader of all processes."""
        try:
            pool.drop()  # an abandoned request has an unknown result already; a late commit would surprise
            return self._batches.commit(batch, pool)
        finally:
            pool.resign()

    def _ask_for(self, pool: Pool, batch: Sequence[CommitRequest], deadline_s: float) -> Written | None:
        """Have the next leader of all processes commit `batch`, or become it. Raises: LeaderStands."""
        if not pool.is_asking and not self._asks(pool, batch):
            while not pool.try_lead():
                pool.wait(deadline_s)
            pool.take_slot()  # so that the next batch can be asked for
            return self._commit_for_all(pool, batch)
        try:
            return self._answer(pool, batch, deadline_s)
        except (DatabaseClosed, OSError):  # the answer is lost, and another leader may still commit the batch
            raise FDBError(_UNKNOWN) from None

    def _answer(self, pool: Pool, batch: Sequence[CommitRequest], deadline_s: float) -> Written | None:
        """Return once `batch`, which was asked for, is finished. Raises: LeaderStands at the deadline."""
        while not pool.try_lead():
            pool.wait(deadline_s)
            if self._is_answered(pool, batch):
                return None
        try:
            if self._is_answered(pool, batch):  # by the leader before this one
                return None
            written = self._batches.commit((), pool)
            self._is_answered(pool, batch)
            return written
        finally:
            pool.drop()
            pool.resign()

    def _asks(self, pool: Pool, batch: Sequence[CommitRequest]) -> bool:
        self._environment.require_in_place()  # the next leader may have opened other files of the same names
        size_bytes = sum(request.size_bytes for request in batch)  # at least the size of the encoded batch
        if not pool.may_ask or len(batch) > REQUESTS_MAX or size_bytes > BODY_BYTES_MAX:
            return False
        return pool.ask(writes.encode(batch))

    def _is_answered(self, pool: Pool, batch: Sequence[CommitRequest]) -> bool:
        found = pool.answered(len(batch))
        if found is None:
            return False
        version, results = found
        for request, result in zip(batch, results, strict=True):
            if result < 0:
                is_full = result == -NO_ROOM
                request.error = no_room(self._environment.path) if is_full else FDBError(-result)
            else:
                request.version, request.order = version, result
        return True
