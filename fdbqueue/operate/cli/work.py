"""`fdbqueue work`: runs a fleet of worker processes, with a function or a command as the handler.

The progress of the fleet is a live line on a terminal, a line every 10 s elsewhere, and one at the end.
"""

import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import click
from rich.console import Console
from rich.text import Text

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import RecordUnreadable, TaskNotFound
from fdbqueue.core.registry import PLAIN
from fdbqueue.core.seam import Transaction
from fdbqueue.core.signals import Signals
from fdbqueue.core.task import Explanation, TaskState, Why
from fdbqueue.fleet.logs import LEVELS, logging_at
from fdbqueue.fleet.outcomes import troubles
from fdbqueue.fleet.status import Tally
from fdbqueue.fleet.supervisor import Fleet, FleetStatus
from fdbqueue.operate.cli import execute
from fdbqueue.operate.cli.execute import STDERR
from fdbqueue.operate.cli.exits import DONE, REFUSED, CommandError, ReaderGone, look_in_working_directory, say
from fdbqueue.operate.cli.frame import Attempts, Here, Pauses, SecondsRange, again, cli, command, queue_names
from fdbqueue.operate.cli.redacting import in_environment
from fdbqueue.operate.cli.session import ELEMENT_KINDS, Place
from fdbqueue.operate.cli.show import PLAIN_EVERY_S, span, stdout_of
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.operate.figures import TaskFigures
from fdbqueue.operate.overview import Overview
from fdbqueue.operate.verify.values import command as as_typed
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.options import is_kind
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
            yield f"The queue is paused. {as_typed('resume', self.queue)} ends the pause."
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
        draws = console.is_terminal and not (as_json or quiet)
        self._live = console.status("starting") if draws else None
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
            self._json.print(line_of({**asdict(status.tally), "seconds": round(seconds, 3)}))
        elif not self._quiet:
            say(f"{_told(asdict(status.tally))} in {span(seconds) if seconds >= 60 else f'{seconds:.1f} s'}")
        if self.buried and not (self._json or self._quiet):
            say(f"what has failed: {again('dead', 'classes', self._queues[0])}")

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
        return {**asdict(status.tally), **pace, "paused": paused, "reached": reached}

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
                    redaction = in_environment()
                    found = found if redaction is None else redaction.explanation(found)
                    return found if found.reached else None
        return None


def _told(counts: dict[str, Any]) -> str:
    """Return the counts as a text, without failures that are 0."""
    names = ("failed", "snoozed", "buried", "lost", "cancelled")
    wrong = [f"{counts[name]:,} {name}" for name in names if counts[name]]
    return ", ".join([f"{counts['done']:,} done", *wrong])


def _hidden() -> tuple[str, ...]:
    """The paths that the log hides."""
    redaction = in_environment()
    return () if redaction is None else redaction.paths


COUNT = click.IntRange(min=1)
COROUTINES = click.IntRange(min=1, max=limits.CONCURRENCY_MAX)
TIMEOUT = SecondsRange(min=0.001, endless=True)
GRACE = SecondsRange(min=0)
_COMMAND = "fdbqueue.command"


