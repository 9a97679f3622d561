"""Groups against a plain model: members in two queues, verbs, removals, sweeps and time in any order."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import fdbqueue
from fdbqueue import Group, Session, Task, TaskQueue, transactional
from fdbqueue.core.errors import GroupClosed, QueueBusy
from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.stored.records import id_bytes
from tests.conftest import SLOW
from tests.tasks.support import LONG_S, StillClock, keeper

TTR_S, FOREVER = 4.0, float("inf")
AT_REST = (TaskState.READY, TaskState.DELAYED, TaskState.BURIED)
picks = st.integers(0, 5)


@dataclass
class Gathered:
    """A group as the model knows it."""

    handle: Group
    holds: bool
    then: str
    """The id of its task of then."""
    total: int = 0
    done: int = 0
    failed: int = 0
    is_closed: bool = False
    is_cancelled: bool = False
    has_ended: bool = False
    then_is: str = "waiting"
    """Then "ready", once; then "gone"."""
    lost: int = 0
    """Members that a truncate or a drop has removed, and that no sweep has counted as failed."""
    lost_buried: int = 0

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


@dataclass
class Known:
    """A task as the model knows it."""

    id: str
    place: int
    """The number of its queue."""
    group: Gathered | None
    state: TaskState = TaskState.READY
    due: float = 0.0
    until: float = FOREVER
    """The end of its lease."""
    expires: float = FOREVER
    is_counted: bool = False
    """True if its burial has counted as failed."""
    is_marked: bool = False
    """True if it was cancelled while it was taken."""

    def may_go(self, now: float) -> bool:
        """True if the next sweep removes it, and an earlier call may."""
        cancelled = self.is_marked or (self.group is not None and self.group.is_cancelled)
        return self.expires <= now or (cancelled and self.state != TaskState.TAKEN)


class Groups(RuleBasedStateMachine):
    @initialize(partitions=st.sampled_from([1, 1, 3]))
    def create(self, partitions: int) -> None:
        self.clock = StillClock()
        self.db = fdbqueue.open("memory:", runtime=self.clock)
        self.partitions = partitions
        self.queues = [self.made(place) for place in range(2)]
        self.then = TaskQueue.create(self.db, "then")
        self.session = Session(self.db, ttr=LONG_S)
        self.groups: list[Gathered] = []
        self.tasks: dict[str, Known] = {}
        self.leases: dict[str, Task] = {}

    def made(self, place: int) -> TaskQueue:
        return TaskQueue.create(
            self.db, f"q{place}", "fifottl", ttr=TTR_S, partitions=1 if place else self.partitions
        )

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()

    # The model.

    def pick(self, pick: int, *states: TaskState) -> Known | None:
        now = self.clock.now()
        found = [one for one in self.tasks.values() if one.state in states and now < one.expires]
        return found[pick % len(found)] if found else None

    def group_at(self, pick: int) -> Gathered | None:
        return self.groups[pick % len(self.groups)] if self.groups else None

    def gone(self, task: Known, is_done: bool = False) -> None:
        del self.tasks[task.id]
        self.leases.pop(task.id, None)
        if task.group is None:
            return
        if is_done:
            task.group.done += 1
            task.group.failed -= task.is_counted
        elif not task.is_counted:
            task.group.failed += 1

    def buried(self, task: Known) -> None:
        self.leases.pop(task.id, None)
        task.state, task.until = TaskState.BURIED, FOREVER
        if task.group and not task.group.holds and not task.is_counted:
            task.is_counted = True
            task.group.failed += 1

    def come_back(self, task: Known, state: TaskState = TaskState.READY) -> None:
        self.leases.pop(task.id, None)
        task.state, task.until = state, FOREVER

    def notice(self) -> None:
        """Let tasks go that the queues have removed, of those that may go by themselves."""
        now = self.clock.now()
        for task in [*self.tasks.values()]:
            if task.group and task.may_go(now):
                key = SharedKeys(self.queues[task.place].contents).member(
                    bytes.fromhex(task.group.handle.id), id_bytes(task.id)
                )
                if self.db.get(key) is None:
                    self.gone(task)
            elif task.expires <= now:  # it is in no group: its time in the queue tells nothing
                self.gone(task)

    def swept(self) -> None:
        """All that a sweep has to do is done."""
        now = self.clock.now()
        for task in [*self.tasks.values()]:
            if task.group and task.group.is_cancelled and task.state == TaskState.TAKEN:
                task.is_marked = True
            if task.may_go(now):
                self.gone(task)
        for one in self.groups:
            one.failed, one.lost, one.lost_buried = one.failed + one.lost, 0, 0
            if one.left == 0 and (one.is_closed or one.is_cancelled) and not one.has_ended:
                one.has_ended = one.is_closed = True
                if one.then_is == "waiting":
                    one.then_is = "gone" if one.is_cancelled else "ready"

    # Groups.

    @rule(holds=st.booleans(), members=st.sampled_from([None, None, 0, 1, 3]), place=st.sampled_from([0, 1]))
    def gather(self, holds: bool, members: int | None, place: int) -> None:
        """With `members`, it is made and closed in one transaction, as in a `with` block."""
        then = (self.then, "then")
        if members is None:
            made, tasks = Group.create(self.db, then=then, wait_for_buried=holds), []
        else:
            made, tasks = self.block(then, holds, members, place)
        then_id = made.progress(self.db).then
        assert then_id is not None
        one = Gathered(made, holds, then_id, total=len(tasks), is_closed=members is not None)
        self.groups.append(one)
        for task in tasks:
            self.tasks[task.id] = Known(task.id, place, one)

    def block(self, then: Any, holds: bool, members: int, place: int) -> tuple[Group, list[Task]]:
        @transactional
        def body(tr: Any) -> tuple[Group, list[Task]]:
            with fdbqueue.group(tr, then=then, wait_for_buried=holds) as g:
                tasks = g.put_many(self.queues[place], range(members)) if members else []
            return g.group, tasks

        return body(self.db)

    @rule(
        pick=picks,
        place=st.sampled_from([0, 1]),
        delay=st.sampled_from([0, 0, 1.0, 3.0]),
        ttl=st.sampled_from([None, None, 2.0, 6.0]),
        count=st.sampled_from([1, 1, 3]),
    )
    def put(self, pick: int, place: int, delay: float, ttl: float | None, count: int) -> None:
        one = self.group_at(pick)
        options = {"delay": delay, "ttl": ttl}
        if one is None:
            return
        if one.is_closed or one.is_cancelled:
            with pytest.raises(GroupClosed):
                one.handle.put(self.db, self.queues[place], "late", **options)
            return
        for task in one.handle.put_many(self.db, self.queues[place], range(count), **options):
            self.enter(task, place, one, delay, ttl)
        one.total += count

    @rule(place=st.sampled_from([0, 1]))
    def put_another(self, place: int) -> None:
        self.enter(self.queues[place].put(self.db, "in no group"), place, None, 0, None)

    def enter(self, task: Task, place: int, group: Gathered | None, delay: float, ttl: float | None) -> None:
        due = self.clock.now() + delay
        state = TaskState.DELAYED if delay else TaskState.READY
        expires = FOREVER if ttl is None else due + ttl
        self.tasks[task.id] = Known(task.id, place, group, state, due, expires=expires)

    @rule(pick=picks)
    def close(self, pick: int) -> None:
        one = self.group_at(pick)
        if one is not None:
            one.handle.close(self.db)
            one.is_closed = True

    @rule(pick=picks)
    def cancel_group(self, pick: int) -> None:
        one = self.group_at(pick)
        if one is not None:
            one.handle.cancel(self.db)
            one.is_cancelled = one.is_cancelled or not one.has_ended

    # Members.

    @rule(place=st.sampled_from([0, 1]), wanted=st.sampled_from([1, 1, 3]))
    def take(self, place: int, wanted: int) -> None:
        found = self.queues[place].take_many(self.db, wanted, timeout=0, session=self.session)
        now = self.clock.now()
        for got in found:
            task = self.tasks[got.id]
            assert (task.place, task.state, task.may_go(now)) == (place, TaskState.READY, False)
            task.state, task.until = TaskState.TAKEN, min(now + TTR_S, task.expires)
            self.leases[got.id] = got
        if not found:  # a take may look at some partitions only once it has a task
            rest = [one for one in self.tasks.values() if one.place == place and not one.may_go(now)]
            assert all(one.state != TaskState.READY for one in rest)

    @rule(pick=picks, verb=st.sampled_from(["ack", "release", "delayed", "give_back", "bury", "delete"]))
    def end(self, pick: int, verb: str) -> None:
        if not self.leases:
            return
        lease = [*self.leases.values()][pick % len(self.leases)]
        task = self.tasks[lease.id]
        queue = self.queues[task.place]
        if verb == "delayed":
            queue.release(self.db, lease, delay=1.0)
        else:
            getattr(queue, verb)(self.db, lease)
        if verb in ("ack", "delete") or task.is_marked:
            self.gone(task, is_done=verb == "ack")
        elif verb == "bury":
            self.buried(task)
        elif verb == "delayed":
            self.come_back(task, TaskState.DELAYED)
            task.due, task.expires = self.clock.now() + 1.0, task.expires + 1.0
        else:
            self.come_back(task)

    @rule(pick=picks, verb=st.sampled_from(["delete", "cancel", "bury"]))
    def manage(self, pick: int, verb: str) -> None:
        task = self.pick(pick, *AT_REST)
        if task is not None:
            getattr(self.queues[task.place], verb)(self.db, task.id)
            if verb == "bury":
                self.buried(task)
            else:
                self.gone(task)

    @rule(pick=picks)
    def cancel_taken(self, pick: int) -> None:
        task = self.pick(pick, TaskState.TAKEN)
        if task is not None:
            self.queues[task.place].cancel(self.db, task.id)
            task.is_marked = True

    @rule(place=st.sampled_from([0, 1]))
    def kick_all(self, place: int) -> None:
        self.queues[place].kick(self.db, 1_000)
        for task in self.tasks.values():
            if task.place == place and task.state == TaskState.BURIED:
                task.state = TaskState.READY

    # Queues.

    @rule(place=st.sampled_from([0, 1]))
    def truncate(self, place: int) -> None:
        self.queues[place].truncate(self.db)
        self.lose(place)

    @rule(place=st.sampled_from([0, 1]))
    def drop(self, place: int) -> None:
        if any(self.tasks[id_].place == place for id_ in self.leases):
            with pytest.raises(QueueBusy):
                self.queues[place].drop(self.db)
            return
        self.queues[place].drop(self.db)
        self.lose(place)
        self.queues[place] = self.made(place)

    def lose(self, place: int) -> None:
        """Its tasks are gone, and a sweep counts their groups' members as failed."""
        for task in [one for one in self.tasks.values() if one.place == place]:
            del self.tasks[task.id]
            self.leases.pop(task.id, None)
            if task.group:
                task.group.lost += not task.is_counted
                task.group.lost_buried += task.state == TaskState.BURIED

    # The tasks of then.

    @rule()
    def take_then(self) -> None:
        got = self.then.take(self.db, 0, session=self.session)
        ready = [one for one in self.groups if one.then_is == "ready"]
        assert (got is None) == (not ready)
        if got is not None:
            [one] = [one for one in ready if one.then == got.id]
            self.then.ack(self.db, got)
            one.then_is = "gone"

    @rule(pick=picks)
    def delete_then(self, pick: int) -> None:
        there = [one for one in self.groups if one.then_is != "gone"]
        if there:
            one = there[pick % len(there)]
            self.then.delete(self.db, one.then)
            one.then_is = "gone"

    # Time.

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 4.5]))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        now = self.clock.now()
        for task in [*self.tasks.values()]:
            if task.until <= now:
                self.come_back(task)
            if task.state == TaskState.DELAYED and task.due <= now:
                task.state = TaskState.READY

    @rule()
    def sweep(self) -> None:
        keeper(self.db).tick()
        self.notice()
        self.swept()

    @invariant()
    def progress_is_that_of_the_model(self) -> None:
        if not hasattr(self, "db"):
            return
        self.notice()
        for one in self.groups:
            found = one.handle.progress(self.db)
            buried = sum(task.group is one and task.state == TaskState.BURIED for task in self.tasks.values())
            assert (found.total, found.done, found.failed, found.left, found.buried) == (
                one.total,
                one.done,
                one.failed,
                one.left,
                buried + one.lost_buried,
            )
            assert (found.ended is not None, found.cancelled) == (one.has_ended, one.is_cancelled)
            assert found.open == (not one.is_closed and not one.is_cancelled)

    @invariant()
    def then_starts_once(self) -> None:
        if hasattr(self, "db"):
            states = (TaskState.READY, TaskState.DELAYED)
            found = [task for state in states for task in self.then.tasks(self.db, state, 1_000)]
            stored = {task.id: task.waits_for for task in found}
            expected = {
                one.then: one.handle.id if one.then_is == "waiting" else None
                for one in self.groups
                if one.then_is != "gone"
            }
            assert stored == expected

    @invariant()
    def entries_and_counts_agree(self) -> None:
        if hasattr(self, "db"):
            assert fdbqueue.verify(self.db).findings == ()


Groups.TestCase.settings = settings(
    max_examples=500 if SLOW else 25, stateful_step_count=25, deadline=None, print_blob=True
)
TestGroups = Groups.TestCase
