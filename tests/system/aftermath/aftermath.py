"""The aftermath of a run: faults have stopped, and the dead stay dead. Does all go on that can go on?

It begins from the keys of one moment of the run, in the same engine, with a scheduler and processes of its
own: the run itself is as it would be without. The processes follow each other:

- in half of the runs, the first lives from that moment on for FIRST_S, beside leases, sessions and requests
  of the dead that are not over yet;
- the second lives until all of these are over, and all that they held has been taken (bounds.py);
- under limits of starts, others follow while tasks are left that wait for tokens, or groups for sweeps.

Each waits in every queue for entries, and finishes those that it gets; it waits for groups, tasks and room;
and its keeper sweeps. None puts anything, but into a full queue: nothing but the promised sweeps and bells
wakes a wait. At the end a take finds nothing, a scan agrees (left.py), a verification finds nothing, and no
thread is left.
"""

from collections.abc import Iterator, Sequence
from random import Random

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.operate.verify.verify import AnyQueue, verify
from fdbqueue.testing.engine import NONE, FaultyDatabase, Machine
from fdbqueue.testing.scheduler import Host, Scheduler, SimulatedRuntime, Stuck, Task
from fdbqueue.testing.trace import Trace, told
from tests.system.aftermath.bounds import (
    are_groups_swept,
    last_deadline_us,
    sharers,
    slack_s,
    tasks_in,
    tokens_s,
)
from tests.system.aftermath.contents import Contents, contents_of
from tests.system.aftermath.left import left
from tests.system.aftermath.life import Life, awaits_tokens
from tests.system.aftermath.moment import Moment
from tests.system.aftermath.watching import PROMPT_S, Watching
from tests.system.audit.mirror import Mirror

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
        self._skew_s = moment.skew_s
        self.scheduler = Scheduler(Random(f"{seed} schedule of the aftermath"), POINTS_MAX)
        self.scheduler.now = moment.at_s
        store.runtime = self._runtime(Host("engine"))
        self._registry = Registry(DEFAULT_ROOT)
        self._restore(moment)
        self._watching = Watching(self.scheduler, moment.skew_s, Mirror.holding(moment.rows))
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
        """Run one process to its end."""
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
