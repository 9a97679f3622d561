"""Views: what templates show beside the values of the library, without any I/O.

A template has figures, tasks and workers as the library gives them. Its filters make texts of them: numbers,
times and spans short, texts from data visible and of bounded length. The templates escape all of them.

Findings are the things that are wrong with queues, limits, schedules and groups, the worst first, each with
its cure. They are made by pure functions.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.task import Failure, Task, TaskState
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.core.visible import counted, shortened, shown, visible, visible_json
from fdbqueue.core.visible import span as whole_span
from fdbqueue.operate.backlog import backlog_of, phrase
from fdbqueue.operate.dashboard.looks import ENDED, STATES, DeadLook, QueueLook, TaskLook, Trend
from fdbqueue.operate.figures import (
    Figures,
    GroupsFigures,
    LimitFigures,
    QueueFigures,
    ScheduleFigures,
    TaskFigures,
    stored_in,
    way_to_room,
)
from fdbqueue.operate.verify.values import command

CELL_LENGTH = 120
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")


@dataclass(frozen=True, slots=True)
class PayloadText:
    text: str
    form: str
    """"json", "text", "bytes", "object" or "unreadable"."""
    is_cut: bool = False
    """True if there is more than `text` shows."""


def span(seconds: float | None) -> str:
    """A length of time, with a fraction below ten seconds: 0.4s, 42s, 3m10s; empty for None."""
    return f"{seconds:.1f}s" if seconds is not None and 0 < seconds < 10 else whole_span(seconds)


def number(value: float | None) -> str:
    """A number with its thousands apart; a fraction with one digit below 100. Empty for None."""
    if value is None:
        return ""
    if isinstance(value, int) or value >= 100 or value == 0:
        return f"{round(value):,}"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def short(value: float) -> str:
    """A number of at most three or four digits: 1,204, 81.2k, 1.84M, 3.1G."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= (size if unit != "k" else 10_000):
            return f"{value / size:,.3g}{unit}" if value < 1000 * size else f"{value / size:,.0f}{unit}"
    return number(value)


def moment(time: float | None) -> str:
    """A time in UTC: 2026-01-31 23:59:59; empty for None."""
    if time is None:
        return ""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return shown(time)


def cell(data: Any) -> str:
    return shortened(" ".join(payload_text(data, indent=0).text.split()), CELL_LENGTH)


def key(value: Any) -> str:
    """A task key, or a unique key; empty for None."""
    return "" if value is None else cell(value)


def class_name(error: str | None) -> str:
    """The name of a class of failure; None stands for the classes beyond the listed ones."""
    return "(other classes)" if error is None else one_line(error) or "(no failure)"


def one_line(text: str | None) -> str:
    """A text of data as one visible line."""
    return "" if text is None else visible(shortened(text, limits.SHOWN_PAYLOAD_LENGTH))


def lines(text: str) -> str:
    """A text of data with its line breaks, other control characters as escapes."""
    return visible(shortened(text, limits.SHOWN_PAYLOAD_LENGTH), keep="\n\t")


def payload_text(data: Any, indent: int = 2) -> PayloadText:
    if isinstance(data, Unreadable):
        return PayloadText(visible(shortened(str(data))), "unreadable")
    if isinstance(data, bytes):
        return _bytes_text(data)
    encoded = json_of(data, indent)
    if encoded is None:
        return PayloadText(shown(data), "object")
    return _cut(encoded, "json")


