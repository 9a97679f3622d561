"""Ready tasks as the offers of a source. Fair items and tasks share it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from fdbqueue import tasks as late
from fdbqueue.core.line.decision import Offer
from fdbqueue.core.seam import Transaction, Value
from fdbqueue.core.unreadable import Passed
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.discipline import Fifo
from fdbqueue.tasks.stored.records import Record, record_to_bytes

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.state import Gate


class Ready:
    def __init__(self, shape: Shape, passed: Passed) -> None:
        self._task = shape.keys.task
        self._discipline = shape.discipline
        self._mender = shape.mender
        self._claims = getattr(type(shape.discipline), "claim", None) is not Fifo.claim
        """True if a take depends on more than its tasks."""
        self._passed = passed

    def ask(
        self,
        tr: Transaction,
        limit: int,
        now_us: int,
        paused: Value | None = None,
        gate: "Gate | None" = None,
    ) -> Iterator[Offer]:
        """Ask, by snapshot, for the first ready tasks; at most `limit`, and none if `paused` is present.

        It skips expired tasks, and those that `gate` does not let through; None for a queue without limits.
        If too few are left, a sweep finds more.
        """
        # A copy: another thread may note a task meanwhile, for which the reply has no room.
        passed = {*self._passed}
        limit_read = limit + len(passed)
        found = (
            self._first(tr, limit_read, gate) if gate is not None else self._discipline.first(tr, limit_read)
        )
        return islice(self._offers(tr, found, passed, limit_read, now_us, paused, gate), limit)

    def _first(self, tr: Transaction, limit: int, gate: "Gate | None" = None) -> Iterable[Record]:
        if gate is None:
            return self._discipline.first(tr, limit)
        return late.limited.first(self._discipline, tr, limit, gate)

    def _offers(
        self,
        tr: Transaction,
        found: Iterable[Record],
        passed: Collection[bytes],
        limit: int,
        now_us: int,
        paused: Value | None,
        gate: "Gate | None",
    ) -> Iterator[Offer]:
        if (paused is not None and paused.present()) or (gate is not None and gate.is_shut):
            return
        seen: set[bytes] = set()
        while True:
            removed = self._mender.removed
            for record in found:
                if record.expires_us <= now_us or record.id in passed or record.id in seen:
                    continue
                if gate is None or late.limited.passes(gate, record):
                    seen.add(record.id)
                    value = record_to_bytes(record)
                    yield Offer(record.id, value, record.size_bytes, record.key, gate, record)
            if self._mender.removed == removed:
                return
            found = self._first(tr, limit, gate)  # mending set entries aside: read the ones behind them

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        """Conflicts: every change of the offered tasks."""
        self.rely_on(tr, [offer.item for offer in offers])

    def rely_on(self, tr: Transaction, records: Sequence[Record]) -> None:
        """Conflicts: every change of these ready tasks."""
        for record in records:
            tr.add_read_conflict_key(self._task(record.id))
        if self._claims:
            self._discipline.claim(tr, records)

    def require_none_passed(self, tr: Transaction, paused: Value | None = None) -> None:
        """Raise the error of the first ready task that was passed over. Reads the first ones by snapshot."""
        if self._passed and not (paused is not None and paused.present()):
            self._passed.require_none_of(self.head(tr, 1 + len(self._passed)))

    def head(self, tr: Transaction, count: int) -> Iterator[bytes]:
        """The ids of the first ready tasks. Reads: by snapshot."""
        return (record.id for record in self._first(tr, count))
