"""A client of a soak: a database, values that no other client has, and the notes of its calls.

The notes are a history for each subject (fdbqueue/testing/history). These names of calls have a meaning for
the rules (evidence.py):

    put      values                  they are there
    take     number at most          answers pairs of a value and the token of its lease
    dequeue  number at most          answers values, which have ended
    consume  number at most          the same; the transaction also stores an effect of each
    move     number at most          answers values, which are taken, and ready again in the same commit
    finish   pairs                   they have ended; the transaction also stores an effect of each
    ack      pairs                   they have ended
    renew    pairs                   their leases are held
    release  pairs                   they are ready again
"""

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.testing.history import Recorder
from tests.system.soak.setup import Setup

R = TypeVar("R")
NOTES = "notes"
ONE = (1).to_bytes(8, "little")
REFUSALS: tuple[type[Exception], ...] = (NotTaken, UnknownSession)


def as_noted(values: list[str]) -> list[str]:
    """The note of an answer that is a list of values."""
    return values


class Client:
    """One process of a soak. A `calm` client only puts, takes and ends: it drains the queues at the end."""

    def __init__(self, db: Database, setup: Setup, directory: Path, name: str, *, calm: bool = False) -> None:
        self.db, self.setup, self.name, self.calm = db, setup, name, calm
        self.random = random.Random(name)
        self._notes = directory / NOTES
        self._recorders: dict[str, Recorder] = {}
        self._count = 0
        self.most = setup.batch_max
        """The largest batch at present."""

    def values(self, count: int, key: str = "") -> list[str]:
        """New values of a key."""
        first, self._count = self._count, self._count + count
        behind = f"{key}/" if key else ""
        return [f"{behind}{self.name}.{number}" for number in range(first, first + count)]

    def batch(self) -> int:
        return min(self.most, self.random.choice((1, 1, 5, self.setup.batch_max)))

    def paced(self, step: Callable[[], R]) -> R:
        """Make a step. If it lasts for half a lease, batches become smaller: they would never end in time."""
        runtime = self.db.runtime
        began = runtime.monotonic()
        result = step()
        is_slow = runtime.monotonic() - began > self.setup.ttr_s / 2
        self.most = min(max(1, self.most // 2 if is_slow else self.most * 2), self.setup.batch_max)
        return result

    def wait_s(self) -> float:
        """The timeout of a take: most do not wait."""
        return 0.0 if self.calm else self.random.choice((0.0, 0.0, self.setup.wait_s))

    def chance(self, share: float) -> bool:
        """True with that probability; never for a calm client."""
        return not self.calm and self.random.random() < share

    def call(
        self,
        subject: str,
        name: str,
        argument: Any,
        function: Callable[[], R],
        *,
        shown: Callable[[R], Any] = lambda _: None,
        refusals: tuple[type[Exception], ...] = REFUSALS,
    ) -> R | None:
        """Call `function` and note it; None after a refusal. Raises: other errors of the function."""
        recorder = self._recorders.get(subject)
        if recorder is None:
            (self._notes / subject).mkdir(parents=True, exist_ok=True)
            recorder = self._recorders[subject] = Recorder(self._notes / subject, self.name)
        return recorder.call(name, argument, function, shown=shown, refusals=refusals)

    def effect(self, tr: Transaction, subject: str, values: Iterable[str]) -> None:
        """Count an effect of each value."""
        effects = self.setup.effects(subject)
        for value in values:
            tr.add(effects[value].key(), ONE)

    def close(self) -> None:
        for recorder in self._recorders.values():
            recorder.close()
