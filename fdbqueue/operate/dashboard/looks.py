"""Looks: the values of the library that one page shows, read in one transaction by snapshot.

Handles are made of the database, not of the transaction: their services then end with that database. The
history has the last figures of each queue, from which rates and sparklines are computed.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueKindMismatch, QueueNotFound, TaskNotFound
from fdbqueue.core.line.waiting import WaitingCall
from fdbqueue.core.page import Page
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import EndedTask, Explanation, Failure, Task
from fdbqueue.fleet.status import Presence, workers
from fdbqueue.operate.backlog import done_of
from fdbqueue.operate.exports.trash import Purge, purges
from fdbqueue.operate.figures import Figures, QueueFigures, TaskFigures
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.altering import Alteration
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.looking import KeyStatistics
from fdbqueue.tasks.options import as_given, is_kind, kind_named
from fdbqueue.tasks.points import Places, ask_points
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.redrive import DeadLetter, FailureClass, Redrive
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.stored.keyed import Keyed

KEYS_SHOWN = 20
CLASSES_SHOWN = 50
ENDED = "ended"
"""The state of tasks that a queue with `retain_s` keeps."""
STATES = {"ready": "r", "taken": "t", "delayed": "~", "buried": "!"}


@dataclass(frozen=True, slots=True)
class QueueLook:
    figures: QueueFigures
    now: float
    options: dict[str, Any]
    state: str
    tasks: Sequence[Task] = ()
    ended: Sequence[EndedTask] = ()
    next: str | None = None
    """The cursor of the next page of tasks."""
    looked_at: int = 0
    """Tasks that a search has looked at for this page."""
    keys: Sequence[KeyStatistics] = ()
    waiting: Sequence[WaitingCall] = ()
    workers: Sequence[Presence] = ()
    redrive: Redrive | None = None
    alterations: Sequence[Alteration] = ()
    trash: Sequence[Purge] = ()
    """The purges that can be restored, the latest first."""

    @property
    def has_pri(self) -> bool:
        return is_kind(self.figures.kind) and kind_named(self.figures.kind).supports("pri")

    @property
    def keeps_ended(self) -> bool:
        return self.options.get("retain_s") is not None


@dataclass(frozen=True, slots=True)
class TaskLook:
    """A task, or the rest of one that has ended: one of both is there."""

    queue: str
    now: float
    options: dict[str, Any] = field(default_factory=dict)
    explanation: Explanation | None = None
    failures: Sequence[Failure] = ()
    ended: EndedTask | None = None
    steps: Sequence[str] = ()
    """The names of its steps that are done."""
    is_editable: bool = True
    """False if a part of its data is hidden: the form would store the stars."""


@dataclass(frozen=True, slots=True)
class DeadLook:
    queue: str
    now: float
    classes: Sequence[FailureClass]
    letters: Sequence[DeadLetter]
    next: str | None
    redrive: Redrive | None


@dataclass(frozen=True, slots=True)
class ChronicleLook:
    queue: str
    is_kept: bool
    minutes: Places
    hours: Places


@dataclass(frozen=True, slots=True)
class Sight:
    """The transaction, the time and the queue of a look."""

    tr: Transaction
    database: Database
    root: Any
    now: float
    name: str

    @property
    def registry(self) -> Registry:
        return Registry(self.root)

    def of_tasks(self) -> Definition:
        """Raises: QueueKindMismatch for a queue of another kind."""
        found = self.registry.find(self.tr, self.name)
        if not is_kind(found.kind):
            raise QueueKindMismatch(name=self.name, found=found.kind, wanted="a queue of tasks")
        return found


def see_queue(at: Sight, state: str, after: str | None, where: Mapping[str, Any]) -> QueueLook:
    """The page of a queue: the tasks in a state, or those that filters let through."""
    tr, now, registry = at.tr, at.now, at.registry
    figures = next(iter(Overview(at.name, queues_only=True, root=at.root).figures(tr).queues), None)
    if figures is None:
        raise QueueNotFound(name=at.name)
    definition = registry.find(tr, at.name)
    if not is_kind(definition.kind):
        return QueueLook(figures, now, dict(definition.options), state)
    queue, shape = TaskQueue(at.database, registry, definition), shape_of(registry, definition)
    lists_ended = state == ENDED and not where
    ended = queue.ended_tasks(tr, limits.ROWS_SHOWN, after=after) if lists_ended else Page[EndedTask]()
    tasks, looked_at = Page[Task](), 0
    if where:
        found = queue.search(tr, where, after=after, most=limits.ROWS_SHOWN)
        tasks, looked_at = Page(found.tasks, found.after), found.looked_at
    elif state != ENDED:
        tasks = queue.tasks(tr, STATES[state], limits.ROWS_SHOWN, after=after)
    return QueueLook(
        figures,
        now,
        as_given(definition.options),
        state,
        tasks,
        ended,
        tasks.next or ended.next,
        looked_at,
        queue.key_statistics(tr, KEYS_SHOWN) if isinstance(shape.discipline, Keyed) else (),
        queue.waiting(tr, limits.ROWS_SHOWN),
        workers(tr, at.name, root=at.root),
        DeadLetters(at.database, registry, definition).redrive(tr),
        queue.alterations(tr),
        purges(tr.snapshot, shape.root, definition.id, round(now * 1_000_000)),
    )


def see_task(at: Sight, id_: str) -> TaskLook:
    tr, name, now, definition = at.tr, at.name, at.now, at.of_tasks()
    queue, options = TaskQueue(at.database, at.registry, definition), as_given(definition.options)
    try:
        found = queue.explain(tr, id_)
    except TaskNotFound:
        if options.get("retain_s") is None:
            raise
        return TaskLook(name, now, options, ended=queue.ended_task(tr, id_))
    steps = queue.steps(tr, id_) if found.task.steps else ()
    return TaskLook(name, now, options, found, queue.failures(tr, id_), steps=steps)


def see_dead(at: Sight, error: str | None, text: str | None, after: str | None) -> DeadLook:
    letters = DeadLetters(at.database, at.registry, at.of_tasks())
    page = letters.tasks(at.tr, limits.ROWS_SHOWN, error=error, text=text, after=after)
    classes = letters.classes(at.tr, CLASSES_SHOWN)
    return DeadLook(at.name, at.now, classes, page, page.next, letters.redrive(at.tr))


def see_chronicle(at: Sight) -> ChronicleLook:
    definition = at.of_tasks()
    keys = shape_of(at.registry, definition).shared
    minutes, hours = ask_points(at.tr, keys, round(at.now * 1_000_000))()
    return ChronicleLook(at.name, bool(definition.options.get("chronicle")), minutes, hours)


CHART_WIDTH, CHART_HEIGHT = 120, 24
Values = Sequence[float | None]
"""One for each step, the oldest first; None for a gap."""


@dataclass(frozen=True, slots=True)
class Point:
    at_s: float
    ready: int
    put: int
    """Puts since the queue was created; `take` and `done`, which counts ends, likewise."""
    take: int
    done: int


@dataclass(frozen=True, slots=True)
class Rates:
    put: float
    take: float
    done: float


@dataclass(frozen=True, slots=True)
class Trend:
    rates: Rates | None = None
    """None before the second point."""
    put: tuple[float, ...] = ()
    """Puts a second, between each two points, the oldest first."""
    done: tuple[float, ...] = ()
    """Ended tasks a second, likewise."""
    ready: tuple[int, ...] = ()
    """Ready tasks at each point."""
    takes: int = 0
    """Takes between the first point and the last."""
    seconds: float = 0.0
    """Time between them."""
    pace: Rates | None = None
    """The rates over this time; None without any."""

    @property
    def top(self) -> float:
        """The highest rate, to which both lines are scaled."""
        return max(self.put + self.done, default=0.0)

    @property
    def put_line(self) -> str:
        """The `points` of an SVG polyline, CHART_WIDTH wide and CHART_HEIGHT high."""
        return line_of(self.put, self.top)

    @property
    def done_line(self) -> str:
        return line_of(self.done, self.top)


class History:
    """The last limits.POINTS_KEPT points of each queue that the last figures have told."""

    def __init__(self) -> None:
        self._points: dict[str, deque[Point]] = {}

    def add(self, figures: Figures, at_s: float) -> None:
        known = self._points
        self._points = {
            queue.name: _followed(known.get(queue.name), point_of(queue.tasks, at_s))
            for queue in figures.queues
            if queue.tasks is not None
        }

    def trend(self, name: str) -> Trend:
        return trend_of(self._points.get(name, ()))


def point_of(tasks: TaskFigures, at_s: float) -> Point:
    calls = tasks.calls
    return Point(at_s, tasks.ready, calls["put"], calls["take"], done_of(calls))


def _followed(points: deque[Point] | None, point: Point) -> deque[Point]:
    """Counters that went back belong to a queue that was created again: it has no past."""
    if points is None or point.put < points[-1].put or point.done < points[-1].done:
        points = deque(maxlen=limits.POINTS_KEPT)
    points.append(point)
    return points


def trend_of(points: Sequence[Point]) -> Trend:
    pairs = list(zip(list(points)[:-1], list(points)[1:], strict=True))
    rates = [_rates(before, after) for before, after in pairs if after.at_s > before.at_s]
    if not pairs:
        return Trend(ready=tuple(point.ready for point in points))
    first, last = points[0], points[-1]
    return Trend(
        rates[-1] if rates else None,
        tuple(rate.put for rate in rates),
        tuple(rate.done for rate in rates),
        tuple(point.ready for point in points),
        last.take - first.take,
        last.at_s - first.at_s,
        _rates(first, last) if last.at_s > first.at_s else None,
    )


def _rates(before: Point, after: Point) -> Rates:
    span_s, names = after.at_s - before.at_s, ("put", "take", "done")
    return Rates(*((getattr(after, name) - getattr(before, name)) / span_s for name in names))


def line_of(values: Values, top: float) -> str:
    """The points of a polyline through `values`, from the left edge to the right one; empty for one value."""
    return next(parts_of(values, top)) if len(values) > 1 else ""


def parts_of(values: Values, top: float) -> Iterator[str]:
    """The `points` of a polyline for each run of values without a gap. A value alone becomes a dash."""
    step, scale = CHART_WIDTH / max(1, len(values) - 1), (CHART_HEIGHT - 2) / max(top, 1e-9)
    for is_gap, run in groupby(enumerate(values), lambda one: one[1] is None):
        if not is_gap:
            places = [(at * step, CHART_HEIGHT - 1 - (value or 0.0) * scale) for at, value in run]
            if len(places) == 1:
                [(x, y)] = places
                places = [(max(0.0, x - step / 2), y), (x + step / 2, y)]
            yield " ".join(f"{x:.2f},{y:.1f}" for x, y in places)
