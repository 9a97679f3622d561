"""`fdbqueue work`: runs a fleet of worker processes, with a function or a command as the handler."""

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.registry import PLAIN
from fdbqueue.fleet.logs import LEVELS, logging_at
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.fleet.supervisor import Fleet, FleetStatus
from fdbqueue.operate.cli import execute
from fdbqueue.operate.cli.execute import STDERR
from fdbqueue.operate.cli.exits import DONE, REFUSED, CommandError, look_in_working_directory
from fdbqueue.operate.cli.group import Here, cli, command, queue_names
from fdbqueue.operate.cli.parameters import SecondsRange
from fdbqueue.operate.cli.progress import Progress
from fdbqueue.operate.cli.session import ELEMENT_KINDS, Place
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.options import is_kind

COUNT = click.IntRange(min=1)
COROUTINES = click.IntRange(min=1, max=limits.CONCURRENCY_MAX)
TIMEOUT = SecondsRange(min=0.001, endless=True)
GRACE = SecondsRange(min=0)
_COMMAND = "fdbqueue.command"


def _backoff(_: click.Context, __: click.Parameter, text: str) -> Backoff:
    first_s, comma, cap_s = text.partition(",")
    try:
        return Backoff(float(first_s), cap_s=float(cap_s)) if comma else Backoff(float(first_s))
    except (ValueError, InvalidArgument):
        raise click.BadParameter(f"{text!r} is not of the form S[,CAP], in seconds") from None


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
@click.option("--max-attempts", type=COUNT, default=5, metavar="N", help="failures before burial [5]")
@click.option(
    "--timeout", "timeout_s", type=TIMEOUT, metavar="S", help="an attempt fails after S seconds [never]"
)
@click.option(
    "--grace", "grace_s", type=GRACE, default=30.0, metavar="S", help="after a stop, S seconds to finish [30]"
)
@click.option("--weight", "weights", multiple=True, metavar="QUEUE=N", help="the weight of a queue [1]")
@click.option("--recycle-tasks", type=COUNT, metavar="N", help="replace a process after N tasks")
@click.option("--recycle-mb", type=COUNT, metavar="M", help="replace a process above M MB")
@click.option(
    "--backoff",
    default="1,600",
    callback=_backoff,
    metavar="S[,CAP]",
    help="after a failure: S seconds, doubled each time, CAP at most [1,600]",
)
@click.option("--hooks", metavar="MODULE:NAME", help="the Hooks to call for each task")
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
    may finish; the second gives them back.

    With --exec, the data of the task replaces {} inside each ARG, and is the standard input: a text
    unchanged, other data as JSON. No shell is used. The output of a command that succeeds goes to standard
    output; with --json, to standard error.

    Status: 0 done, or stopped; 1 if tasks were buried; 2 a mistake: then no task was taken.
    """
    command: list[str] | None = click.get_current_context().meta[_COMMAND]
    queues, handler = _split(words, executes, command)
    if not executes and into is not None:
        raise click.UsageError("--into is for --exec")
    if create and into is None:
        raise click.UsageError("--create is for the queue of --into")
    if executes:
        options |= {"argument": _argument(here, command or [], into, options["transactional"])}
    options["threads"] = options["threads"] or (1 if executes else 8)
    options["log_level"] = log_level or ("error" if quiet else "info")
    if here.as_json:
        options["stdout"] = STDERR
    weighted = _weighted(queues, weights)
    with here.database() as database:
        for name in queues:
            here.tasks_in(database, name)
        if not executes or options["hooks"]:
            look_in_working_directory()
        fleet = Fleet(here.url, weighted, handler, root=here.root, **options)
        if into is not None:
            _require_results(here, database, into, create)
        prints = executes and into is None
        with (
            logging_at(options["log_level"]),
            Progress(here, database, queues, here.signals, here.as_json, prints, quiet) as progress,
        ):

            def look(status: FleetStatus) -> None:
                if not progress.tick(status):
                    fleet.stop()

            fleet.run(look)
            progress.end(fleet.status())
    return REFUSED if progress.buried else DONE


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


def _argument(place: Place, command: list[str], into: str | None, transactional: bool) -> Mapping[str, Any]:
    if transactional:
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
