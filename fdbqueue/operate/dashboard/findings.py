"""Findings: the things that are wrong with queues, the worst first, each with its cure. Pure functions."""

import shlex
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from fdbqueue.core import limits
from fdbqueue.core.visible import counted
from fdbqueue.operate.dashboard.looks import Trend
from fdbqueue.operate.dashboard.texts import number, span
from fdbqueue.operate.overview.figures import QueueFigures, TaskFigures

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
        yield Finding(
            Level.BAD, "No worker", name, text, "Start one:", command("work", name, "MODULE:FUNCTION"), age_s
        )
    elif age_s > SLOW_S and all(trend.ready):
        cure = "Start more workers, or more threads in each."
        yield Finding(Level.WARN, "Slow", name, f"{waits}.", cure, since_s=age_s)


def _stored(name: str, tasks: TaskFigures) -> Iterator[Finding]:
    stored = tasks.ready + tasks.taken + tasks.buried + tasks.delayed
    if tasks.capacity is None or stored < NEARLY_FULL * tasks.capacity:
        return
    cure = "Start more workers."
    if stored >= tasks.capacity:
        text = f"is full, with {counted(stored, 'task')}: puts wait or are refused."
        yield Finding(Level.BAD, "Full", name, text, cure)
    else:
        text = f"has {counted(stored, 'task')}, and room for {number(tasks.capacity)}."
        yield Finding(Level.WARN, "Nearly full", name, text, cure)


def command(verb: str, queue: str, *arguments: str) -> str:
    """The command as it is typed: a name may have characters of a shell, or begin with a dash."""
    return shlex.join(["fdbqueue", verb, *(["--"] if queue.startswith("-") else []), queue, *arguments])
