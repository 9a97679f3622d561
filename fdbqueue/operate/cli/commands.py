"""The program and the table of its commands: the module of a command is imported when it is called."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click

from fdbqueue.core.version import __version__
from fdbqueue.operate.cli.exits import require_stdout

OUTER_URL, OUTER_ROOT, OUTER_SHARED = "fdbqueue.url", "fdbqueue.root", "fdbqueue.shared"
URL = click.option("--url", metavar="URL", help="fdb:[CLUSTER_FILE] or embedded:PATH")
ROOT = click.option("--root", metavar="A[/B...]", help="the subspace of all queues [fdbqueue]")
SHARED = click.option(
    "--shared-directory", "shared", is_flag=True, help="trust all users that may write to its directory"
)


class Named(NamedTuple):
    """A command that is not imported yet."""

    module: str
    """Its import adds the command to the program."""
    help: str
    """The first sentence of its help text."""


COMMANDS: Mapping[str, Named] = {
    "aside": Named("aside", "List the values of QUEUE that could not be read and were set aside."),
    "bury": Named("tasks", "Bury tasks: they are not taken until `kick`."),
    "cancel": Named("tasks", "End tasks."),
    "clear": Named("items", "Remove every item of QUEUE."),
    "completion": Named(
        "completion", "Print a script with which SHELL completes commands, options and names of queues."
    ),
    "conformance": Named(
        "conformance", "Prove that PROGRAM reads and writes the keys of the layout as this library does."
    ),
    "create": Named("queues", "Create QUEUE, a queue of tasks, or with --kind queue a plain queue of items."),
    "dashboard": Named("dashboard", "Show all queues, their tasks and workers in a browser."),
    "dead": Named("dead", "Look at buried tasks by class of failure, mend them, and kick them."),
    "delete": Named("tasks", "Remove tasks, in any state."),
    "demo": Named(
        "demo", "Run a fleet, kill and stall its processes, and check that each task counted once."
    ),
    "doctor": Named(
        "doctor", "Check the database, its clients and its queues; tell the cure of each trouble."
    ),
    "drop": Named("queues", "Remove QUEUE and its contents."),
    "elements": Named(
        "elements", "Use element queues: named elements that any process may lock, as in dirq."
    ),
    "ended": Named(
        "ended", "List the last tasks of QUEUE that have ended, the latest first, or those with these IDs."
    ),
    "explain": Named(
        "explain", "Tell why a task of QUEUE is not running: each reason with its cure, the weightiest first."
    ),
    "export": Named("exports", "Write QUEUEs, or all queues, whole into FILE, for `fdbqueue import file`."),
    "follow": Named(
        "follow",
        "Print the state and the progress of a task of QUEUE, and again each time that the progress changes.",
    ),
    "get": Named("items", "Take items out of QUEUE and print them, one JSON value a line."),
    "group": Named(
        "groups", "Count tasks together, wait for all of them, and start a task when they have ended."
    ),
    "import": Named("exports", "Copy the items of other systems' queues, or the queues of an export."),
    "kick": Named("tasks", "Make the first buried tasks of QUEUE ready again."),
    "limit": Named("limit", "Set, show and delete limits of tasks, which queues share."),
    "metrics": Named(
        "metrics",
        "Serve the figures of all queues, or of each QUEUE, to Prometheus: /metrics, /healthz, /readyz.",
    ),
    "partitions": Named(
        "partitions", "List the partitions of QUEUE: their tasks, rates, and storage servers."
    ),
    "pause": Named("queues", "Let no task be taken from QUEUE until `resume`."),
    "peek": Named("items", "Print the first item of QUEUE as JSON, without removing it."),
    "put": Named("items", "Put DATA into QUEUE, which must exist: `create` makes one, --create a plain one."),
    "queues": Named("queues", "List the queues, with their kinds and the numbers of their tasks or items."),
    "redrive": Named(
        "redrive", "Send buried tasks back at a bounded rate, into their own queue or another one."
    ),
    "release-all": Named(
        "tasks", "Release the taken tasks of QUEUE: their leases end, and they are ready again."
    ),
    "repartition": Named(
        "partitions", "Give QUEUE N partitions, while it is used, and wait until that is done."
    ),
    "result": Named(
        "result", "Print the result of a task of QUEUE as JSON: the value that its handler returned."
    ),
    "resume": Named("queues", "Let tasks be taken from QUEUE again, after `pause`."),
    "schedule": Named("schedules", "Put tasks at given times, by cron expressions or every S seconds."),
    "size": Named("items", "Print the number of items in QUEUE."),
    "spread": Named(
        "spread", "Print the lines of fdbcli that put the partitions of QUEUE on different storage servers."
    ),
    "stats": Named("queues", "Print the statistics of QUEUE; without QUEUE, of all queues."),
    "tasks": Named("tasks", "List the first tasks of QUEUE in a state, in order."),
    "top": Named(
        "top", "Watch task queues: numbers of tasks by state, rates, and the wait of the next task."
    ),
    "truncate": Named("tasks", "Remove all tasks of QUEUE, in any state; taken ones, too."),
    "verify": Named(
        "verify", "Check that the stored keys of QUEUE, or of all queues, agree with each other."
    ),
    "work": Named("work", "Take tasks, and call MODULE:FUNCTION or run a command for each."),
}


class Program(click.Group):
    """A group whose commands stand in COMMANDS. Help and completion import none of them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, named in COMMANDS.items():
            self.add_command(click.Command(name, help=named.help))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, *names: str) -> None:
        """Import these commands, or all without a name."""
        for name in names or COMMANDS:
            if name in COMMANDS:
                import_module(f"{__package__}.{COMMANDS[name].module}")


@click.group(
    cls=Program, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@URL
@ROOT
@SHARED
@click.pass_context
def cli(context: click.Context, url: str | None, root: str | None, shared: bool) -> None:
    """Use the queues and tasks of a database, and run workers for them.

    The database is --url, else $FDBQUEUE_URL, else the cluster of $FDB_CLUSTER_FILE, else
    embedded:./fdbqueue-data. Status: 0 done; 1 nothing found, or refused; 2 a mistake, or no database.
    """
    context.meta.update({OUTER_URL: url, OUTER_ROOT: root, OUTER_SHARED: shared})
    help_without_command(context)


def help_without_command(context: click.Context) -> None:
    """Print the help of a group that was called without a command."""
    if context.invoked_subcommand is None:
        require_stdout()
        click.echo(context.get_help())
