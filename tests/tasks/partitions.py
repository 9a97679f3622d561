"""A queue with partitions on any engine, on a clock set by hand."""

from collections.abc import Callable
from typing import Any

from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.partitions import Plan, home_of
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.records import id_text
from tests.tasks.support import LONG_S, Bench, StillClock


class PartitionsBench(Bench):
    """A bench below a root of its own."""

    def __init__(self, db: Database, clock: StillClock, root: Any, kind: str, options: Any) -> None:
        self.db = db
        self.clock = clock
        self.root = root
        self.queue = TaskQueue.create(db, "bench", kind, root=root, **options)
        self.session = Session(db, ttr=LONG_S, root=root)
        self.keyed = self.queue._shape.kind.supports("key")

    def put_each(self, numbers: Any) -> list[str]:
        """Put tasks, each with a task key of its own where the kind has keys."""
        return [self.put(n, **({"key": n} if self.keyed else {})) for n in numbers]

    def settle(self) -> None:
        """Let the keeper go on for a while."""
        for _ in range(9):
            self.clock.advance(limits.SWEEP_EVERY_S)
            self._tick()

    def _tick(self) -> None:
        """A keeper tries again what the database has not answered in time."""
        keeper = keeper_of(self.db, self.queue._shape.root)
        for last in (False, False, True):
            try:
                keeper.tick()
                return
            except engine_errors():
                if last:
                    raise

    def repartition(self, count: int) -> Any:
        return self.queue.repartition(self.db, count)

    def plan(self) -> Plan | None:
        return calls_of(self.db, self.queue._shape).parts.plan

    def places(self, db: Database | None = None) -> dict[str, int]:
        """The partition of each stored task, by the plan that calls on `db` know."""
        found = {}
        for source in calls_of(db or self.db, self.queue._shape).parts.holding():
            keys = source.shape.keys
            for row in self.db.get_range(keys.tasks.start, keys.tasks.stop):
                found[id_text(bytes(row.key)[len(keys.tasks.start) :])] = keys.partition
        return found

    def contents(self) -> dict[bytes, bytes]:
        """Every key of the queue."""
        return {bytes(row.key): row.value for row in self.db.get_range_startswith(self.queue.contents.key())}

    def other_process(self) -> TaskQueue:
        """The queue as another process has opened it."""
        return TaskQueue.open(Database(self.db.engine, self.clock), "bench", root=self.root)


MakeParted = Callable[..., PartitionsBench]


def moving_key(before: int, after: int) -> int:
    """A task key that lies in another partition of `after` than of `before`."""
    return next(n for n in range(99) if home_of(key_bytes(n), before) != home_of(key_bytes(n), after))
