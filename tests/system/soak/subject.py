"""The interface of a subject: one kind of queue, the calls that clients make on it, and its rules."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fdbqueue.core.database import Database
from tests.system.soak.client import Client
from tests.system.soak.evidence import Stored
from tests.system.soak.rules import Rule
from tests.system.soak.setup import Setup

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
