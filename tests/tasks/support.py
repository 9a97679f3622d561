"""Task queues on a clock set by hand: nothing happens in the background, waiting moves the clock."""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from fdbqueue import Database, Session, TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.limits import RANDOM_SUFFIX_BYTES
from fdbqueue.core.line.decision import Look, Reason, Ticket
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Thread, Waitable
from fdbqueue.core.sessions.keeper import Keeper, keeper_of
from fdbqueue.tasks.calls import calls_of
from fdbqueue.tasks.edges import Lease
from fdbqueue.tasks.source import params_of
from tests.queue_support import registered
from tests.support import IdleThread, ManualClock

LONG_S = 1e9


class StillClock(ManualClock):
    """Threads of the keeper do not start, and a wait that nothing ends is over at once, on this clock."""

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        return IdleThread() if name == "fdbqueue-keeper" else super().spawn(target, name)

    def wait_any(self, futures: Iterable[Waitable], timeout_s: float | None) -> bool:
        if any(future.is_ready() or self._answers(future) for future in futures):
            return True
        assert timeout_s is not None, "nobody else is there to end this wait"
        self.advance(timeout_s)
        return False

    def _answers(self, future: Waitable) -> bool:
        """Wait for a read version of a cluster: it comes in real time, while this clock stands still."""
        binding = sys.modules.get("fdb.impl")
        if binding is None or not isinstance(future, binding.FutureInt64):
            return False
        future.block_until_ready()
        return True


class Bench:
    """One queue, one long session, one clock."""

    def __init__(self, db: Database, clock: StillClock, kind: str, **options: Any) -> None:
        self.db = db
        self.clock = clock
        self.queue = TaskQueue.create(db, "bench", kind, **options)
        self.session = Session(db, ttr=LONG_S)

    def put(self, data: Any = None, **options: Any) -> str:
        return self.queue.put(self.db, data, **options).id

    def take(self, timeout: float = 0) -> Any:
        return self.queue.take(self.db, timeout, session=self.session)

    def taken_data(self) -> list[Any]:
        """What all takes give that give something."""
        return [task.data for task in iter(self.take, None)]

    def sweep(self) -> None:
        keeper(self.db).tick()

    def state(self, id_: str) -> str:
        return self.queue.peek(self.db, id_).state.value

    def counts(self, *names: str) -> tuple[int, ...]:
        """Those of the statistics that are named: tasks in a state, or calls."""
        found = self.queue.statistics(self.db)
        return tuple((found["tasks"] | found["calls"])[name] for name in names)

    def stored(self) -> list[tuple[bytes, bytes]]:
        return [(bytes(row.key), bytes(row.value)) for row in self.db.get_range(b"", b"\xff")]

    def contents(self) -> list[tuple[bytes, bytes]]:
        """The stored tasks, in any state."""
        under = self.queue._shape.keys.contents
        return [row for row in self.stored() if under.start <= row[0] < under.stop]


def keeper(db: Database) -> Keeper:
    return keeper_of(db, RootKeys(DEFAULT_ROOT))


MakeBench = Callable[..., Bench]
SetLimits = Callable[..., None]
"""Sets fields of fdbqueue.core.limits for the time of a test."""


class Relay:
    """Two requests in the line: the first one serves, and delivers a task to the second one."""

    def __init__(self, b: Bench, owner: Session | None = None) -> None:
        self._b, self._line = b, calls_of(b.db, b.queue._shape).source.line
        self._server, self._owner = (self._joined(rid, of) for rid, of in ((b"1", None), (b"2", owner)))

    def _joined(self, rid: bytes, session: Session | None) -> Ticket:
        params, now_us = (
            params_of(Lease((session or self._b.session).id, b"its token")),
            self._b.clock.now_us(),
        )
        return registered(self._b.db, self._line, rid * RANDOM_SUFFIX_BYTES, now_us, params=params)

    def serve(self) -> None:
        self._look(self._server, Reason.SIGNAL)

    def collect(self) -> list[Any]:
        """The data of the tasks that the second one gets."""
        return [task.data for task in self._look(self._owner)]

    def _look(self, ticket: Ticket, *reason: Reason) -> Any:
        look = Look(self._b.clock.now_us(), *reason)
        return run(self._b.db, lambda tr: self._line.look(tr, ticket, look)).answers
