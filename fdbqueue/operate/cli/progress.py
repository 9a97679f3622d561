"""The progress of a fleet: a live line on a terminal, a line every 10 s elsewhere, and one at the end."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from rich.console import Console
from rich.status import Status
from rich.text import Text

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import RecordUnreadable, TaskNotFound
from fdbqueue.core.seam import Transaction
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Explanation, TaskState, Why
from fdbqueue.fleet.outcomes import troubles
from fdbqueue.fleet.status import Tally
from fdbqueue.fleet.supervisor import FleetStatus
from fdbqueue.operate.cli.exits import say
from fdbqueue.operate.cli.output import ReaderGone
from fdbqueue.operate.cli.session import Place
from fdbqueue.operate.cli.show import PLAIN_EVERY_S, span, stdout_of
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.operate.overview.figures import TaskFigures
from fdbqueue.operate.overview.overview import Overview
from fdbqueue.operate.verify.values import command
from fdbqueue.tasks.queue import TaskQueue

LIVE_EVERY_S = 0.5
WINDOW_S = 10.0
"""Length of the time over which rates are measured."""
STALLED_S = 1.5
"""A fleet that has run no task for this time may wait for a limit, or for the end of a pause.

Reports of its processes are 0.5 s old.
"""
LEFT_TIMEOUT_S = 2.0
"""A supervisor that waits for counts looks after no process, and obeys no signal."""


class Waiting(NamedTuple):
    """Why a fleet takes nothing from a queue: it is paused, or its first ready task waits for a limit."""

    queue: str
    paused: bool
    limited: Explanation | None
    """Of that task; None if it waits for no limit."""

    @property
    def told(self) -> str:
        text = " ".join(self._sentences())
        return f"{self.queue!r} waits: {text[:1].lower()}{text[1:]}"

    def _sentences(self) -> Iterator[str]:
        if self.paused:
            yield f"The queue is paused. {command('resume', self.queue)} ends the pause."
        for reason in () if self.limited is None else self.limited.reasons:
            if reason.why is Why.LIMIT_REACHED:
                yield f"{reason.text} {reason.cure}"


class Pace:
    """The rate of a count, measured over the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int, int]] = deque()

    def see(self, at_s: float, done: int, left: int) -> None:
        self._seen.append((at_s, done, left))
        while len(self._seen) > 2 and self._seen[1][0] <= at_s - self._window_s:
            self._seen.popleft()

    @property
    def done_per_s(self) -> float:
        return self._per_s(1)

    @property
    def eta_s(self) -> float | None:
        """Time until nothing is left, at the present rate; None if the number left does not fall."""
        drained_per_s = -self._per_s(2)
        return self._seen[-1][2] / drained_per_s if drained_per_s > 0 else None

    def _per_s(self, field: int) -> float:
        if len(self._seen) < 2 or self._seen[-1][0] <= self._seen[0][0]:
            return 0.0
        first, last = self._seen[0], self._seen[-1]
        return (last[field] - first[field]) / (last[0] - first[0])


