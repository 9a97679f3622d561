"""Backlog: for how long the ready tasks of a queue last, at the rates of the last minutes.

Pure functions over values. `Pace` keeps the counters of the last looks, so a process that looks again and
again knows the rates.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.core.visible import span
from fdbqueue.operate.figures import TaskFigures
from fdbqueue.tasks.points import Point

MORE_WORKERS = 2
"""The number of further workers that a backlog is told for."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The ready tasks of a queue, as times in seconds."""

    seconds: float | None
    """Time in which its workers end this number of tasks; None if they end none."""
    empty_s: float | None
    """Time until no task is ready, while puts go on; None if there are as many puts as ends, or more."""
    more_empty_s: float | None
    """As `empty_s`, with MORE_WORKERS further workers as quick as the present ones; None without any."""


def backlog_of(ready: int, put_per_s: float, done_per_s: float, workers: int) -> Backlog:
    """`workers`: those that are alive."""
    if not ready:
        return Backlog(0.0, 0.0, 0.0)
    more_per_s = done_per_s * (workers + MORE_WORKERS) / workers if workers else 0.0
    return Backlog(
        _time_s(ready, done_per_s),
        _time_s(ready, done_per_s - put_per_s),
        _time_s(ready, more_per_s - put_per_s),
    )


def _time_s(ready: int, per_s: float) -> float | None:
    return ready / per_s if per_s > 0 else None


def phrase(backlog: Backlog) -> str:
    """For example "empty in 12m, with 2 more workers in 8m"."""
    if backlog.seconds == 0:
        return "nothing waits"
    now = "never empty at this rate" if backlog.empty_s is None else f"empty in {span(backlog.empty_s)}"
    if backlog.more_empty_s is None:
        return now
    return f"{now}, with {MORE_WORKERS} more workers in {span(backlog.more_empty_s)}"


def done_of(calls: Mapping[str, int]) -> int:
    """Tasks that have ended. An expired one counts as a delete, too."""
    return calls["ack"] + calls["delete"] + calls["cancel"]


def backlog_at(points: Sequence[Point | None], tasks: TaskFigures) -> Backlog | None:
    """By the last points of a chronicle, those of limits.PACE_S; None if there are too few."""
    last = [point for point in points[-round(limits.PACE_S / 60) - 1 :] if point is not None]
    if len(last) < 2:
        return None
    first, now = last[0], last[-1]
    span_s = (now.at_us - first.at_us) / 1_000_000
    puts, ends = now.put - first.put, now.done - first.done
    return backlog_of(tasks.ready, puts / span_s, ends / span_s, tasks.workers)


class Pace:
    """The rates of one queue over the last limits.PACE_S, from the looks of this process."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int, int]] = deque()

    def backlog(self, tasks: TaskFigures, now: float) -> Backlog | None:
        """The backlog at a look; None at the first one, unless nothing waits."""
        points, point = self._points, (now, tasks.calls["put"], done_of(tasks.calls))
        if points and any(new < old for old, new in zip(points[-1], point, strict=True)):
            points.clear()  # the queue was created again, or the clock went back
        points.append(point)
        while len(points) > 2 and points[1][0] <= now - limits.PACE_S:
            points.popleft()
        began, put, done = points[0]
        if now <= began:
            return None if tasks.ready else backlog_of(0, 0.0, 0.0, 0)
        puts, ends = point[1] - put, point[2] - done
        return backlog_of(tasks.ready, puts / (now - began), ends / (now - began), tasks.workers)