def json_of(data: Any, indent: int = 2) -> str | None:
    """The data as JSON; None if JSON has no such value."""
    try:
        encoded = msgspec.json.encode(data)
        return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _bytes_text(data: bytes) -> PayloadText:
    most = limits.SHOWN_PAYLOAD_LENGTH
    try:
        return _cut(data.decode(), "text")
    except UnicodeDecodeError:
        return PayloadText(data[: most // 2].hex(" ", -4), "bytes", len(data) > most // 2)


def _cut(text: str, form: str) -> PayloadText:
    most = limits.SHOWN_PAYLOAD_LENGTH
    return PayloadText(visible(text[:most], keep="\n\t"), form, len(text) > most)


def segment(name: str) -> str:
    """A queue's name as one segment of a path. Others than letters, digits, - and _ become ~XX. A percent
    sign would not do: servers decode it before they look for slashes, and browsers remove "..".
    """
    return "".join(
        letter if _PLAIN.fullmatch(letter) else "".join(f"~{byte:02X}" for byte in letter.encode())
        for letter in name
    )


def name_in(part: str) -> str:
    """The name in a segment of a path. A segment that was typed by hand may have any other character."""
    return _ESCAPED.sub(_decoded_escape, part)


def _decoded_escape(found: re.Match[str]) -> str:
    try:
        return bytes.fromhex(found.group().replace("~", "")).decode()
    except UnicodeDecodeError:
        return found.group()


NOTICED_S = 10.0
"""A task may be ready for this time before the lack of a worker counts."""
SLOW_S = 300.0
"""A next task that is older makes a queue slow, as in monitoring/alerts.yml."""
NEARLY_FULL = 0.9
SHOWN_MAX = 5


class Level(IntEnum):
    """How bad a finding is. Its name in lower case is its class in the style sheet."""

    OK = 0
    HOLD = 1
    """Paused on purpose."""
    WARN = 2
    BAD = 3

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    word: str
    """One or two words for a mark."""
    queue: str
    text: str
    """The rest of a sentence that begins with the name of the queue."""
    cure: str
    command: str | None = None
    since_s: float = 0.0
    """The time for which it has lasted at least."""
    is_dead: bool = False
    """True if the page of dead letters tells more."""
    of: str = "queue"
    """The kind of the thing that `queue` names: a queue, a limit, a schedule or a group."""


@dataclass(frozen=True, slots=True)
class Verdict:
    level: Level
    text: str
    findings: tuple[Finding, ...] = ()
    """The worst first, at most SHOWN_MAX."""
    more: int = 0
    """Further findings."""


def verdict_of(queues: int, findings: Sequence[Finding]) -> Verdict:
    ordered = sorted(findings, key=lambda found: (-found.level, -found.since_s, found.queue))
    if not ordered:
        return Verdict(Level.OK, "No queues yet" if not queues else "All is well")
    wrong = {(found.of, found.queue) for found in ordered if found.level > Level.HOLD}
    held = len({found.queue for found in ordered if found.level == Level.HOLD})
    text = f"{_counted(wrong)} attention" if wrong else f"All is well; {held} paused"
    return Verdict(ordered[0].level, text, tuple(ordered[:SHOWN_MAX]), len(ordered[SHOWN_MAX:]))


def _counted(wrong: Collection[tuple[str, str]]) -> str:
    kinds = {kind for kind, _ in wrong}
    noun = kinds.pop() if len(kinds) == 1 else "thing"
    return f"1 {noun} needs" if len(wrong) == 1 else f"{len(wrong)} {noun}s need"


def findings_of(queue: QueueFigures, trend: Trend) -> tuple[Finding, ...]:
    """The worst first."""
    found = [*_of_any(queue), *(() if queue.tasks is None else _of_tasks(queue.name, queue.tasks, trend))]
    return tuple(sorted(found, key=lambda finding: -finding.level))


def _of_any(queue: QueueFigures) -> Iterator[Finding]:
    name = queue.name
    if queue.error is not None:
        cure = "Read it with the release, or the codec, that made it."
        yield Finding(Level.BAD, "Unreadable", name, "cannot be read by this process.", cure)
    if queue.unreadable:
        text = f"has {counted(queue.unreadable, 'stored value')} that could not be read."
        yield Finding(Level.WARN, "Unreadable", name, text, "Look at them:", command("aside", name))


def _of_tasks(name: str, tasks: TaskFigures, trend: Trend) -> Iterator[Finding]:
    yield from _not_taken(name, tasks, trend)
    yield from _stored(name, tasks)
    if tasks.sweep_lag_s > limits.SWEEP_LAG_WARNING_S:
        text = f"has tasks that were due {span(tasks.sweep_lag_s)} ago, and no process has moved them."
        cure = "Start a worker: every process that takes from the queue sweeps it."
        yield Finding(Level.WARN, "Not swept", name, text, cure, since_s=tasks.sweep_lag_s)
    if tasks.buried:
        text = f"has {counted(tasks.buried, 'buried task')}."
        cure = "See their failures, then kick, edit or delete them."
        yield Finding(Level.WARN, "Buried", name, text, cure, is_dead=True)


def _not_taken(name: str, tasks: TaskFigures, trend: Trend) -> Iterator[Finding]:
    """A queue with ready tasks that is paused, has no worker, or is slow: one of them."""
    age_s = tasks.next_age_s or 0.0
    waits = f"has {counted(tasks.ready, 'ready task')}, the next one for {span(age_s)}"
    if tasks.paused:
        text = f"is paused, and {waits}." if tasks.ready else "is paused."
        yield Finding(Level.HOLD, "Paused", name, text, "Resume it:", command("resume", name), age_s)
    elif not tasks.ready:
        return
    elif not tasks.workers and not tasks.taken and not trend.takes and age_s >= NOTICED_S:
        text = f"{waits}, and no worker takes {'it' if tasks.ready == 1 else 'them'}."
        work = command("work", name, "MODULE:FUNCTION")
        yield Finding(Level.BAD, "No worker", name, text, "Start one:", work, age_s)
    elif age_s > SLOW_S and all(trend.ready):
        cure = "Start more workers, or more threads in each."
        yield Finding(Level.WARN, "Slow", name, f"{waits}.", cure, since_s=age_s)


def _stored(name: str, tasks: TaskFigures) -> Iterator[Finding]:
    stored = stored_in(tasks)
    if tasks.capacity is None or stored < NEARLY_FULL * tasks.capacity:
        return
    cure = way_to_room(name, tasks)
    if stored >= tasks.capacity:
        text = f"is full, with {counted(stored, 'task')}: puts wait or are refused."
        yield Finding(Level.BAD, "Full", name, text, cure)
    else:
        text = f"has {counted(stored, 'task')}, and room for {number(tasks.capacity)}."
        yield Finding(Level.WARN, "Nearly full", name, text, cure)


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
        is_there = limit.error is not None
        word, text = ("Unreadable", "cannot be read") if is_there else ("Missing", "does not exist")
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
        text = f"is late by {span(found.late_s)}: no process passes."
        cure = "Start a worker: it fires schedules."
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
    return LimitRow(limit, level, word, *_bound_of(limit))


def _bound_of(limit: LimitFigures) -> tuple[str, str]:
    """The slots or the rate of a limit, and what of it is used."""
    of_key = " for each key" if limit.per_key else ""
    bounds, used = list[str](), list[str]()
    if limit.slots is not None:
        bounds.append(f"{counted(limit.slots, 'slot')}{of_key}")
        used.append(f"{number(limit.used)} in use")
    if limit.rate is not None:
        starts = counted(limit.rate, "start")
        bounds.append(f"{starts} in {span(limit.per_s)}, burst {number(limit.burst)}{of_key}")
    if limit.tokens is not None:
        used.append(f"{number(limit.tokens)} tokens")
    return "; ".join(bounds), ", ".join(used)


def _schedule_row(found: ScheduleFigures, wrong: Finding | None) -> ScheduleRow:
    if wrong is not None:
        return ScheduleRow(found, wrong.level, wrong.word)
    return ScheduleRow(found, Level.HOLD, "Paused") if found.paused else ScheduleRow(found, Level.OK, "Fine")


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

    @property
    def backlog(self) -> str:
        """In a few words; empty before the second look, and without a task that waits."""
        tasks, pace = self.queue.tasks, self.trend.pace
        if tasks is None or pace is None or not tasks.ready:
            return ""
        return phrase(backlog_of(tasks.ready, pace.put, pace.done, tasks.workers))


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
    search: Mapping[str, str]
    """The fields of the search, by which it can be repeated; empty without one."""
    fields: Mapping[str, str]
    """Those that the reader may fill, each with its label."""


def queue_view(
    look: QueueLook, trend: Trend, after: str | None, search: Mapping[str, str], fields: Mapping[str, str]
) -> QueueView:
    tasks, row = look.figures.tasks, queue_row(look.figures, trend)
    if tasks is None:
        return QueueView(look, row, after, (), (), search, {})
    tabs = [(name, getattr(tasks, name)) for name in STATES] + [(ENDED, None)] * look.keeps_ended
    actions = ("resume" if tasks.paused else "pause", *["kick"] * bool(tasks.buried))
    return QueueView(look, row, after, tuple(tabs), actions, search, fields)


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
    if task.handed_to is not None:
        actions = ("complete", "fail", *actions)
    text = editable(task, look.options) if look.is_editable else None
    return TaskView(look, life, payload_text(task.data), actions, text)


def _times(task: Task) -> dict[str, float | None]:
    of_taken = "end of lease" if task.handed_to is None else "end of hand-off"
    until = {TaskState.TAKEN: of_taken, TaskState.DELAYED: "due"}.get(task.state, "until")
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
    told = ((f"attempt {one.attempt}: {one.error}, {one.outcome}", one.when) for one in failures)
    known += [Fact(name, at, is_failure=True) for name, at in told]
    return tuple(sorted(known, key=lambda fact: fact.at))


def editable(task: Task, options: Mapping[str, Any]) -> str | None:
    """The data of a buried task as the text that `edited` makes data of again."""
    if task.state != TaskState.BURIED or isinstance(task.data, Unreadable):
        return None
    if options.get("codec") == "bytes":
        text = _decoded(task.data)
    elif (text := json_of(task.data)) is not None:  # with escapes for the characters that cannot be seen
        text = "\n".join(map(visible_json, text.split("\n")))
    return text if text is not None and len(text.encode()) <= limits.EDITED_BYTES_MAX else None


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
    is_searched: bool = True
    """False if texts of failures are hidden: a search would tell them."""
