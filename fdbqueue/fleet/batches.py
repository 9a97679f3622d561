"""Batches: a worker with `batch` calls its handler with a list of tasks of one queue.

The thread that feeds takes tasks until the batch is full or its time is over. All leases of a batch have one
claim, as one thread decides about all of them. One transaction commits the outcomes. If it fails as a whole,
each task is settled by itself, so that none hinders the others.

Some tasks run alone. A suspect may kill its process. A task at its last attempt has failed before, perhaps
because of a neighbour: alone, it is judged by itself.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from fdbqueue.core import limits, observing
from fdbqueue.core.errors import InvalidArgument, LeaseLost, NotTaken, TaskCancelled
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.visible import SURVIVED
from fdbqueue.fleet.feed import Start
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.outcomes import (
    Away,
    Done,
    Failed,
    HandedOff,
    Judgement,
    Lost,
    Snooze,
    Snoozed,
    is_away,
    judge,
    stack_of,
)
from fdbqueue.fleet.settling import ACKED, HEARTBEAT, ITS_THREAD, USED_UP, Settled, ended
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks import verbs
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.filling import filled
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")

Said = Done | BaseException
"""The word of a handler about a task: an ack, or the error for its outcome."""
Outcome = Done | Judgement


@dataclass(frozen=True)
class PutOff(Away):
    delay_s: float


class Member(Hold):
    """A lease of a batch. A claim of one member is a claim of all; the first of them has it."""

    in_batch = True
    batch: Sequence["Member"] = ()
    """Itself and the others; empty before the batch begins."""

    @property
    def _lead(self) -> "Member":
        return self.batch[0] if self.batch else self

    def claim(self, claimant: object) -> bool:
        return Hold.claim(self._lead, claimant)

    def disclaim(self, claimant: object) -> None:
        Hold.disclaim(self._lead, claimant)

    @property
    def claimant(self) -> object:
        return self._lead._claimant


class BatchWorker(Worker):
    """A worker of batches. A job of its pool is the first member of a batch."""

    __slots__ = ()

    _hold_class = Member

    # Feeding: one thread.

    def _run(self, until_empty: bool) -> None:
        self._ready = deque[list[Member]]()
        super()._run(until_empty)

    def _holds(self, free: int, timeout_s: float) -> list[Hold] | None:  # noqa: ARG002
        """Take the tasks of a batch; after a wait for several queues, of one each. None: some are ready."""
        if self._ready:
            return None
        size, wait_s = self._options.batch or 1, self._options.batch_wait_s
        wait_s = limits.BATCH_WAIT_S if wait_s is None else wait_s
        several = len(self._queues) > 1
        first = self._taken(1 if several else size, timeout_s)
        found: dict[TaskQueue, list[Hold]] = {}
        for hold in first:
            found.setdefault(hold.queue, []).append(hold)
        for queue, holds in found.items():
            patience_s = wait_s if len(found) == 1 else 0.0  # the other batches do not wait for this one
            monotonic, more = self._runtime.monotonic, partial(self._more, queue)
            filled(holds, size, patience_s, monotonic, more, lambda s: not self._stopped.wait(s))
        return [hold for holds in found.values() for hold in holds]

    def _more(self, queue: TaskQueue, count: int) -> list[Hold] | None:
        """Take further tasks of a queue. None if that fails."""
        session, asked_at = self._session, self._runtime.now()
        try:
            tasks = self._feed.more(queue, count, session)
        except Exception as error:  # the tasks so far are leased: their batch begins
            self._met("a batch begins with the tasks so far, as no more can be taken", error)
            return None
        return self._held([(queue, task) for task in tasks], session, asked_at)

    def _give(self, holds: list[Hold], free: int) -> None:
        starts = self._starting.decide(holds, len(holds), self._stopped.is_set())
        together: dict[TaskQueue, list[Member]] = {}
        for hold, start in zip(holds, starts, strict=True):
            assert isinstance(hold, Member)
            if start is not Start.BEGIN:
                self._return(hold, self._suspect_delay_s() if start is Start.PUT_OFF else 0.0)
            elif self._is_alone(hold):
                self._ready.append([hold])
            else:
                together.setdefault(hold.queue, []).append(hold)
        self._ready.extend(together.values())
        while free and self._ready and not self._stopped.is_set():  # a stop returns the rest
            free -= 1
            batch = self._ready.popleft()
            for member in batch:
                member.batch = batch
            self._pool.give(batch[0])

    def _is_alone(self, hold: Hold) -> bool:
        failures = hold.task.failures
        return bool(hold.task.orphaned) or (failures > 0 and self._settling.is_last(hold, failures))

    def _return_refill(self) -> None:
        while self._ready:
            for member in self._ready.popleft():
                self._return(member)

    # Working: each thread of the pool.

    def _work(self, hold: Hold) -> bool:
        assert isinstance(hold, Member)
        batch = hold.batch
        error: BaseException | None = None
        try:
            error = self._run_batch(batch)
        finally:
            if hold.claim(ITS_THREAD):  # otherwise its claimant removes them
                for member in batch:
                    self._heartbeat.remove(member)
            for member in reversed(batch):
                self._telling.left(member)
        if error is not None and not isinstance(error, SURVIVED) and hold.claimant is not HEARTBEAT:
            raise error  # the pool replaces the thread
        return hold.claimant is not HEARTBEAT

    def _run_batch(self, batch: Sequence[Member]) -> BaseException | None:
        """Run an attempt of each task. Return the error that the handler has raised, if any."""
        said: Said
        settled: list[tuple[Settled | None, Said]] | None = None
        error: BaseException | None = None
        try:
            if len(batch) == 1 and self._settling.bury_if_exhausted(batch[0]):
                self._telling.ended(batch[0], USED_UP)
                return None
            for member in batch:
                self._heartbeat.began(member)
                self._telling.began(member)
            if self._options.transactional:
                settled = self._commit(batch, partial(self._work_in, batch, self._randoms(batch)))
                said = Done()
            else:
                said = self._called([member.task for member in batch])
        except BaseException as raised:  # a handler may raise any
            said = error = raised
            if self._options.transactional:  # its decisions were not committed
                self._forget_decisions(batch)
        if batch[0].claim(ITS_THREAD):
            if settled is not None:
                self._tell(batch, settled)
            else:
                about = [_said_of(member, batch, said) for member in batch]
                self._conclude(batch, about, self._outcomes(batch, about))
        return error

    def _called(self, *arguments: object) -> Done:
        done = self._settling._call(self._handler, *arguments)
        if done.effect is not None:
            wanted = "None for a batch, of which a lease may be lost: task.done(effect=...) is for one task"
            raise InvalidArgument(name="effect", wanted=wanted, got=done.effect)
        return done

    def _work_in(
        self, batch: Sequence[Member], randoms: Sequence[float], tr: Transaction
    ) -> list[tuple[Settled | None, Said]]:
        """Call the handler with the tasks that are still held, and settle them in its transaction."""
        self._forget_decisions(batch)  # an earlier try of this transaction did not commit
        batch[0].disclaim(ITS_THREAD)
        are_held = _each(batch, tr, verbs.are_held)
        held = [member for member, is_held in zip(batch, are_held, strict=True) if is_held]
        if not held:
            raise NotTaken(id=batch[0].task.id)
        done = self._called(tr, [member.task for member in held])
        left = [member for member in held if member.ended_by is None]
        outcomes = self._outcomes(left, [member.decision or done for member in left])
        settled = dict(zip(left, self._settle_in(left, outcomes, randoms, tr), strict=True))
        for member, one in settled.items():
            if one is None:  # its lease has ended since: the writes for it must not commit
                raise NotTaken(id=member.task.id)
        self._settling._claim(batch[0])
        return [(settled.get(member, ended(member)), member.decision or done) for member in batch]

    def _forget_decisions(self, batch: Sequence[Member]) -> None:
        for member in batch:
            member.note_end(None, within=False)
            member.decision = None

    # Settling: the thread that has the claim.

    def _outcomes(self, batch: Sequence[Member], said: Sequence[Said]) -> list[Outcome]:
        pairs = zip(batch, said, strict=True)
        found = [one if isinstance(one, Done) else judge(one, self._name, m.cancelled) for m, one in pairs]
        for one, outcome in zip(said, found, strict=True):
            if isinstance(outcome, Away) and isinstance(one, BaseException):
                pause_s = self._is_away(self._no_ground, one)
                return [PutOff(pause_s) if isinstance(other, Away) else other for other in found]
        if not all(isinstance(outcome, Lost) for outcome in found):
            self._no_ground.over()
        return found

    def _conclude(self, batch: Sequence[Member], said: Sequence[Said], outcomes: Sequence[Outcome]) -> None:
        """Settle all together, or else each by itself."""
        pairs = list(zip(batch, outcomes, strict=True))
        if len(batch) > 1:
            randoms = self._randoms(batch)
            try:
                settled = self._commit(batch, partial(self._settle_in, batch, outcomes, randoms))
            except SURVIVED as error:
                if is_away(error):  # as each of them would find
                    failed = [(m, Away() if isinstance(one, Done) else one) for m, one in pairs]
                    settled = [self._settle_otherwise(member, one, error) for member, one in failed]
                else:
                    settled = [self._settle_alone(*pair, one) for pair, one in zip(pairs, said, strict=True)]
        else:
            settled = [self._settle_alone(*pairs[0], said[0])]
        self._tell(batch, list(zip(settled, said, strict=True)))

    def _settle_alone(self, member: Member, outcome: Outcome, said: Said) -> Settled:
        if not isinstance(outcome, Done):
            return self._settle_as(member, outcome, said)
        try:
            if outcome.effect is None:
                member.queue.ack(self._database, member.lease, result=outcome.result)
            else:
                self._settling._commit_with(member, lambda tr: self._settling._ack_and(tr, member, outcome))
            return ACKED
        except SURVIVED as error:
            return ended(member) or self._settle(member, error)

    def _commit(self, batch: Sequence[Member], work: Callable[[Transaction], T]) -> T:
        try:
            return self._settling._commit_with(batch[0], work)
        except BaseException:
            for member in batch:
                member.undo_end()
            raise

    def _randoms(self, batch: Sequence[Member]) -> list[float]:
        """For the backoff of each: outside of a body that is run again."""
        return [self._runtime.random() for _ in batch]

    def _settle_in(
        self,
        batch: Sequence[Member],
        outcomes: Sequence[Outcome],
        randoms: Sequence[float],
        tr: Transaction,
    ) -> list[Settled | None]:
        """Settle tasks in a transaction. None for a lost lease."""
        plain = [
            member for member, outcome in zip(batch, outcomes, strict=True) if _is_plain(member, outcome)
        ]
        acked = dict(zip(plain, _acked(plain, tr) if plain else (), strict=True))
        settled = list[Settled | None]()
        for member, outcome, random in zip(batch, outcomes, randoms, strict=False):
            one = ACKED if acked.get(member) else None
            if member not in acked:
                with suppress(NotTaken):
                    one = self._settle_one(member, outcome, random, tr)
            if one is ACKED and isinstance(outcome, Done):
                self._settling.affect(tr, outcome)  # its own NotTaken ends this transaction
            settled.append(one)
        return settled

    def _settle_one(self, member: Member, outcome: Outcome, random: float, tr: Transaction) -> Settled | None:
        settling = self._settling
        if isinstance(outcome, Done):
            member.queue.ack(tr, member.lease, result=outcome.result)
            return ACKED
        if isinstance(outcome, Failed):
            return settling.fail_in(tr, member, outcome, random)
        if isinstance(outcome, Lost):
            return None
        if isinstance(outcome, PutOff):
            return settling.put_off(member, outcome.delay_s, tr)
        if isinstance(outcome, Snoozed):
            return settling.snooze(member, outcome.delay_s, tr)
        if isinstance(outcome, HandedOff):
            return settling.hand_off(member, outcome.ttl_s, outcome.for_, tr)
        return settling.cancel(member, tr)

    def _tell(self, batch: Sequence[Member], settled: Sequence[tuple[Settled | None, Said]]) -> None:
        for member, (one, said) in zip(batch, settled, strict=True):
            known = one or ended(member)
            if known is None:
                self._heartbeat.lose(member)
            error = None if isinstance(said, Done) else said
            self._telling.ended(member, known or Settled("lease_lost"), error)

    def _give_up(self, hold: Hold) -> None:
        """Fail the attempts of a batch, but for those that its handler has decided about."""
        assert isinstance(hold, Member)
        batch = hold.batch
        for member in batch:
            member.take_away()
        if hold.transactional:  # its transaction has not committed, nor will it
            self._forget_decisions(batch)
        message = f"its handler ran longer than {self._options.timeout_s} s"
        failed = Failed(Failure("Timeout", message, stack_of(hold.thread_id), self._name))
        overran = TimeoutError(message)
        said = [member.decision or overran for member in batch]
        pairs = zip(said, self._outcomes(batch, said), strict=True)
        try:
            self._conclude(batch, said, [failed if one is overran else outcome for one, outcome in pairs])
        finally:
            for member in batch:
                self._heartbeat.remove(member)


def _is_plain(member: Member, outcome: Outcome) -> bool:
    """True for an ack that stores no result, and has no effect: those of a batch share their reads."""
    if not isinstance(outcome, Done) or outcome.effect is not None:
        return False
    return outcome.result is None or member.lease.result_ttl is None


def _said_of(member: Member, batch: Sequence[Member], said: Said) -> Said:
    """The decision about a task, or else the end of its handler.

    The handler may have left because of one lease. Then the others are ready again, without a failure.
    """
    if member.decision is not None:
        return member.decision
    about = getattr(said, "id", "") if isinstance(said, NotTaken | LeaseLost | TaskCancelled) else ""
    if about != member.task.id and any(other.task.id == about for other in batch):
        return Snooze(0)
    return said


def _each(
    batch: Sequence[Member], tr: Transaction, verb: Callable[[Change, Sequence[Target]], Sequence[T]]
) -> Sequence[T]:
    queue = batch[0].queue
    targets = [queue._target(tr, member.lease, None) for member in batch]
    return queue._calls(tr).parts.each(tr, targets, verb)


def _acked(batch: Sequence[Member], tr: Transaction) -> list[bool]:
    """Ack tasks without results. False for a lost lease."""
    if not observing.observers:
        return [isinstance(one, Task) for one in _each(batch, tr, verbs.ack_each)]
    with batch[0].queue._observed(tr, "ack", count=len(batch)) as call:
        acked = _each(batch, tr, verbs.ack_each)
        call.tasks = [one for one in acked if isinstance(one, Task)]
        return [isinstance(one, Task) for one in acked]
