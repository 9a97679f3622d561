"""Views of dead letters: classes of failure, and buried tasks with their last failures."""

from dataclasses import dataclass

from fdbqueue.operate.dashboard.looks import DeadLook
from fdbqueue.operate.dashboard.texts import one_line
from fdbqueue.operate.dashboard.views import NO_ERROR, OTHERS, RedriveView, TaskRow, redrive_view, task_row
from fdbqueue.tasks.dead.values import FailureClass


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
