"""History: the last figures of each queue, from which rates and sparklines are computed."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.operate.overview.figures import Figures, TaskFigures

CHART_WIDTH, CHART_HEIGHT = 120, 24


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


def done_of(calls: Mapping[str, int]) -> int:
    """An expired one counts as a delete, too."""
    return calls["ack"] + calls["delete"] + calls["cancel"]


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
    )


def _rates(before: Point, after: Point) -> Rates:
    span_s = after.at_s - before.at_s
    return Rates(
        (after.put - before.put) / span_s,
        (after.take - before.take) / span_s,
        (after.done - before.done) / span_s,
    )


def line_of(values: Sequence[float], top: float) -> str:
    """The points of a polyline through `values`, from the left edge to the right one; empty for one value."""
    if len(values) < 2:
        return ""
    top = max(top, 1e-9)
    step = CHART_WIDTH / (len(values) - 1)
    return " ".join(
        f"{number * step:.1f},{CHART_HEIGHT - value / top * (CHART_HEIGHT - 2) - 1:.1f}"
        for number, value in enumerate(values)
    )
