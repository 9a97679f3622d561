"""Views: what templates show beside the values of the library, without any I/O.

A template has figures, tasks and workers as the library gives them. Its filters make texts of them: numbers,
times and spans short, texts from data visible and bounded. The templates escape all of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core.limits import EDITED_BYTES_MAX
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.core.visible import visible, visible_json
from fdbqueue.operate.dashboard.beside_views import BesideView, beside_view
from fdbqueue.operate.dashboard.findings import Finding, Level, Verdict, findings_of, verdict_of
from fdbqueue.operate.dashboard.looks import ENDED, STATES, DeadLook, QueueLook, TaskLook, Trend
from fdbqueue.operate.dashboard.texts import PayloadText, json_of, payload_text
from fdbqueue.operate.overview.figures import Figures, QueueFigures, TaskFigures

TASK_ACTIONS = {
    TaskState.READY: ("bury", "cancel", "delete"),
    TaskState.DELAYED: ("bury", "cancel", "delete"),
    TaskState.TAKEN: ("cancel", "bury", "delete"),
    TaskState.BURIED: ("kick", "delete"),
}


@dataclass(frozen=True, slots=True)
class QueueRow:
    queue: QueueFigures
    trend: Trend
    findings: tuple[Finding, ...] = ()
    """The worst first."""

    @property
    def level(self) -> Level:
        return self.findings[0].level if self.findings else Level.OK

    @property
    def word(self) -> str:
        if self.findings:
            return self.findings[0].word
        return "Fine" if self.queue.items else "Idle"


def queue_row(queue: QueueFigures, trend: Trend) -> QueueRow:
    return QueueRow(queue, trend, findings_of(queue, trend))


@dataclass(frozen=True, slots=True)
class QueuesView:
    figures: Figures
    rows: tuple[QueueRow, ...]
    totals: Mapping[str, int]
    """Tasks of all queues by state."""
    verdict: Verdict
    put_per_s: float | None
    """Of all queues; None before the second look."""
    done_per_s: float | None
    longest_s: float | None
    """The age of the oldest next task of a queue that is not paused; None if no task can be taken."""
    beside: BesideView


def queues_view(figures: Figures, trend: Callable[[str], Trend]) -> QueuesView:
    rows = tuple(queue_row(queue, trend(queue.name)) for queue in figures.queues)
    counted = [queue.tasks for queue in figures.queues if queue.tasks is not None]
    rates = [row.trend.rates for row in rows if row.trend.rates is not None]
    ages = (one.next_age_s for one in counted if one.next_age_s is not None and not one.paused)
    beside = beside_view(figures)
    return QueuesView(
        figures,
        rows,
        {state: sum(getattr(tasks, state) for tasks in counted) for state in STATES},
        verdict_of(len(rows), [*(found for row in rows for found in row.findings), *beside.findings]),
        sum(rate.put for rate in rates) if rates else None,
        sum(rate.done for rate in rates) if rates else None,
        max(ages, default=None),
        beside,
    )


@dataclass(frozen=True, slots=True)
class QueueView:
    look: QueueLook
    row: QueueRow
    after: str | None
    """The place behind which this page of tasks begins."""
    tabs: tuple[tuple[str, int | None], ...]
    """The states, each with the number of its tasks, if that is known."""
    actions: tuple[str, ...]


def queue_view(look: QueueLook, trend: Trend, after: str | None) -> QueueView:
    tasks = look.figures.tasks
    row, tabs = queue_row(look.figures, trend), () if tasks is None else _tabs(tasks, look)
    return QueueView(look, row, after, tabs, () if tasks is None else _actions(tasks))


def _tabs(tasks: TaskFigures, look: QueueLook) -> tuple[tuple[str, int | None], ...]:
    tabs = tuple((name, getattr(tasks, name)) for name in STATES)
    return (*tabs, (ENDED, None)) if look.keeps_ended else tabs


def _actions(tasks: TaskFigures) -> tuple[str, ...]:
    turn = "resume" if tasks.paused else "pause"
    return (turn, "kick") if tasks.buried else (turn,)


@dataclass(frozen=True, slots=True)
class Fact:
    """A time in the life of a task: put, taken, a failed attempt, end of its lease."""

    name: str
    at: float
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class TaskView:
    look: TaskLook
    life: tuple[Fact, ...]
    """The earliest first."""
    payload: PayloadText | None = None
    """None for a task that has ended."""
    actions: tuple[str, ...] = ()
    editable: str | None = None
    """The whole payload for the form that edits it; None if the task is not buried, or cannot be edited."""


def task_view(look: TaskLook) -> TaskView:
    if look.explanation is None:
        assert look.ended is not None  # a TaskLook has one of both
        times = {"put": look.ended.created, "taken": look.ended.taken, "ended": look.ended.ended}
        return TaskView(look, _life(times, ()))
    task = look.explanation.task
    life, actions = _life(_times(task), look.failures), TASK_ACTIONS[task.state]
    return TaskView(look, life, payload_text(task.data), actions, editable(task, look.options))


def _times(task: Task) -> dict[str, float | None]:
    until = {TaskState.TAKEN: "end of lease", TaskState.DELAYED: "due"}.get(task.state, "until")
    return {
        "put": task.created,
        "taken": task.taken,
        until: task.until,
        "expires": task.expires,
        "cancel asked": task.cancel_asked,
        "progress told": task.fraction_told,
    }


def _life(times: Mapping[str, float | None], failures: Sequence[Failure]) -> tuple[Fact, ...]:
    known = [Fact(name, at) for name, at in times.items() if at is not None]
    failed = [
        Fact(f"attempt {one.attempt}: {one.error}, {one.outcome}", one.when, is_failure=True)
        for one in failures
    ]
    return tuple(sorted(known + failed, key=lambda fact: fact.at))


def editable(task: Task, options: Mapping[str, Any]) -> str | None:
    """The data of a buried task as the text that `edited` makes data of again."""
    if task.state != TaskState.BURIED or isinstance(task.data, Unreadable):
        return None
    text = _decoded(task.data) if options.get("codec") == "bytes" else _json(task.data)
    return text if text is not None and len(text.encode()) <= EDITED_BYTES_MAX else None


def _json(data: Any) -> str | None:
    """The data as lines of JSON, with escapes for the characters that cannot be seen."""
    text = json_of(data)
    return None if text is None else "\n".join(map(visible_json, text.split("\n")))


def _decoded(data: bytes) -> str | None:
    """The text, if it is visible, so that a form brings it back unchanged."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if visible(text, keep="\n\t") == text else None


@dataclass(frozen=True, slots=True)
class DeadView:
    look: DeadLook
    error: str | None
    """The chosen class."""
    text: str | None
    after: str | None
