"""The checks of lanes: each lane with ready tasks is open, and each open lane is one of the queue."""

from collections.abc import Iterator
from functools import partial

from fdbqueue.disciplines.lanes import OPEN, UNNAMED, Lanes
from fdbqueue.records.keys import Record
from fdbqueue.seam import Transaction
from fdbqueue.tasks.shape import Shape
from fdbqueue.verification import Flaw
from fdbqueue.verifying.asking import Ask, Row, Seen
from fdbqueue.verifying.cures import FOREIGN
from fdbqueue.verifying.partitions import expect_ready
from fdbqueue.verifying.slices import Suspect


class LaneChecks:
    def __init__(self, shape: Shape, lanes: Lanes, mending: str) -> None:
        self._shape = shape
        self._lanes = lanes
        self._mending = mending

    # A ready task, and the open key of its lane.

    def ask_ready(self, rest: bytes) -> Iterator[Ask]:
        if self._lanes.is_lane(rest[:1]):
            yield self._lanes.open_key(rest[:1])

    def judge_ready(self, row: Row, rest: bytes, seen: Seen) -> Iterator[Suspect]:
        lane = rest[:1]
        if self._lanes.is_lane(lane) and seen.value(self._lanes.open_key(lane)) is None:
            names = ", ".join(map(repr, self._lanes.names_of(lane)))
            text = f"A ready task waits in the lane of {names}, which is not open: no take finds it."
            yield Suspect(Flaw.STATE, row.key, text, self._mending, partial(self._open, lane))

    def open_for(self, tr: Transaction, record: Record) -> None:
        """Open the lane of a task that is ready by a mending."""
        self._open(self._lanes.lane(record), tr)

    def _open(self, lane: bytes, tr: Transaction) -> None:
        if lane != UNNAMED:
            tr.set(self._lanes.open_key(lane), b"")
        expect_ready(tr, self._shape)

    # An open key.

    def ask_open(self, _: Row, __: bytes) -> Iterator[Ask]:
        return iter(())

    def judge_open(self, row: Row, rest: bytes, _: Seen) -> Iterator[Suspect]:
        if not rest.startswith(OPEN) or not self._lanes.is_lane(rest[len(OPEN) :]):
            yield Suspect(Flaw.UNKNOWN, row.key, "No key of a lane has this shape.", FOREIGN)
