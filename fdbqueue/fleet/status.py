"""Status: the running tasks and the counts of a worker, and the exact counts of a fleet."""

from dataclasses import dataclass
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.error_root import heals
from fdbqueue.core.logger import logger
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.runs import ENDS
from fdbqueue.core.sessions.session import Session
from fdbqueue.fleet.outcomes import troubles
from fdbqueue.tasks.records.statistics import unpacked


@dataclass(frozen=True)
class Running:
    id: str
    queue: str
    for_s: float
    cancelled: bool = False
    """True if the task was cancelled, and the worker knows it."""
    fraction: float | None = None
    """The progress that its handler has told."""


@dataclass(frozen=True)
class Tally:
    done: int = 0
    failed: int = 0
    """Attempts that failed; the task was released, to be tried again."""
    buried: int = 0
    lost: int = 0
    """Attempts that lost their lease before their outcome."""
    snoozed: int = 0
    """Attempts in which the handler put the task off, without a failure."""
    cancelled: int = 0
    """Attempts that ended with their task, because it was cancelled."""

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.done + other.done,
            self.failed + other.failed,
            self.buried + other.buried,
            self.lost + other.lost,
            self.snoozed + other.snoozed,
            self.cancelled + other.cancelled,
        )

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.buried + self.lost + self.snoozed + self.cancelled


@dataclass(frozen=True)
class WorkerStatus:
    state: str
    """"working", "stopping" or "ended"."""
    tally: Tally
    running: tuple[Running, ...]
    overrun: int
    """Number of threads that were given up, as a handler ran longer than `timeout_s`."""


_log = logger("fdbqueue.fleet")


class Run:
    """A session of the supervisor; its end removes the run's row of exact counts (fdbqueue/core/runs.py)."""

    def __init__(self, database: Database, root: Any) -> None:
        self._database = database
        self._keys = RootKeys(root)
        self._session = Session(database, ttr=limits.RUN_TTR_S, root=root)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._session.end_within(limits.CLOSE_TIMEOUT_S)
        except troubles() as error:
            if heals(error):
                _log.warning(
                    "the counts of this run stay in the database for %.0f s: %s", limits.RUN_TTR_S, error
                )

    @property
    def id(self) -> bytes:
        return self._session.id

    def tally(self, timeout_s: float) -> Tally | None:
        """The exact counts, in 1 round trip; None if the supervisor's session was lost, and so the row."""
        value = run(self._database, self._read, timeout_s=timeout_s)
        return None if self._session.lost else Tally(**unpacked(ENDS, value))

    def _read(self, tr: Any) -> bytes | None:
        alive, row = tr.snapshot.get(self._keys.session(self.id)), tr.snapshot.get(self._keys.run(self.id))
        self._session.lost |= not alive.present()
        value: bytes | None = row.value
        return value
