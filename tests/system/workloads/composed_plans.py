"""The transactions of the workload `composed`: calls about tasks and about the queue."""

from collections.abc import Sequence
from functools import partial

from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from tests.system.workloads.composed_verbs import TaskVerbs
from tests.system.workloads.notes import Op

PAGE = 5
MOST = 149
HUNDREDS = (*(("put_dozen",) * 5,) * 5, ("truncate_most",), ("truncate_most",))
"""Transactions that put 300 tasks, of which two are left: later tasks have indexes above 255."""

_ALWAYS: Sequence[tuple[str, ...]] = (
    ("put",),
    ("put",),
    ("put", "put"),
    ("take",),
    ("take",),
    ("take", "ack"),
    ("put", "take", "ack"),
    ("take", "put"),
    ("ack", "take"),
    ("ack",),
    ("release",),
    ("fail",),
    ("bury",),
    ("bury", "kick"),
    ("kick",),
    ("bury_id",),
    ("bury_id", "bury_id"),
    ("delete_id",),
    ("delete",),
    ("cancel_id",),
    ("renew",),
    ("pause",),
    ("pause", "put"),
    ("resume",),
    ("resume",),
    ("resume", "take"),
    ("truncate", "put"),
)
_TIMED: Sequence[tuple[str, ...]] = (
    ("touch",),
    ("take", "touch"),
    ("take",),
    ("take", "fail"),
    ("fail", "take"),
)
_EXACT: Sequence[tuple[str, ...]] = (
    ("statistics",),
    ("take", "statistics"),
    ("listing",),
    ("truncate_some",),
    ("truncate_some", "take"),
    ("release_all",),
    ("peek",),
)
PLANS = {True: (*_ALWAYS, *_TIMED), False: (*_ALWAYS, *_EXACT)}
"""Calls that go together, with times and without."""


class Attempt(TaskVerbs):
    """Calls about the queue, too."""

    def _kick(self, tr: Transaction, op: Op) -> None:
        op.count = self._random.choice((1, 2))
        op.number = self._q.kick(tr, op.count)
        op.told = self._listed(tr, "!")

    def _truncate(self, tr: Transaction, op: Op) -> None:
        self._q.truncate(tr)
        op.told = ""

    def _truncate_most(self, tr: Transaction, op: Op) -> None:
        op.verb, op.count = "truncate_some", MOST
        self._truncate_some(tr, op)

    def _truncate_some(self, tr: Transaction, op: Op) -> None:
        op.count = op.count or self._random.choice((1, 2))
        op.told = self._q.truncate_some(tr, op.count)

    def _release_all(self, tr: Transaction, op: Op) -> None:
        self._q.release_all(tr)
        op.told = ""

    def _pause(self, tr: Transaction, op: Op) -> None:
        self._q.pause(tr)
        op.told = True

    def _resume(self, tr: Transaction, op: Op) -> None:
        self._q.resume(tr)
        op.told = False

    def _statistics(self, tr: Transaction, op: Op) -> None:
        found = self._q.statistics(tr)
        op.told = {**found["tasks"], **{f"calls: {name}": n for name, n in found["calls"].items()}}

    def _listing(self, tr: Transaction, op: Op) -> None:
        op.told = {state: self._listed(tr, state) for state in "rt!~"}

    def _listed(self, tr: Transaction, state: str) -> list[str]:
        return [task.id for task in every_row(partial(self._q.tasks, tr, state, PAGE))]
