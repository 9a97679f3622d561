"""The plain model of the workload `exact`: one list of tasks, one clock, and counts.

Its methods change the tasks as docs/tasks.md and docs/unique.md tell it. The clock stands still during a
call, so each time is known to the microsecond, and it does not matter which call sweeps a task.
"""

from collections.abc import Iterable

from fdbqueue.core import limits
from fdbqueue.core.errors import NotTaken
from fdbqueue.core.task import EndedTask, Failure, Task
from tests.system.workloads.exact_life import Life
from tests.system.workloads.exact_tasks import Tasks
from tests.system.workloads.exact_times import added, earliest, is_over

LEASE_OVER = Failure("LeaseLost", "its lease ended before its holder ended the task")
HOLDER_DIED = Failure("LeaseLost", "its holder's session died")


class Model(Tasks):
    # Time.

    def next_change(self) -> int | None:
        """The next time at which a task changes without a call."""
        timers = [life.timer for life in self.lives.values()]
        ends = [window.until for window in self.windows.values()]
        ends += [stored.until for stored in self.results.values()]
        return earliest(*timers, *(end for end in ends if not is_over(end, self.now)))

    def due(self) -> list[Life]:
        """The tasks that have come to their time, in its order."""
        over = [life for life in self.lives.values() if is_over(life.timer, self.now)]
        return sorted(over, key=lambda life: (life.timer or 0, life.id))

    def is_contested(self) -> bool:
        """True if the first of several sweeps decides which task has a unique key."""
        due = self.due()
        return len(due) > 1 and any(life.scope == "queued" for life in due)

    def sweep(self) -> None:
        """Let the tasks change that have come to their time: in batches, as a sweep does."""
        while batch := self.due()[: limits.DUE_BATCH]:
            for state in "t~":
                for life in (life for life in batch if life.state == state):
                    self._sweep_one(life)
            for life in batch:
                if life.id in self.lives and life.state in "r!" and is_over(life.expires, self.now):
                    self.calls["ttl"] += 1
                    self.end(life, "delete", "expired")
        self.windows = {key: one for key, one in self.windows.items() if not is_over(one.until, self.now)}
        self.results = {id_: one for id_, one in self.results.items() if one.until > self.now}

    def _sweep_one(self, life: Life) -> None:
        if life.state == "t":
            self.lose(life, LEASE_OVER, "ttr")
        else:
            self.come_back(life)
            self.calls["delay"] += 1

    def retained(self) -> list[EndedTask]:
        """The ended tasks that a queue keeps, the latest first."""
        after = self.now / 1_000_000 - self.options["retain_s"]
        latest = sorted(self.kept, key=lambda one: (one.ended, one.id), reverse=True)
        return [one for one in latest if one.ended > after][: limits.RETAINED_MAX]

    # The edges of the life cycle.

    def lease(self, life: Life, taken: Task, session: str) -> None:
        self.leave_scope(life)
        life.state, life.attempts, life.taken = "t", life.attempts + 1, self.now
        life.token, life.session, life.until = taken.token, session, self.lease_end(life)
        self.calls["take"] += 1

    def lease_end(self, life: Life) -> int | None:
        until = added(self.now, life.ttr)
        return until if self.kind == "utubettl" else earliest(until, life.expires)

    def held(self, task: Task) -> Life:
        life = self.lives.get(task.id)
        if life is None or life.state != "t" or life.token != task.token:
            raise NotTaken(id=task.id)
        return life

    def release(self, life: Life, delay: int = 0, failure: Failure | None = None) -> Task:
        if life.cancelled is not None:
            return self.end(life, "cancel", "cancelled")
        if failure is not None:
            life.fail(failure, "retried", self.now)
            life.orphaned = 0
        self.come_back(life)
        life.put_off(self.now, delay)
        self.calls["release"] += 1
        return life.shown()

    def lose(self, life: Life, failure: Failure, call: str) -> None:
        if life.cancelled is not None:
            self.end(life, "cancel", "cancelled")
            return
        life.fail(failure, "lease_lost", self.now)
        life.orphaned += 1
        self.come_back(life)
        self.calls[call] += 1

    def bury(self, life: Life, failure: Failure | None = None) -> Task:
        if life.state == "!":
            return life.shown()
        if life.cancelled is not None:
            return self.end(life, "cancel", "cancelled")
        if failure is not None:
            life.fail(failure, "buried", self.now)
        self.put_aside(life)
        return life.shown()

    def put_aside(self, life: Life) -> None:
        self.leave_scope(life)
        life.free("!")
        self.calls["bury"] += 1

    def kick(self, lives: Iterable[Life]) -> None:
        for life in lives:
            self.come_back(life)
            life.forgiven, life.orphaned = life.failures, 0
            self.calls["kick"] += 1

    def truncate(self) -> None:
        self.lives, self.windows = {}, {}