class WithCommand(click.Command):
    """Keeps the words behind `--` apart, which click would pass on as arguments of ours."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_COMMAND] = args[at + 1 :] if at < len(args) else None
        return super().parse_args(ctx, args[:at])


@command(cli, cls=WithCommand)
@click.argument(
    "words", nargs=-1, metavar="QUEUE... [MODULE:FUNCTION | --exec -- CMD ARG...]", shell_complete=queue_names
)
@click.option("--exec", "executes", is_flag=True, help="run the command behind -- for each task")
@click.option("--into", metavar="QUEUE", help="with --exec: put each line of its output there, with the ack")
@click.option("--create", is_flag=True, help="make a plain queue for --into if there is none")
@click.option("--processes", type=COUNT, default=2, metavar="N", help="worker processes [2]")
@click.option("--threads", type=COUNT, metavar="N", help="per process [8; 1 with --exec]")
@click.option(
    "--concurrency",
    type=COROUTINES,
    default=100,
    metavar="N",
    help="coroutines per process, if the function is one [100]",
)
@click.option("--until-empty", is_flag=True, help="end when only buried tasks are left")
@click.option("--transactional", is_flag=True, help="call function(tr, task) in the transaction of the ack")
@click.option("--attempts", type=Attempts(), metavar="N", help="failures before burial [QUEUE's, or 5]")
@click.option(
    "--timeout", "timeout_s", type=TIMEOUT, metavar="S", help="an attempt fails after S seconds [never]"
)
@click.option(
    "--grace", "grace_s", type=GRACE, default=30.0, metavar="S", help="after a stop, S seconds to finish [30]"
)
@click.option(
    "--overtake",
    type=click.IntRange(0, limits.OVERTAKE_MAX),
    default=limits.WORKER_OVERTAKE,
    metavar="N",
    help=f"a take may leave N older tasks behind [{limits.WORKER_OVERTAKE}]",
)
@click.option(
    "--batch",
    type=click.IntRange(1, limits.VERB_BATCH),
    metavar="N",
    help="call the function with a list of up to N tasks; with --exec: a line of JSON for each",
)
@click.option(
    "--batch-wait",
    "batch_wait_s",
    type=SecondsRange(min=0),
    metavar="S",
    help=f"a batch waits S seconds for more tasks [{limits.BATCH_WAIT_S}]",
)
@click.option("--weight", "weights", multiple=True, metavar="QUEUE=N", help="the weight of a queue [1]")
@click.option("--recycle-tasks", type=COUNT, metavar="N", help="replace a process after N tasks")
@click.option("--recycle-mb", type=COUNT, metavar="M", help="replace a process above M MB")
@click.option(
    "--backoff",
    type=Pauses(),
    metavar="S[,CAP]",
    help="after a failure: S seconds, doubled each time, CAP at most [QUEUE's, or 1,600]",
)
@click.option("--hooks", metavar="MODULE:NAME", help="the Hooks to call for each task")
@click.option("--setup", metavar="MODULE:FUNCTION", help="call it in each process, before its first take")
@click.option("--teardown", metavar="MODULE:FUNCTION", help="call it in each process, after its last task")
@click.option("--log-level", type=click.Choice(LEVELS), help="on standard error [info; error with --quiet]")
@click.option("--quiet", is_flag=True, help="print no progress and no summary")
def work(
    here: Here,
    words: tuple[str, ...],
    executes: bool,
    into: str | None,
    create: bool,
    weights: tuple[str, ...],
    log_level: str | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Take tasks, and call MODULE:FUNCTION or run a command for each.

    If the function returns, the task is acked. After an exception, or an exit status other than 0, the task
    is tried again later. After the last attempt it is buried, with its errors (`tasks QUEUE --state buried`).
    If a worker dies or stalls, other workers take its tasks. After the first SIGTERM or Ctrl-C, running tasks
    may finish; the second gives them back. All processes have the options of a --url such as
    'fdb:?tag=NAME&priority=batch&timeout=S&retry_limit=N' in their transactions.

    With --exec, the data of the task replaces {} inside each ARG, and is the standard input: a text
    unchanged, other data as JSON. No shell is used. The output of a command that succeeds goes to standard
    output; with --json, to standard error.

    Status: 0 done, stopped, or drained (see `fleet`); 1 if tasks were buried, unless it was drained; 2 a
    mistake: then no task was taken.
    """
    command: list[str] | None = click.get_current_context().meta[_COMMAND]
    queues, handler = _split(words, executes, command)
    if not executes and into is not None:
        raise click.UsageError("--into is for --exec")
    if create and into is None:
        raise click.UsageError("--create is for the queue of --into")
    if executes:
        options |= {"argument": _argument(here, command or [], into, options)}
    options["threads"] = options["threads"] or (1 if executes else 8)
    options |= {"log_level": log_level or ("error" if quiet else "info"), "redact": _hidden()}
    if here.as_json:
        options["stdout"] = STDERR
    weighted = _weighted(queues, weights)
    with here.database() as database:
        for name in queues:
            here.tasks_in(database, name)
        if not executes or options["hooks"] or options["setup"] or options["teardown"]:
            look_in_working_directory()
        fleet = Fleet(here.url, weighted, handler, root=here.root, **options)
        if into is not None:
            _require_results(here, database, into, create)
        prints = executes and into is None
        with (
            logging_at(options["log_level"], options["redact"]),
            Progress(here, database, queues, here.signals, here.as_json, prints, quiet) as progress,
        ):

            def look(status: FleetStatus) -> None:
                if not progress.tick(status):
                    fleet.stop()

            fleet.run(look)
            progress.end(fleet.status())
    return REFUSED if progress.buried and not fleet.status().drained else DONE


def _split(words: Sequence[str], executes: bool, command: list[str] | None) -> tuple[list[str], str]:
    """Return the queues and the handler. Raises UsageError."""
    if executes and not command:
        raise click.UsageError("--exec takes its command behind --: work QUEUE --exec -- CMD ARG {}")
    if not executes and command is not None:
        raise click.UsageError("a command behind -- is for --exec")
    queues, handler = (list(words), execute.HANDLER) if executes else (list(words[:-1]), "".join(words[-1:]))
    if not executes and ":" not in handler:
        raise click.UsageError("work takes QUEUE... MODULE:FUNCTION, or QUEUE... --exec -- CMD ARG...")
    if not queues:
        raise click.UsageError("work takes at least one QUEUE")
    return queues, handler


def _argument(
    place: Place, command: list[str], into: str | None, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    if options["batch"] is not None:
        execute.require_batch(command, into)
    if options["transactional"]:
        raise click.UsageError("--transactional is for functions: a command has no transaction")
    if shutil.which(command[0]) is None and execute.PLACEHOLDER not in command[0]:
        raise CommandError(f"there is no command {command[0]!r}")
    return execute.settings_of(command, into, place.root)


def _weighted(queues: Sequence[str], weights: Sequence[str]) -> dict[str, int]:
    weighted = dict.fromkeys(queues, 1)
    for text in weights:
        queue, _, weight = text.rpartition("=")
        if queue not in weighted or not weight.isdecimal() or not int(weight):
            raise click.BadParameter(f"{text!r} is not QUEUE=N with one of the queues", param_hint="--weight")
        weighted[queue] = int(weight)
    return weighted


def _require_results(place: Place, database: Database, into: str, create: bool) -> None:
    kind = place.kind_of(database, into, "--create makes a plain one", PLAIN if create else None)
    if kind == PLAIN:
        Queue.named(database, into, create=create, root=place.root)
    elif not is_kind(kind):
        told = "an element queue" if kind in ELEMENT_KINDS else f"of kind {kind}"
        raise CommandError(f"--into takes a plain queue or a task queue, and {into!r} is {told}")
