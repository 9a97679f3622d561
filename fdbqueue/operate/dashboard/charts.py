"""Charts of the chronicle: lines as SVG, without a script. A gap of points is a gap of a line."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from fdbqueue.operate.dashboard.looks import ChronicleLook, parts_of
from fdbqueue.tasks.points import Places, Point


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    parts: tuple[str, ...]
    """The `points` of a polyline for each run of values without a gap."""


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    span: str
    """The time that it shows, in a few words."""
    lines: tuple[Line, ...]
    top: float
    """The highest value, to which all lines are scaled."""
    gaps: int
    """The number of steps without a point."""
    step: str


@dataclass(frozen=True, slots=True)
class ChronicleView:
    look: ChronicleLook
    charts: tuple[Chart, ...]


def chronicle_view(look: ChronicleLook) -> ChronicleView:
    of_minutes = _charts(look.minutes, "a day", "minute")
    return ChronicleView(look, (*of_minutes, *_charts(look.hours, "a month", "hour")))


def _charts(points: Places, span: str, step: str) -> Iterator[Chart]:
    gaps = sum(point is None for point in points)
    rates = {name: rates_of(points, name) for name in ("done", "put", "failed")}
    counts = {name: [None if one is None else getattr(one, name) for one in points] for name in _COUNTS}
    for title, values in (("Tasks a second", rates), ("Tasks", counts)):
        top = max((value for line in values.values() for value in line if value is not None), default=0.0)
        lines = tuple(Line(name, tuple(parts_of(line, top))) for name, line in values.items())
        yield Chart(title, span, lines, top, gaps, step)


_COUNTS = ("ready", "taken", "buried")


def rates_of(points: Places, name: str) -> list[float | None]:
    """The changes of a counter a second, up to each point; None without the point before it."""
    return [None, *(_rate(before, after, name) for before, after in pairwise(points))]


def _rate(before: Point | None, after: Point | None, name: str) -> float | None:
    if before is None or after is None or after.at_us <= before.at_us:
        return None
    change: int = getattr(after, name) - getattr(before, name)
    return max(0, change) * 1_000_000 / (after.at_us - before.at_us)
