"""A client of a soak: a database, values that no other client has, and the notes of its calls.

The notes are a history for each subject (fdbqueue/testing/history). These names of calls have a meaning for
the rules (rules.py):

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

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue.core.database import Database
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.seam import Transaction
from fdbqueue.testing.history import Recorder
from tests.system.soak.rules import Rule, Stored

SETUP = "setup.json"


@dataclass(frozen=True)
class Setup:
    """The options of a soak. All of its keys lie under `space`, so it needs no database of its own."""

    url: str
    subjects: tuple[str, ...]
    root: str = "soak"
    ttr_s: float = 2.0
    """Length of leases, and the age at which the lock of an element is broken."""
    session_ttr_s: float = 10.0
    wait_s: float = 0.2
    """The longest wait of a take; 0 lets no process stand in a line."""
    batch_max: int = 50

    @property
    def space(self) -> Subspace:
        return Subspace((self.root,))

    @property
    def queues(self) -> Subspace:
        """The root of the named queues, schedules and groups."""
        return self.space["root"]

    def effects(self, subject: str) -> Subspace:
        """Counts the effects of each value of a subject."""
        return self.space["effects"][subject]

    def write(self, directory: Path) -> None:
        (directory / SETUP).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> Self:
        found: dict[str, Any] = json.loads((directory / SETUP).read_text())
        return cls(**{**found, "subjects": tuple(found["subjects"])})


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
        effects = self.setup.effects(subject)
        for value in values:
            tr.add(effects[value].key(), ONE)

    def close(self) -> None:
        for recorder in self._recorders.values():
            recorder.close()


# Less than half, so that queues stay short and are empty now and then.
PUT_SHARE = 0.4
PAGE_ROWS = 500


class Subject(ABC):
    name: ClassVar[str]
    rules: ClassVar[Sequence[Rule]]
    has_order: ClassVar[bool] = True
    """True if the last client can put and take alone."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup

    @abstractmethod
    def prepare(self, db: Database) -> None:
        """Create the queue."""

    @abstractmethod
    def open(self, db: Database) -> None:
        """Make a handle for a process."""

    @abstractmethod
    def put(self, client: Client, count: int) -> None:
        """Put that many values."""

    @abstractmethod
    def take(self, client: Client, count: int) -> bool:
        """Take up to `count` values, and end them or not. False if there was none."""

    @abstractmethod
    def left(self, db: Database) -> list[str]:
        """The values that are there."""

    @abstractmethod
    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        """Each counter beside the number that a scan finds."""

    def totals(self, db: Database) -> Mapping[str, int]:  # noqa: ARG002
        """The number of puts and of acks that the queue counts, if it does."""
        return {}

    def findings(self, db: Database) -> Sequence[str]:  # noqa: ARG002
        """Contradictions of keys that do not lie under the root of the soak."""
        return ()

    def settle(self, client: Client) -> None:  # noqa: B027
        """End what no take ends, before the queue is drained."""

    def step(self, client: Client) -> None:
        """One step of a process: a put, or a take with the end of its values."""
        if client.random.random() < PUT_SHARE:
            self.put(client, client.batch())
        else:
            client.paced(lambda: self.take(client, client.batch()))

    def stored(self, db: Database, findings: Sequence[str]) -> Stored:
        """All that is stored of the subject. `findings`: those under its root."""
        left = self.left(db)
        effects = dict(effects_in(db, self.setup.effects(self.name)))
        told = [*findings, *self.findings(db)]
        return Stored(effects, left, self.counters(db, left), self.totals(db), told)


def effects_in(db: Database, effects: Any) -> Iterator[tuple[str, int]]:
    """The number of effects of each value, a bounded number of keys in each transaction."""
    begin, end = effects.range().start, effects.range().stop
    while rows := list(db.get_range(begin, end, limit=PAGE_ROWS)):
        for row in rows:
            yield effects.unpack(row.key)[0], int.from_bytes(row.value, "little")
        begin = bytes(rows[-1].key) + b"\x00"
