"""Views of limits, schedules and groups on the first page, and the things that are wrong with them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fdbqueue.core import limits
from fdbqueue.core.visible import counted
from fdbqueue.operate.dashboard.findings import Finding, Level, command
from fdbqueue.operate.dashboard.texts import number, one_line, span
from fdbqueue.operate.overview.figures import Figures, GroupsFigures, LimitFigures, ScheduleFigures


@dataclass(frozen=True, slots=True)
class LimitRow:
    limit: LimitFigures
    level: Level
    word: str
    bound: str
    """Its slots, or its rate, in a few words."""
    used: str
    """The slots that tasks hold, or the tokens that are there."""


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    schedule: ScheduleFigures
    level: Level
    word: str


@dataclass(frozen=True, slots=True)
class BesideView:
    """All that the first page shows beside the queues."""

    limits: tuple[LimitRow, ...]
    schedules: tuple[ScheduleRow, ...]
    groups: GroupsFigures
    findings: tuple[Finding, ...]


def beside_view(figures: Figures) -> BesideView:
    queues = set(figures.by_name) if figures.is_whole else None
    found = [
        *(one for limit in figures.limits for one in _of_limit(limit)),
        *(one for schedule in figures.schedules for one in _of_schedule(schedule, queues)),
        *_of_groups(figures.groups),
    ]
    worst = {(one.of, one.queue): one for one in found}
    return BesideView(
        tuple(_limit_row(one, worst.get(("limit", one.name))) for one in figures.limits),
        tuple(_schedule_row(one, worst.get(("schedule", one.name))) for one in figures.schedules),
        figures.groups,
        tuple(found),
    )


def _of_limit(limit: LimitFigures) -> Iterator[Finding]:
    if limit.free is None:
        word, text = (
            ("Missing", "does not exist") if limit.error is None else ("Unreadable", "cannot be read")
        )
        text += f", and tasks of {', '.join(map(one_line, limit.queues))} run without it" * bool(limit.queues)
        set_it = command("limit", "set", limit.name, "--slots", "N")
        yield Finding(Level.WARN, word, limit.name, f"{text}.", "Set it again:", set_it, of="limit")


def _of_schedule(found: ScheduleFigures, queues: Collection[str] | None) -> Iterator[Finding]:
    name, show = found.name, command("schedule", "show", found.name)
    if found.queue and queues is not None and found.queue not in queues:
        text = f"has the queue {one_line(found.queue)}, which does not exist."
        delete = command("schedule", "delete", name)
        yield Finding(Level.WARN, "No queue", name, text, "Create it, or:", delete, of="schedule")
    elif found.error is not None:
        text = f"is not fired: {one_line(found.error)}"
        yield Finding(Level.WARN, "Failing", name, text, "See it:", show, of="schedule")
    elif found.late_s > limits.SWEEP_LAG_WARNING_S:
        text, cure = (
            f"is late by {span(found.late_s)}: no process passes.",
            "Start a worker: it fires schedules.",
        )
        yield Finding(Level.BAD, "Late", name, text, cure, since_s=found.late_s, of="schedule")


def _of_groups(found: GroupsFigures) -> Iterator[Finding]:
    for group in found.first_held[:1]:
        buried, more = number(group.buried), found.held - 1
        text = f"waits for {buried} buried {'task' if group.buried == 1 else 'tasks'}"
        text += f", and {number(more)} more {'does' if more == 1 else 'do'} alike." if more else "."
        show = command("group", "show", group.id)
        yield Finding(Level.WARN, "Held", group.id, text, "Kick or delete them:", show, of="group")


def _limit_row(limit: LimitFigures, found: Finding | None) -> LimitRow:
    is_waited_for = found is None and limit.waiting > 0
    level = Level.HOLD if is_waited_for else Level.OK if found is None else found.level
    word = "Reached" if is_waited_for else "Fine" if found is None else found.word
    bound, used = _of_slots(limit) if limit.slots is not None else _of_starts(limit)
    return LimitRow(limit, level, word, bound, used)


def _of_slots(limit: LimitFigures) -> tuple[str, str]:
    return f"{counted(limit.slots or 0, 'slot')}{_of_key(limit)}", f"{number(limit.used)} in use"


def _of_starts(limit: LimitFigures) -> tuple[str, str]:
    if limit.rate is None:
        return "", ""
    bound = f"{counted(limit.rate, 'start')} in {span(limit.per_s)}, burst {number(limit.burst)}"
    return (f"{bound}{_of_key(limit)}", "") if limit.per_key else (bound, f"{number(limit.free)} tokens")


def _of_key(limit: LimitFigures) -> str:
    return " for each key" if limit.per_key else ""


def _schedule_row(found: ScheduleFigures, wrong: Finding | None) -> ScheduleRow:
    if wrong is not None:
        return ScheduleRow(found, wrong.level, wrong.word)
    return ScheduleRow(found, Level.HOLD, "Paused") if found.paused else ScheduleRow(found, Level.OK, "Fine")
