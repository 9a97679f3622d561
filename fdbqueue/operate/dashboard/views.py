"""Views: the frozen values that templates show, made from the values of the library without any I/O.

Numbers, times and spans stay numbers; the filters of the templates make texts of them. All texts from data
are visible and bounded here, and escaped by the templates. This module has the parts that pages share, the
list of queues and the page of a queue.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fdbqueue.core.task import EndedTask, Task
from fdbqueue.fleet.status import Presence
from fdbqueue.operate.dashboard.beside_views import BesideView, beside_view
from fdbqueue.operate.dashboard.findings import Finding, Level, Verdict, command, findings_of, verdict_of
from fdbqueue.operate.dashboard.looks import ENDED, STATES, QueueLook, Trend
from fdbqueue.operate.dashboard.texts import cell, one_line
from fdbqueue.operate.overview.figures import Figures, QueueFigures, TaskFigures
from fdbqueue.tasks.dead.reading import Redrive
from fdbqueue.tasks.key_statistics import KeyStatistics

NO_ERROR, OTHERS = "(no failure)", "(other classes)"


@dataclass(frozen=True, slots=True)
class QueueRow:
    name: str
    kind: str
    items: int
    unreadable: int
    tasks: TaskFigures | None
    """None for a queue without leases."""
    trend: Trend
    error: str | None

    findings: tuple[Finding, ...] = ()
    """The worst first."""
    partitions: int = 1
    fullest_items: int | None = None
    """Items of the fullest partition; None for a queue of tasks, or without partitions."""

    @property
    def level(self) -> Level:
        return self.findings[0].level if self.findings else Level.OK

    @property
    def word(self) -> str:
        if self.findings:
            return self.findings[0].word
        return "Fine" if self.items else "Idle"


@dataclass(frozen=True, slots=True)
class QueuesView:
    now: float
    rows: tuple[QueueRow, ...]
    workers: int
    is_whole: bool
    """False if only the first queues are shown."""
    totals: Mapping[str, int]
    """Tasks of all queues by state."""
    verdict: Verdict
    put_per_s: float | None
    """Of all queues; None before the second look."""
    done_per_s: float | None
    longest_s: float | None
    """The age of the oldest next task of a queue that is not paused; None if no task can be taken."""
    beside: BesideView


@dataclass(frozen=True, slots=True)
class TaskRow:
    id: str
    state: str
    data: str
    key: str
    pri: int
    attempts: int
    failures: int
    age_s: float
    until_s: float | None = None
    """Time until its lease or delay is over; negative if it is."""
    session: str | None = None
    fraction: float | None = None
    cancel_asked: bool = False
    ended_s: float | None = None
    """Time since it has ended."""


@dataclass(frozen=True, slots=True)
class KeyRow:
    key: str
    ready: int
    taken: int
    buried: int
    delayed: int
    oldest: str | None
    """The id of its first ready task."""
    oldest_age_s: float | None


@dataclass(frozen=True, slots=True)
class CallRow:
    session: str
    count: int
    left_s: float


@dataclass(frozen=True, slots=True)
class RunningRow:
    id: str
    queue: str
    for_s: float
    fraction: float | None
    cancelled: bool


@dataclass(frozen=True, slots=True)
class WorkerRow:
    host: str
    process_id: int
    handler: str
    threads: int
    queues: str
    up_s: float
    seen_s: float
    counts: Mapping[str, int]
    running: tuple[RunningRow, ...]


@dataclass(frozen=True, slots=True)
class RedriveView:
    state: str
    is_open: bool
    is_paused: bool
    moved: int
    left: int
    passed: int
    rate_per_s: float
    error: str | None
    text: str | None
    into: str | None
    age_s: float

    @property
    def fraction(self) -> float:
        looked = self.moved + self.passed
        return looked / (looked + self.left) if looked + self.left else 1.0


@dataclass(frozen=True, slots=True)
class StateTab:
    name: str
    count: int | None
    """None for a count that is not known."""
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class QueueView:
    now: float
    row: QueueRow
    options: tuple[tuple[str, str], ...]
    tabs: tuple[StateTab, ...]
    state: str
    tasks: tuple[TaskRow, ...]
    next: str | None
    after: str | None
    keys: tuple[KeyRow, ...]
    waiting: tuple[CallRow, ...]
    workers: tuple[WorkerRow, ...]
    redrive: RedriveView | None
    actions: tuple[str, ...]
    put_command: str
    """The commands that put a task, and start a worker."""
    work_command: str


def queues_view(figures: Figures, trend: Callable[[str], Trend]) -> QueuesView:
    rows = tuple(queue_row(queue, trend(queue.name)) for queue in figures.queues)
    counted = [row.tasks for row in rows if row.tasks is not None]
    totals = {state: sum(getattr(tasks, state) for tasks in counted) for state in STATES}
    rates = [row.trend.rates for row in rows if row.trend.rates is not None]
    beside = beside_view(figures)
    return QueuesView(
        figures.now,
        rows,
        figures.workers,
        figures.is_whole,
        totals,
        verdict_of(len(rows), [*(found for row in rows for found in row.findings), *beside.findings]),
        sum(rate.put for rate in rates) if rates else None,
        sum(rate.done for rate in rates) if rates else None,
        max(
            (one.next_age_s for one in counted if one.next_age_s is not None and not one.paused), default=None
        ),
        beside,
    )


def queue_row(queue: QueueFigures, trend: Trend) -> QueueRow:
    error = None if queue.error is None else one_line(queue.error)
    found = findings_of(queue, trend)
    row = QueueRow(queue.name, queue.kind, queue.items, queue.unreadable, queue.tasks, trend, error, found)
    return replace(row, partitions=queue.partitions, fullest_items=queue.fullest_items)


def queue_view(look: QueueLook, trend: Trend, after: str | None) -> QueueView:
    row = queue_row(look.figures, trend)
    ended = tuple(ended_row(task, look.now) for task in look.ended)
    return QueueView(
        look.now,
        row,
        tuple(
            (name, value if isinstance(value, str) else cell(value))
            for name, value in look.options.items()
            if value is not None
        ),
        _tabs(row.tasks, look),
        look.state,
        ended or tuple(task_row(task, look.now) for task in look.tasks),
        look.next,
        after,
        tuple(_key_row(key) for key in look.keys),
        tuple(CallRow(call.session, call.count, call.until - look.now) for call in look.waiting),
        tuple(worker_row(worker, look.now, row.name) for worker in look.workers),
        redrive_view(look.redrive, look.now),
        _queue_actions(row.tasks),
        command("put", row.name, '{"to": "ada@example.com"}'),
        command("work", row.name, "MODULE:FUNCTION"),
    )


def _tabs(tasks: TaskFigures | None, look: QueueLook) -> tuple[StateTab, ...]:
    if tasks is None:
        return ()
    tabs = tuple(StateTab(name, getattr(tasks, name), name == look.state) for name in STATES)
    return (*tabs, StateTab(ENDED, None, look.state == ENDED)) if look.keeps_ended else tabs


def _queue_actions(tasks: TaskFigures | None) -> tuple[str, ...]:
    if tasks is None:
        return ()
    turn = "resume" if tasks.paused else "pause"
    return (turn, "kick") if tasks.buried else (turn,)


def task_row(task: Task, now: float) -> TaskRow:
    return TaskRow(
        id=task.id,
        state=task.state.name.lower(),
        data=cell(task.data),
        key="" if task.key is None else cell(task.key),
        pri=task.pri,
        attempts=task.attempts,
        failures=task.failures,
        age_s=now - task.created,
        until_s=None if task.until is None else task.until - now,
        session=task.session,
        fraction=task.fraction,
        cancel_asked=task.cancel_asked is not None,
    )


def ended_row(task: EndedTask, now: float) -> TaskRow:
    return TaskRow(
        id=task.id,
        state=task.outcome,
        data="",
        key="" if task.key is None else cell(task.key),
        pri=task.pri,
        attempts=task.attempts,
        failures=task.failures,
        age_s=now - task.created,
        session=task.session,
        ended_s=now - task.ended,
    )


def _key_row(found: KeyStatistics) -> KeyRow:
    oldest = found.oldest
    return KeyRow(
        cell(found.key),
        found.ready,
        found.taken,
        found.buried,
        found.delayed,
        None if oldest is None else oldest.id,
        None if oldest is None else oldest.age_s,
    )


def worker_row(worker: Presence, now: float, queue: str) -> WorkerRow:
    more = f" and {worker.more_queues} more" if worker.more_queues else ""
    tally = worker.tally
    late_s = now - worker.seen
    return WorkerRow(
        one_line(worker.host),
        worker.process_id,
        one_line(worker.handler),
        worker.threads,
        cell(", ".join(worker.queues)) + more,
        now - worker.since,
        late_s,
        {"done": tally.done, "failed": tally.failed, "buried": tally.buried, "lost": tally.lost},
        tuple(
            RunningRow(one.id, one.queue, one.for_s + late_s, one.fraction, one.cancelled)
            for one in worker.running
            if one.queue == queue
        ),
    )


def redrive_view(found: Redrive | None, now: float) -> RedriveView | None:
    if found is None:
        return None
    return RedriveView(
        found.state.value,
        found.is_open,
        found.state.value == "paused",
        found.moved,
        found.left,
        found.passed,
        found.rate_per_s,
        None if found.error is None else one_line(found.error) or NO_ERROR,
        None if found.text is None else one_line(found.text),
        None if found.into is None else one_line(found.into),
        now - found.began,
    )
