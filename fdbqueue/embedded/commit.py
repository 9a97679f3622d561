"""Group commit: one LMDB transaction, and one fsync, for the commits that wait in all threads and processes.

In a process, the first thread that commits leads; requests that arrive meanwhile form the next batch. If
another process is committing, the leader hands its batch to the next leader of all processes (pool.py), or
becomes that leader itself. batch.py is the LMDB transaction.
"""

from collections.abc import Callable, Sequence
from math import inf

import lmdb

from fdbqueue.core.errors import DatabaseClosed, StorageFull, StorageReplaced
from fdbqueue.core.fdberror import TIMED_OUT, FDBError
from fdbqueue.core.runtime import Lock
from fdbqueue.embedded import request as requests
from fdbqueue.embedded.batch import BATCH_BYTES_MAX, Batches
from fdbqueue.embedded.causes import no_room
from fdbqueue.embedded.commitlog import Written
from fdbqueue.embedded.durability import NotDurable
from fdbqueue.embedded.environment import Environment
from fdbqueue.embedded.pool import (
    BODY_BYTES_MAX,
    NO_ROOM,
    REQUESTS_MAX,
    LeaderStands,
    Pool,
    PoolDamaged,
    open_pool,
)
from fdbqueue.embedded.request import CommitRequest
from fdbqueue.embedded.system import LockHolder

_UNKNOWN = 1021


class Committer:
    """The queue of commit requests of one store in one process."""

    def __init__(
        self, environment: Environment, durability: NotDurable, notify: Callable[[Written], None]
    ) -> None:
        self._environment = environment
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

    def commit(self, request: CommitRequest) -> None:
        """Return when `request` is finished: `version` is set, or `error`. At its deadline, `late` is set."""
        self.commit_all([request])

    def commit_all(self, requests: Sequence[CommitRequest]) -> None:
        """Return when all are finished, or late. Those that no other thread commits share a batch."""
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
            if not request.finished:
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
        self._batches.close()

    def let_go(self) -> None:
        self._batches.let_go()

    def _join(self, request: CommitRequest) -> None:
        with self._lock:
            if self._leader is None:
                self._leader = request
            else:
                request.turn = self._environment.system.lock()
                request.turn.acquire()
            self._waiting.append(request)

    def _lead(self, deadline_s: float) -> None:
        if not self._batch:  # else its leader has passed it on
            self._take_batch()
        written = self._commit_batch(self._batch, deadline_s)
        with self._lock:
            self._decided = True
            self._hand_over()
        if written is not None:
            self._notify(written)  # late: a callback of a watch may take long, or commit
        self._batches.tidy()

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
        return pool.ask(requests.encode(batch))

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