class Progress:
    """A context manager around the run of a fleet, which shows its progress."""

    def __init__(
        self,
        place: Place,
        database: Database,
        queues: Sequence[str],
        signals: Signals,
        as_json: bool,
        prints: bool,
        quiet: bool = False,
    ) -> None:
        """`prints`: True if the fleet itself writes to standard output. `quiet`: show no progress."""
        self._place, self._database, self._queues = place, database, queues
        self._overview = Overview(*queues, keys=0, queues_only=True, root=place.root)
        self._output = stdout_of(signals) if as_json or prints else None
        self._json = self._output if as_json else None
        self._monotonic = database.runtime.monotonic
        self._began_s = self._monotonic()
        self._quiet = quiet
        self._told: dict[str, Any] = {}
        self._unheard = False
        self._pace = Pace()
        self._left = 0
        self._waiting: list[Waiting] = []
        """Queues that are paused, or wait for limits, while the fleet runs no task."""
        self._tally, self._active_s = Tally(), self._began_s
        console = Console(stderr=True)
        self._live: Status | None = (
            console.status("starting") if console.is_terminal and not as_json and not quiet else None
        )
        self._every_s = LIVE_EVERY_S if self._live else PLAIN_EVERY_S
        self._next_s = self._began_s + (0.0 if self._live else PLAIN_EVERY_S)
        self.buried = 0

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live:
            self._live.stop()

    def tick(self, status: FleetStatus) -> bool:
        """Show the progress, if it is due. Return False if the reader of standard output has closed it."""
        self._unheard = self._unheard or (self._output is not None and not self._output.is_read())
        now_s = self._monotonic()
        if status.running or status.tally != self._tally:
            self._tally, self._active_s = status.tally, now_s
        if now_s >= self._next_s and not self._unheard:
            self._next_s = now_s + self._every_s
            self._see_queues(stalled=now_s > self._active_s + STALLED_S)
            self._pace.see(now_s, status.tally.done, self._left)
            self._tell(self._row(status))
        return not self._unheard

    def end(self, status: FleetStatus) -> None:
        """Show the final counts. Raises ReaderGone if the fleet ended because of it."""
        self.__exit__()
        if self._unheard:
            raise ReaderGone
        self.buried = status.tally.buried
        seconds = self._monotonic() - self._began_s
        if self._json:
            self._json.print(line_of({**_counts(status), "seconds": round(seconds, 3)}))
            return
        if self._quiet:
            return
        say(f"{_told(_counts(status))} in {span(seconds) if seconds >= 60 else f'{seconds:.1f} s'}")
        if self.buried:
            say(f"to list the buried tasks: fdbqueue tasks {self._queues[0]} --state buried")

    def _tell(self, row: dict[str, Any]) -> None:
        # The holders of a limit, and the time of its next token, are no news.
        news = {**row, "reached": [(one["queue"], one["name"], one["key"]) for one in row["reached"]]}
        if self._told == news and not self._live:  # an idle fleet has no news
            return
        self._told = news
        if self._json:
            # Without room the line is dropped: a slow reader must not block the supervisor.
            self._json.write(line_of(row))
            return
        if self._quiet:
            return
        line = f"{_told(row)}; {row['per_s']:,.0f}/s, {row['left']:,} left"
        if row["left"] and row["eta_s"] is not None:
            line += f", eta {span(row['eta_s'])}"
        line = "; ".join((line, *(found.told for found in self._waiting)))
        if self._live:
            # Lines of the processes erase one row only: the bar must not have a second.
            self._live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        else:
            say(line)

    def _row(self, status: FleetStatus) -> dict[str, Any]:
        pace = {"per_s": round(self._pace.done_per_s, 1), "left": self._left, "eta_s": self._pace.eta_s}
        limited = [(found.queue, found.limited) for found in self._waiting if found.limited is not None]
        reached = [{"queue": queue, **asdict(limit)} for queue, found in limited for limit in found.reached]
        paused = [found.queue for found in self._waiting if found.paused]
        return {**_counts(status), **pace, "paused": paused, "reached": reached}

    def _see_queues(self, stalled: bool) -> None:
        """Count the tasks that are not buried. Of a stalled fleet, look for paused queues and reached limits.

        All stays as seen before, if no answer comes in time.
        """

        def look(tr: Transaction) -> tuple[int, list[Waiting]]:
            queues = self._overview.figures(tr).queues
            tasks = {one.name: one.tasks for one in queues if one.tasks is not None}
            left = sum(one.ready + one.taken + one.delayed for one in tasks.values())
            stuck = tasks if stalled else {}
            seen = [Waiting(name, one.paused, self._explained(tr, name, one)) for name, one in stuck.items()]
            return left, [one for one in seen if one.paused or one.limited is not None]

        with suppress(*troubles()):
            self._left, self._waiting = run(self._database, look, timeout_s=LEFT_TIMEOUT_S)

    def _explained(self, tr: Transaction, name: str, tasks: TaskFigures) -> Explanation | None:
        """Explain the first ready task, if it waits for a limit. A queue without limits costs no read."""
        if tasks.limits or tasks.task_limits:
            queue = TaskQueue.open(tr, name, root=self._place.root)
            for task in queue.tasks(tr, TaskState.READY, 1):
                with suppress(TaskNotFound, RecordUnreadable):  # a task whose ttl is over, or a damaged one
                    found = queue.explain(tr, task)
                    return found if found.reached else None
        return None


def _counts(status: FleetStatus) -> dict[str, int]:
    tally: dict[str, int] = asdict(status.tally)
    return tally


def _told(counts: dict[str, Any]) -> str:
    """Return the counts as a text, without failures that are 0."""
    names = ("failed", "snoozed", "buried", "lost", "cancelled")
    wrong = [f"{counts[name]:,} {name}" for name in names if counts[name]]
    return ", ".join([f"{counts['done']:,} done", *wrong])
