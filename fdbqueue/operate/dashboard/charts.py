"""Charts of the chronicle: lines as SVG, without a script. A gap of points is a gap of a line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from fdbqueue.operate.dashboard.looks import CHART_HEIGHT, CHART_WIDTH, ChronicleLook
from fdbqueue.tasks.points import Places, Point

Values = Sequence[float | None]
"""One for each step, the oldest first; None for a gap."""


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
        yield Chart(title, span, tuple(_lines(values, top)), top, gaps, step)


_COUNTS = ("ready", "taken", "buried")


def rates_of(points: Places, name: str) -> list[float | None]:
    """The changes of a counter a second, up to each point; None without the point before it."""
    return [None, *(_rate(before, after, name) for before, after in pairwise(points))]


def _rate(before: Point | None, after: Point | None, name: str) -> float | None:
    if before is None or after is None or after.at_us <= before.at_us:
        return None
    change: int = getattr(after, name) - getattr(before, name)
    return max(0, change) * 1_000_000 / (after.at_us - before.at_us)


def _lines(values: Mapping[str, Values], top: float) -> Iterator[Line]:
    for name, line in values.items():
        yield Line(name, tuple(parts_of(line, top)))


def parts_of(values: Values, top: float) -> Iterator[str]:
    """A value alone between two gaps becomes a dash."""
    step, scale = CHART_WIDTH / max(1, len(values) - 1), (CHART_HEIGHT - 2) / max(top, 1e-9)
    for is_gap, run in groupby(enumerate(values), lambda one: one[1] is None):
        if not is_gap:
            places = [(at * step, CHART_HEIGHT - 1 - (value or 0.0) * scale) for at, value in run]
            if len(places) == 1:
                [(x, y)] = places
                places = [(max(0.0, x - step / 2), y), (x + step / 2, y)]
            yield " ".join(f"{x:.2f},{y:.1f}" for x, y in places)
