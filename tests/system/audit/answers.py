"""Answers: a take gives nothing only if no task was ready during the whole call, and returns at its timeout.

A task that is ready from before a call until after it was there at each version that the call may have read.
A kind with task keys may hold a ready task back, so the rule is for the other kinds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fdbqueue.core.limits import RETRY_DELAY_FIRST_S
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.stored.records import Record, id_text
from fdbqueue.testing.scheduler import EPOCH_S
from fdbqueue.testing.trace import Operation, Trace, longest_pause_s
from tests.system.audit.model import TaskStep

TAKE = "take"
"""The name of an operation that takes tasks; its result is empty if there was none."""
LATE_MAX_S = 1.0
"""A call may return so long after its timeout: its last look has a few round trips, and others go first. The
pauses before its retries come on top.
"""
AGAIN_MAX_S = 2 * RETRY_DELAY_FIRST_S
"""The pause before a retry after an old or a future version, and the reads up to the next such error."""
_CONFLICTS = ("refused: 1020", "refused: not_committed")
"""Outcomes of transactions that met another one, or a fault that tells so."""
_ERRORS_OF_VERSIONS = {("too_old",), ("future_version",)}
SKEW_S = 10.0
"""Clocks may be so far ahead that a task with a ttl has expired for one process, and not for another."""


def late_in(trace: Trace) -> Iterator[str]:
    """Check that calls return at their timeouts. For runs in which no process is slow."""
    for op in trace.operations:
        if op.timeout_s is not None and op.ended_s is not None:
            late_s = op.ended_s - op.began_s - op.timeout_s
            if late_s > LATE_MAX_S and late_s > LATE_MAX_S + _pauses_s(trace, op):
                yield f"{op.client} waited {late_s:.1f} s longer than its timeout of {op.timeout_s:g} s"


def _pauses_s(trace: Trace, op: Operation) -> float:
    """The longest pauses before the retries of a call: each conflict doubles the next one."""
    conflicts = sum(
        tr.who == op.client and tr.outcome in _CONFLICTS and op.began_s <= tr.at_s <= (op.ended_s or tr.at_s)
        for tr in trace.transactions
    )
    return sum(map(longest_pause_s, range(conflicts))) + AGAIN_MAX_S * _errors_of_versions(trace, op)


def _errors_of_versions(trace: Trace, op: Operation) -> int:
    return sum(
        who == op.client and kind == "fault" and details in _ERRORS_OF_VERSIONS
        for _, who, kind, details in trace.events[op.began : op.ended]
    )


@dataclass
class Span:
    """The events between which a task was ready."""

    record: Record
    began: int
    ended: int | None = None

    def covers(self, op: Operation) -> bool:
        assert op.ended is not None
        assert op.ended_s is not None
        expires_s = self.record.expires_us / 1_000_000 - EPOCH_S
        goes_on = self.ended is None or self.ended > op.ended
        return self.began <= op.began and goes_on and expires_s > op.ended_s + SKEW_S


@dataclass
class Ready:
    """The times at which the tasks of one queue were ready, while it was not paused."""

    paused: bytes
    """The key of the pause."""
    _spans: list[Span] = field(default_factory=list)
    _open: dict[bytes, Span] = field(default_factory=dict)
    _is_paused: bool = False

    def follow(self, step: TaskStep) -> None:
        event, pause = step.commit.event, step.changes.changes.get(self.paused)
        if pause is not None:
            self._is_paused = pause.after is not None
            self._close(list(self._open), event)
        self._close([id_ for id_ in step.moves if id_ in self._open], event)
        if self._is_paused:
            return
        come = step.written() if pause is None else step.after.values()
        for record in come:
            if record.state == TaskState.READY:
                self._open[record.id] = Span(record, event)
                self._spans.append(self._open[record.id])

    def _close(self, ids: list[bytes], event: int) -> None:
        for id_ in ids:
            self._open.pop(id_).ended = event

    def untrue_in(self, trace: Trace, name: str) -> Iterator[str]:
        """Check the takes of the queue that gave nothing."""
        for op in trace.of(name, TAKE):
            there = [] if op.result or not op.done else [span for span in self._spans if span.covers(op)]
            if there:
                yield f"{op.client} was told of nothing, and {id_text(there[0].record.id)} was ready"
