"""An engine that tells the options of each transaction, and may starve those of batch priority."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.pace import Wishes, with_wishes
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import FDBError
from fdbqueue.embedded.store import acquire_private
from fdbqueue.embedded.surface import Future, PendingFuture
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.embedded.transaction import Transaction
from tests.support import COMMIT_UNKNOWN

BATCH_THROTTLED = 1051


class Hasty(RealRuntime):
    """A runtime in which a wait for a future that nothing completes takes no time; its clock goes on."""

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.aging_s = 0.0
        """What each sleep takes, on top of its time."""

    def monotonic(self) -> float:  # type: ignore[override]
        return RealRuntime.monotonic() + self.waited_s

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.waited_s += seconds + self.aging_s

    def wait_any(self, futures: Iterable[Any], timeout_s: float | None) -> bool:
        waiting = list(futures)
        if not any(isinstance(future, NoAnswer) for future in waiting):
            return super().wait_any(waiting, timeout_s)
        assert timeout_s is not None, "this would wait for ever"
        self.waited_s += timeout_s
        return False


class NoAnswer(PendingFuture):
    """The read version of a transaction that the cluster holds back."""

    __slots__ = ()


@dataclass(frozen=True)
class Seen:
    """A commit."""

    thread: int
    priority: str
    tags: tuple[str, ...]
    timeout_ms: int
    retry_limit: int


@dataclass
class Cluster:
    """The state of the engine: what it has seen, and how it treats batch priority."""

    seen: list[Seen] = field(default_factory=list)
    is_squeezed: bool = False
    refusals: int = 0
    """The number of requests for a read version at batch priority that it refuses from now on (1051)."""
    failures: list[int] = field(default_factory=list)
    """The errors of the next commits."""
    unknown_done: int = 0
    """The number of the next commits that succeed with an unknown result (1021)."""

    def here(self) -> list[Seen]:
        """The commits of this thread."""
        return [one for one in self.seen if one.thread == threading.get_ident()]

    @contextmanager
    def watched(self) -> Iterator[list[Seen]]:
        """The commits of this thread in the block, as a list that is filled at its end."""
        before, found = len(self.here()), list[Seen]()
        yield found
        found += self.here()[before:]


class NotingDatabase(EmbeddedDatabase):
    starves = True

    def __init__(self, runtime: RealRuntime) -> None:
        super().__init__(acquire_private(runtime), runtime)
        self.cluster = Cluster()

    def create_transaction(self) -> "NotingTransaction":
        return NotingTransaction(self, self.cluster)


class NotingTransaction(Transaction):
    def __init__(self, database: NotingDatabase, cluster: Cluster) -> None:
        self._cluster = cluster
        super().__init__(database)

    def step_begin(self) -> None:
        super().step_begin()
        self._given: list[tuple[str, Any]] = []

    def step_option(self, name: str, param: Any) -> None:
        self._given.append((name, param))
        super().step_option(name, param)

    @property
    def _is_batch(self) -> bool:
        return ("priority_batch", None) in self._given

    def get_read_version(self) -> Future:
        if self._is_batch and self._cluster.is_squeezed:
            return NoAnswer(self._runtime)
        if self._is_batch and self._cluster.refusals:
            self._cluster.refusals -= 1
            return Future(None, FDBError(BATCH_THROTTLED))
        return super().get_read_version()

    def commit(self) -> Future:
        tags = tuple(param for name, param in self._given if name == "auto_throttle_tag")
        settings = self._settings
        self._cluster.seen.append(
            Seen(
                threading.get_ident(),
                "batch" if self._is_batch else "default",
                tags,
                settings.timeout_ms,
                settings.retry_limit,
            )
        )
        if self._cluster.failures:
            return Future(None, FDBError(self._cluster.failures.pop(0)))
        done = super().commit()
        if self._cluster.unknown_done:
            self._cluster.unknown_done -= 1
            return Future(None, FDBError(COMMIT_UNKNOWN))
        return done


def opened(wishes: Wishes | None = None) -> tuple[Database, Cluster, Hasty]:
    runtime = Hasty()
    engine = NotingDatabase(runtime)
    database = Database(engine, runtime, engine.close)
    with_wishes(database, wishes)
    return database, engine.cluster, runtime
