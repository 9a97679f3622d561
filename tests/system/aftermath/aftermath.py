"""The aftermath of a run: faults have stopped, and the dead stay dead. Does all go on that can go on?

It begins from the keys of one moment of the run, in the same engine, with a scheduler and processes of its
own: the run itself is as it would be without. The processes follow each other:

- in half of the runs, the first lives from that moment on for FIRST_S, beside leases, sessions and requests
  of the dead that are not over yet;
- the second lives until all of these are over, and all that they held has been taken (contents.py);
- under limits of starts, others follow while tasks are left that wait for tokens, or groups for sweeps.

Each waits in every queue for entries, and finishes those that it gets; it waits for groups, tasks and room;
and its keeper sweeps. None puts anything, but into a full queue: nothing but the promised sweeps and bells
wakes a wait. At the end a take finds nothing, a scan agrees (contents.py), a verification finds nothing, and
no thread is left.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, QueueNotFound, ScheduleNotFound, TaskNotFound
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.sessions.session import Session
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.operate.verify.verify import AnyQueue, verify
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules import Schedule, list_schedules
from fdbqueue.testing.engine import NONE, FaultyDatabase, Machine
from fdbqueue.testing.scheduler import EPOCH_S, Host, Scheduler, SimulatedRuntime, Stuck, Task
from fdbqueue.testing.trace import Commit, Trace, told
from tests.system.aftermath.contents import (
    SETTLED_S,
    Contents,
    are_groups_swept,
    contents_of,
    has_schedules,
    last_deadline_us,
    late_s,
    left,
    sharers,
    slack_s,
    tasks_in,
    tokens_s,
)
from tests.system.aftermath.watching import PROMPT_S, Waiter, Watching, is_any, waiters
from tests.system.audit.model import Mirror


class Life:
    """The life of one process."""

    def __init__(
        self,
        watching: Watching,
        registry: Registry,
        queues: Sequence[Contents],
        until_s: float,
        is_last: bool,
    ) -> None:
        self._watching, self._registry, self._queues = watching, registry, queues
        self._until_s, self._is_last = until_s, is_last

    def run(self, db: Database, found: list[str]) -> None:
        rows, root = self._watching.rows, self._registry.keys
        swept = [root.beats_due, root.schedules, root.group_sweeps]
        if is_any(rows, swept) and not any(queue.tasks for queue in self._queues):
            Session(db)  # no other call of this process makes it sweep
        for queue in self._queues:
            _resume(db, rows, queue)
        waits = list(waiters(self._watching, root, self._queues))
        if self._is_last and has_schedules(rows, root):
            db.runtime.spawn(partial(self._end_schedules, db, found), "operator")
        self._join(db, [partial(self._consume, db, queue) for queue in self._queues], waits)
        self._watching.end()
        for waiter in waits:
            found += waiter.late(self._watching, self._until_s)
        if self._is_last and not awaits_tokens(rows, self._queues):
            found += self._found(db)

    def _join(self, db: Database, takers: Sequence[Callable[[], None]], waits: Sequence[Waiter]) -> None:
        targets: list[Callable[[], Any]] = [*takers, *(partial(one.run, db, self._until_s) for one in waits)]
        threads = [db.runtime.spawn(target, f"waiter-{number}") for number, target in enumerate(targets)]
        for thread in threads:
            thread.join()
        db.runtime.sleep(self._until_s - db.runtime.monotonic())  # a queue may be gone, and its take ends

    def _consume(self, db: Database, queue: Contents) -> None:
        """Take and finish entries."""
        with suppress(QueueNotFound):
            take = queue.make_take(db)
            self._watching.begin(queue)
            found = True
            while found and (left_s := self._until_s - db.runtime.monotonic()) > 0:
                with suppress(NotTaken, TaskNotFound):  # its ttl is over
                    found = take(db, left_s)

    def _end_schedules(self, db: Database, found: list[str]) -> None:
        """Tell of schedules that are late, and pause all a while before the end: each puts tasks for ever."""
        late = late_s(self._watching.rows, self._registry.keys, db.runtime.now_us())
        db.runtime.sleep(self._until_s - SETTLED_S / 2 - db.runtime.monotonic())
        for status in list_schedules(db):
            since = db.runtime.now() - late
            # Where a small queue has little room, many missed due times are handled a few at a time.
            goes_on = status.last_fired is not None and status.last_fired >= since
            if status.next_try is not None and status.next_try < since and not goes_on:
                found.append(f"the schedule {status.name!r} has not fired its due time {status.due}")
            with suppress(ScheduleNotFound):
                Schedule.open(db, status.name).pause(db)

    def _found(self, db: Database) -> Iterator[str]:
        """Tell of entries that a take finds now, and found not while it waited."""
        for queue in self._queues:
            with suppress(QueueNotFound, NotTaken, TaskNotFound):
                if queue.make_take(db)(db, 0):
                    yield f"{queue.name}: a take that waited did not find an entry that a later one has found"


def awaits_tokens(rows: Mirror, queues: Sequence[Contents]) -> bool:
    """True if entries are left in a queue under limits."""
    return any(queue.limits and is_any(rows, queue.available) for queue in queues)


def _resume(db: Database, rows: Mirror, queue: Contents) -> None:
    """Resume a queue that is paused: nothing else ends a pause."""
    if queue.definition is not None and queue.tasks and rows.value(queue.tasks[0].paused) is not None:
        TaskQueue.open(db, queue.name).resume(db)


_CHOSEN_P, _AT_END_P = 0.5, 0.5


@dataclass(frozen=True)
class Moment:
    """The keys at one version, its virtual time, and the latest clock by which a machine has committed."""

    rows: Mapping[bytes, bytes]
    at_s: float
    now_us: int

    @property
    def skew_s(self) -> float:
        """The seconds by which that clock is ahead of virtual time."""
        return self.now_us / 1_000_000 - EPOCH_S - self.at_s


class Moments:
    """Chooses the moment of a run: the end of its clients, or one of their commits; none in half of the runs,
    as an aftermath costs a quarter of a run.

    At a commit, all clients die at once: in the middle of their calls, with requests in the line and results
    on the way. At the end, each has left what its death, or its last call, has left.
    """

    def __init__(self, random: Random, scheduler: Scheduler) -> None:
        self.chosen: Moment | None = None
        self._random = random.random
        self._scheduler = scheduler
        self._is_over = random.random() >= _CHOSEN_P
        self._is_at_end = random.random() < _AT_END_P
        self._commits = self._now_us = 0

    def committed(self, commit: Commit, mirror: Mirror) -> None:
        """Choose this commit, each of a run as likely as any other: the n-th takes the place of the one
        before with a probability of 1 / n.
        """
        if self._is_over:
            return
        self._commits += 1
        self._now_us = max(self._now_us, commit.now_us)
        if not self._is_at_end and self._random() * self._commits < 1:
            self.chosen = self._moment(mirror)

    def over(self, mirror: Mirror) -> None:
        """All clients have ended or died."""
        if not self._is_over and self._is_at_end and self._commits:
            self.chosen = self._moment(mirror)
        self._is_over = True

    def _moment(self, mirror: Mirror) -> Moment:
        now_us = max(self._now_us, round((EPOCH_S + self._scheduler.now) * 1_000_000))
        return Moment(mirror.copied(), self._scheduler.now, now_us)


FIRST_S, _FIRST_P = 4.0, 0.5
POINTS_MAX = 300_000
_LEADS_S = (1.0, -0.1)
"""The second process begins a while before the last deadline, or right after it."""


class Aftermath:
    def __init__(
        self, seed: int, moment: Moment, store: Store, spaces: Sequence[AnyQueue], trace: Trace
    ) -> None:
        """`spaces`: the queues over subspaces; those with names are found by their definitions."""
        self._seed, self._store, self._spaces, self._trace = seed, store, spaces, trace
        self._random = Random(f"{seed} aftermath")
        # Virtual time goes on at the latest clock, so that no hold of a session outlasts its deadline.
        ahead_s = max(0.0, moment.skew_s)
        self._skew_s = moment.skew_s - ahead_s
        self.scheduler = Scheduler(Random(f"{seed} schedule of the aftermath"), POINTS_MAX)
        self.scheduler.now = moment.at_s + ahead_s
        store.runtime = self._runtime(Host("engine"))
        self._registry = Registry(DEFAULT_ROOT)
        self._restore(moment)
        self._watching = Watching(self.scheduler, self._skew_s, Mirror.holding(moment.rows))
        self._late: list[str] = []
        self._tasks: list[Task] = []

    def _runtime(self, host: Host) -> SimulatedRuntime:
        random = Random(f"{self._seed} aftermath {host.name}")
        return SimulatedRuntime(self.scheduler, host, random, 900, self._skew_s)

    def _restore(self, moment: Moment) -> None:
        tr = EmbeddedDatabase(self._store, self._runtime(Host("engine"))).create_transaction()
        tr.clear_range(b"", b"\xff")
        for key, value in moment.rows.items():
            tr.set(key, value)
        tr.commit().wait()

    def run(self) -> list[str]:
        """Tell everything that is stuck."""
        rows, root, began_s = self._watching.rows, self._registry.keys, self.scheduler.now
        with Database(EmbeddedDatabase(self._store, self._runtime(Host("list")))) as database:
            queues = contents_of(database, self._registry, self._spaces)
        lines = [line.requests for queue in queues for line in queue.lines]
        self._watching.dead_requests = [key for part in lines for key in rows.keys_in(part.start, part.stop)]
        try:
            if self._random.random() < _FIRST_P:
                self._live("first", queues, began_s + FIRST_S, is_last=False)
            last_s = self._last_s(queues)
            self.scheduler.now = max(self.scheduler.now, last_s - self._random.choice(_LEADS_S))
            self._live("second", queues, last_s + self._slack_s(), is_last=True)
            until_s = self.scheduler.now + tokens_s(rows, root, tasks_in(rows, queues))
            # Tasks that had to wait for tokens may have ended too late for the sweeps of their groups.
            while self.scheduler.now < until_s and (
                awaits_tokens(rows, queues) or are_groups_swept(rows, root)
            ):
                self.scheduler.now += tokens_s(rows, root, 0)  # as many as a burst
                self._live("third", queues, self.scheduler.now + self._slack_s(), is_last=True)
        except Stuck as reason:
            stuck = [*self._failures(), f"{reason}: {', '.join(self._running())} did not end"]
            return [f"aftermath: {text}" for text in stuck]
        stuck = [*self._failures(), *self._watching.violations, *self._late]
        stuck = stuck or [*self._left(queues), *self._unsound()]
        return [f"aftermath: {text}" for text in stuck]

    def _slack_s(self) -> float:
        return slack_s(self._watching.rows, self._registry.keys, self._watching.now_us())

    def _last_s(self, queues: Sequence[Contents]) -> float:
        """The virtual time of the last deadline."""
        now_us = self._watching.now_us()
        last_us = last_deadline_us(self._watching.rows, self._registry.keys, queues, now_us)
        return self.scheduler.now + (last_us - now_us) / 1_000_000

    def _failures(self) -> Iterator[str]:
        for task, error in self.scheduler.failures:
            yield f"{task.name} raised {error!r}"

    def _left(self, queues: Sequence[Contents]) -> Iterator[str]:
        watching = self._watching
        now_us, late_us = watching.now_us(), round((PROMPT_S + watching.swept_within_s) * 1_000_000)
        return left(watching.rows, self._registry.keys, queues, now_us, now_us - late_us)

    def _unsound(self) -> Iterator[str]:
        with Database(EmbeddedDatabase(self._store, self._runtime(Host("judge")))) as database:
            yield from told(verify(database, root=DEFAULT_ROOT))
            for queue in self._spaces:
                yield from told(verify(database, queue))

    def _live(self, name: str, queues: Sequence[Contents], until_s: float, *, is_last: bool) -> None:
        count = sharers(self._watching.rows, self._registry.keys, self._watching.now_us())
        self._watching.swept_within_s = count * limits.SWEEP_EVERY_S
        machine = Machine(
            self._runtime(Host(name)), Random(f"{self._seed} {name}"), NONE, self._trace, (), [self._watching]
        )

        def main() -> None:
            database = Database(FaultyDatabase(self._store, machine), machine.thread)
            Life(self._watching, self._registry, queues, until_s, is_last).run(database, self._late)
            database.close()

        self._trace.note(self.scheduler.now, name, "begins")
        self._tasks = machine.host.tasks
        self.scheduler.spawn(machine.host, main, name)
        self.scheduler.run(lambda: bool(self.scheduler.failures) or not self._running())
        if self.scheduler.failures:
            raise Stuck("a thread has failed")
        late_s = self.scheduler.now - until_s
        if late_s > limits.CLOSE_TIMEOUT_S:
            self._late.append(f"the {name} process has ended {late_s:.1f} s too late")

    def _running(self) -> list[str]:
        """The threads of the process that lives now, or has lived last."""
        return [task.name for task in self._tasks if not task.ended]
