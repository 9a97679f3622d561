"""Views of one task: its life, data and failures, and why it is not running; and of dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core.explanation import Reason
from fdbqueue.core.limits import EDITED_BYTES_MAX
from fdbqueue.core.task import EndedTask, Failure, Holder, Task, TaskState
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.core.visible import visible, visible_json
from fdbqueue.operate.dashboard.looks import DeadLook, TaskLook
from fdbqueue.operate.dashboard.texts import PayloadText, cell, json_of, lines, one_line, payload_text
from fdbqueue.operate.dashboard.views import (
    NO_ERROR,
    OTHERS,
    RedriveView,
    TaskRow,
    ended_row,
    redrive_view,
    task_row,
)
from fdbqueue.tasks.dead.reading import FailureClass

TASK_ACTIONS = {
    TaskState.READY: ("bury", "cancel", "delete"),
    TaskState.DELAYED: ("bury", "cancel", "delete"),
    TaskState.TAKEN: ("cancel", "bury", "delete"),
    TaskState.BURIED: ("kick", "delete"),
}


@dataclass(frozen=True, slots=True)
class FailureView:
    error: str
    message: str
    detail: str
    """A traceback, with its line breaks."""
    worker: str
    outcome: str
    attempt: int
    when: float
    age_s: float


@dataclass(frozen=True, slots=True)
class ReasonView:
    why: str
    text: str
    cure: str
    in_s: float | None
    """Time until the event that ends it."""


@dataclass(frozen=True, slots=True)
class HolderView:
    session: str
    name: str | None
    processes: tuple[str, ...]
    seen_s: float | None
    """Time since its last heartbeat; None if it has ended."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A time in the life of a task: put, taken, a failed attempt, end of its lease."""

    name: str
    at: float
    age_s: float
    """Negative for a time to come."""
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class TaskView:
    queue: str
    id: str
    now: float
    row: TaskRow
    life: tuple[Fact, ...]
    """The earliest first."""
    payload: PayloadText | None
    """None for a task that has ended."""
    reasons: tuple[ReasonView, ...]
    holder: HolderView | None
    failures: tuple[FailureView, ...]
    """The latest first."""
    actions: tuple[str, ...]
    editable: str | None
    """The whole payload for the form that edits it; None if the task is not buried, or cannot be edited."""
    outcome: str | None = None
    """Of a task that has ended."""
    headers: tuple[tuple[str, str], ...] = ()
    unique: str = ""
    """The unique key; empty without one."""
    groups: tuple[str, ...] = ()
    """The groups that count it."""
    steps: tuple[str, ...] = ()


def task_view(look: TaskLook) -> TaskView:
    if look.explanation is None:
        assert look.ended is not None  # a TaskLook has one of both
        return _ended_view(look, look.ended)
    found, task = look.explanation, look.explanation.task
    return TaskView(
        look.queue,
        task.id,
        look.now,
        task_row(task, look.now),
        _life(_times(task), look.failures, look.now),
        payload_text(task.data),
        tuple(_reason(reason, look.now) for reason in found.reasons),
        _holder(found.holder, look.now),
        tuple(_failure(failure, look.now) for failure in reversed(look.failures)),
        TASK_ACTIONS[task.state],
        editable(task, look.options),
        headers=tuple((one_line(name), one_line(text)) for name, text in task.headers.items()),
        unique="" if task.unique is None else cell(task.unique),
        groups=task.groups,
        steps=tuple(map(one_line, look.steps)),
    )


def _ended_view(look: TaskLook, ended: EndedTask) -> TaskView:
    times = {"put": ended.created, "taken": ended.taken, "ended": ended.ended}
    row, life = ended_row(ended, look.now), _life(times, (), look.now)
    return TaskView(look.queue, ended.id, look.now, row, life, None, (), None, (), (), None, ended.outcome)


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


def _life(times: Mapping[str, float | None], failures: Sequence[Failure], now: float) -> tuple[Fact, ...]:
    known = [Fact(name, at, now - at) for name, at in times.items() if at is not None]
    failed = [Fact(_told(failure), failure.when, now - failure.when, is_failure=True) for failure in failures]
    return tuple(sorted(known + failed, key=lambda fact: fact.at))


def _told(failure: Failure) -> str:
    return one_line(f"attempt {failure.attempt}: {failure.error}, {failure.outcome}")


def _reason(reason: Reason, now: float) -> ReasonView:
    in_s = None if reason.at is None else max(0.0, reason.at - now)
    return ReasonView(reason.why.value, one_line(reason.text), one_line(reason.cure), in_s)


def _holder(holder: Holder | None, now: float) -> HolderView | None:
    if holder is None:
        return None
    return HolderView(
        holder.session,
        None if holder.name is None else one_line(holder.name),
        tuple(f"{one_line(process.host)}:{process.process_id}" for process in holder.processes),
        None if holder.seen is None else now - holder.seen,
    )


def _failure(failure: Failure, now: float) -> FailureView:
    return FailureView(
        one_line(failure.error),
        one_line(failure.message),
        lines(failure.detail),
        one_line(failure.worker),
        one_line(failure.outcome),
        failure.attempt,
        failure.when,
        now - failure.when,
    )


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
class ClassRow:
    name: str
    error: str | None
    """None if its tasks cannot be listed by class."""
    tasks: int
    first: str | None
    message: str
    age_s: float | None
    is_chosen: bool


@dataclass(frozen=True, slots=True)
class LetterRow:
    task: TaskRow
    error: str
    message: str
    age_s: float | None


@dataclass(frozen=True, slots=True)
class DeadView:
    queue: str
    now: float
    classes: tuple[ClassRow, ...]
    letters: tuple[LetterRow, ...]
    error: str | None
    """The chosen class."""
    text: str | None
    next: str | None
    after: str | None
    redrive: RedriveView | None


def dead_view(look: DeadLook, error: str | None, text: str | None, after: str | None) -> DeadView:
    return DeadView(
        look.queue,
        look.now,
        tuple(_class_row(found, look.now, error) for found in look.classes),
        tuple(
            LetterRow(
                task_row(letter.task, look.now),
                one_line(letter.error) or NO_ERROR,
                "" if letter.failure is None else one_line(letter.failure.message),
                None if letter.failure is None else look.now - letter.failure.when,
            )
            for letter in look.letters
        ),
        error,
        text,
        look.next,
        after,
        redrive_view(look.redrive, look.now),
    )


def _class_row(found: FailureClass, now: float, chosen: str | None) -> ClassRow:
    failure = found.failure
    name = OTHERS if found.error is None else one_line(found.error) or NO_ERROR
    return ClassRow(
        name,
        found.error,
        found.tasks,
        found.first,
        "" if failure is None else one_line(failure.message),
        None if failure is None else now - failure.when,
        found.error is not None and found.error == chosen,
    )
