"""Verbs about many tasks of a queue at once, and about the queue itself."""

from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_whole, too_many, writable
from fdbqueue.core.database import is_transaction, run
from fdbqueue.core.errors import QueueBusy
from fdbqueue.core.partitions.plan import checked_partitions
from fdbqueue.core.seam import DatabaseOrTransaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.handle import TaskHandle

if TYPE_CHECKING:
    from fdbqueue.core.partitions.plan import Repartition
    from fdbqueue.tasks.dropping import Occupants


class Managing(TaskHandle):
    """Verbs about many tasks at once, and about the queue itself."""

    __slots__ = ()

    def kick(self, tr: DatabaseOrTransaction, count: int = 1) -> int:
        """Make the first `count` buried tasks ready again. Return their number. 0 changes nothing.

        Given a database, the call uses transactions of at most limits.VERB_BATCH tasks, and may stop between
        two.
        Reads: the tasks.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH tasks.
        """
        checked_whole("count", count, 0)
        kicked = 0
        if is_transaction(tr) and count > limits.VERB_BATCH:
            self._see_all(tr, partial(late.in_all.require_few, under=attrgetter("buried")))
        while kicked < count:
            batch = min(count - kicked, limits.VERB_BATCH)
            more, looked = self._once_in_all(tr, "kick", partial(late.in_all.kick, count=batch))
            kicked += more
            if looked < batch:
                break
        return kicked

    def release_all(self, tr: DatabaseOrTransaction) -> None:
        """Release every taken task, whatever its holder.

        Given a database, the call uses transactions of at most limits.VERB_BATCH tasks.
        Reads: the tasks.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH tasks.
        """
        if is_transaction(tr):
            self._see_all(tr, partial(late.in_all.require_few, under=attrgetter("taken")))
        for _ in late.in_all.in_batches(partial(self.release_some, tr)):
            pass

    def release_some(self, tr: DatabaseOrTransaction, count: int = limits.VERB_BATCH) -> int:
        """Release up to `count` taken tasks, at most limits.VERB_BATCH. Return their number.

        Reads: the tasks.
        Writes: moves the tasks.
        Conflicts: a change of the tasks.
        """
        few = min(checked_count("count", count), limits.VERB_BATCH)
        return self._once_in_all(tr, "release_all", partial(late.in_all.release_taken, count=few))

    def truncate(self, tr: DatabaseOrTransaction) -> None:
        """Remove every task.

        Writes: one range clear. Given a database, gives back the slots of keys of limits; otherwise sweeps
        do.
        Conflicts: every call on a task of the queue.
        """
        self._once_in_all(tr, "truncate", late.in_all.truncate)
        self._free_keys(tr)

    def truncate_some(self, tr: DatabaseOrTransaction, count: int = limits.VERB_BATCH) -> int:
        """Remove the oldest `count` tasks, at most limits.VERB_BATCH. Return their number.

        The call is for millions of tasks, on an engine where a clear costs as much as it removes. Repeated
        until it returns 0, it is a `truncate` in bounded transactions.
        Reads: the tasks, by snapshot.
        Writes: clears the tasks.
        Conflicts: a change of the tasks.
        """
        few = min(checked_count("count", count), limits.VERB_BATCH)
        return self._once_in_all(tr, "truncate", partial(late.in_all.remove_first, count=few))

    def pause(self, tr: DatabaseOrTransaction) -> None:
        """Let no task be taken until `resume`: takes find nothing, or wait. Other verbs work as before.

        Writes: a flag that every take reads.
        Conflicts: takes.
        """
        self._once_in_all(tr, "pause", late.in_all.pause)

    def resume(self, tr: DatabaseOrTransaction) -> None:
        """Let tasks be taken again, and wake waiting takes.

        Writes: clears the flag.
        Conflicts: takes.
        """
        self._once_in_all(tr, "resume", late.in_all.resume)

    def repartition(self, tr: DatabaseOrTransaction, partitions: int) -> "Repartition":
        """Change the number of partitions, while the queue is used. Each task key stays in order.

        New tasks go to the new partitions at once. Those of a task key wait there until its ready and taken
        tasks in the old partition are gone. Partitions that close get nothing new, and are drained by takes.
        Any process that uses the queue finishes the change. Given a database, this call goes as far as it can
        without waiting; repeat it to go on. Given a transaction, it only begins, and a later call on the
        queue in that transaction raises RepartitionNotCommitted.
        Reads: the definition; task keys by snapshot.
        Writes: the definition.
        Conflicts: every call on the queue.
        Raises: RepartitionUnderWay for another number while a change is under way; InvalidArgument;
        UnsupportedOption for a kind with task keys that is not of this package.
        """
        count = checked_partitions(partitions)
        parts = self._calls(tr).parts
        was = 1 if parts.plan is None else parts.plan.count
        plan = self._shape.registry.write(tr, lambda tr: late.repartition.begin(tr, parts.shape, count))
        before = was if plan is None else plan.before or was
        if not is_transaction(tr):
            settling = late.repartition.Settling(parts, self._of(tr).runtime.monotonic)
            while run(tr, settling.step):
                pass
            plan = parts.plan  # as the last step has found it
        return late.repartition.told(before, count, plan)

    def busy(self, tr: DatabaseOrTransaction) -> str:
        """The reason why the queue cannot be dropped: a call waits for tasks, or a session holds one. Empty
        if there is none.

        Given a database, the call ends overdue sessions before it gives a reason. Given a transaction, the
        stored state decides: a dead session that no process has ended yet still holds its tasks.
        Reads: the line and the taken tasks, serialisably.
        Writes: removes dead requests and ends leases that are over, if a full batch has nothing else.
        Conflicts: a call that joins the line, a take.
        Raises: in a transaction, TooMuchForOneTransaction above limits.VERB_BATCH of these.
        """
        calls = self._calls(tr)
        while True:
            found = run(tr, lambda tr: calls.all_within(writable(tr), self._occupants))
            if found.reason and not self._ended_overdue(tr):
                return found.reason
            if not found.reason and found.are_all:
                return ""
            require_more_transactions(tr)

    def drop(self, tr: DatabaseOrTransaction) -> None:
        """Remove the queue and everything in it.

        Given a database, the call ends overdue sessions before it refuses. Given a transaction, the stored
        state decides: a dead session that no process has ended yet still holds its tasks.
        Reads: the line and the taken tasks, serialisably.
        Writes: clears the definition and the contents; slots of keys as `truncate`.
        Conflicts: every call on the queue.
        Raises: QueueBusy if a call waits for tasks or a session holds one; in a transaction,
        TooMuchForOneTransaction if more than limits.VERB_BATCH requests are dead, or leases over and not
        swept.
        """
        while not self._dropped(tr):
            require_more_transactions(tr)
        self._free_keys(tr)

    def _free_keys(self, target: DatabaseOrTransaction) -> None:
        """Give back the slots of keys that removed tasks have held: no sweep may come to do it."""
        if self._shape.limits is not None and not is_transaction(target):
            for _ in self._shape.limits.walk_out(target):
                pass

    def _occupants(self, changes: Sequence[Change]) -> "Occupants":
        return late.dropping.cleared(changes, self._calls(changes[0].tr).parts.lines())

    def _drop(self, changes: Sequence[Change]) -> bool:
        """False if there may be more requests or leases: look again in another transaction."""
        found = self._occupants(changes)
        if found.reason:
            raise QueueBusy(name=self.name, reason=found.reason)
        if found.are_all:
            for change in changes:  # it sets unreadable records aside: behind the drop, they would stay
                change.finish()
            if self._shape.limits is not None:  # leases that are over have their slots still
                self._shape.limits.give_back_all(changes[0].tr)
            self._shape.registry.drop(changes[0].tr, self.name)
        return found.are_all

    def _dropped(self, target: DatabaseOrTransaction) -> bool:
        """False if it is to be tried again in another transaction. Raises QueueBusy."""
        try:
            return self._once_in_all(target, "drop", self._drop)
        except QueueBusy:
            if not self._ended_overdue(target):
                raise
            return False

    def _ended_overdue(self, target: DatabaseOrTransaction) -> bool:
        """True if a call that would answer "busy" should try again; never within a transaction."""
        if is_transaction(target):
            return False
        parts = self._calls(target).parts
        judge = partial(late.dropping.occupants_of_all, lines=parts.lines())
        keeper = keeper_of(self._of(target), self._shape.root)
        return keeper.ended_overdue(lambda tr: lambda: not parts.look_at_all(tr, judge).reason)


def require_more_transactions(target: DatabaseOrTransaction) -> None:
    """Raises TooMuchForOneTransaction if `target` is one."""
    if is_transaction(target):
        checked_verb_batch(limits.VERB_BATCH + 1)


def checked_verb_batch(count: int) -> None:
    if count > limits.VERB_BATCH:
        raise too_many(count, limits.VERB_BATCH)
