"""The program and the table of its commands: the module of a command is imported when it is called.

`completion` is here, as a shell runs it whenever it starts.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import get_completion_class

from fdbqueue.core.version import __version__
from fdbqueue.operate.cli.exits import CommandError, require_stdout

_PROGRAM = "fdbqueue"
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
    name: Named(*row.split(": ", 1))
    for name, row in {
        "ack": "leases: Remove a task that is done.",
        "alter": "alter: Change options of QUEUE while it is used.",
        "aside": "items: List the values of QUEUE that could not be read and were set aside.",
        "audit": "audit: List the last actions of operators: their times, actors and values.",
        "bury": "leases: Bury tasks: they are not taken until `kick`.",
        "cancel": "tasks: End tasks.",
        "change": "changing: Give waiting tasks of QUEUE that match other options, or move them to another queue.",
        "clear": "items: Remove every item of QUEUE.",
        "complete": "tasks: Complete a task of QUEUE that its handler has handed off: its work is done.",
        "completion": "commands: Print a script with which SHELL completes commands, options and names of queues.",
        "conformance": "proofs: Prove that PROGRAM reads and writes the keys of the layout as this library does.",
        "create": "queues: Create QUEUE, a queue of tasks, or with --kind queue a plain queue of items.",
        "dashboard": "serving: Show all queues, their tasks and workers in a browser.",
        "dead": "dead: Look at buried tasks by class of failure, mend them, and kick them.",
        "delete": "tasks: Remove tasks, in any state; with --where, waiting tasks that match (see `change`).",
        "demo": "proofs: Run a fleet, kill and stall its processes, and check that each task counted once.",
        "doctor": "proofs: Check the database, its clients and its queues; tell the cure of each trouble.",
        "drop": "queues: Remove QUEUE and its contents.",
        "elements": "elements: Use element queues: named elements that any process may lock, as in dirq.",
        "ended": "tasks: List the last tasks of QUEUE that have ended, the latest first, or those with these IDs.",
        "estimate": "sizing: Tell the load of a queue on a cluster, and the processes that carry it half busy.",
        "explain": "tasks: Tell why a task of QUEUE is not running: each reason with its cure, the weightiest first.",
        "export": "exports: Write QUEUEs, or all queues, whole into FILE, for `fdbqueue import file`.",
        "fail": "tasks: Fail the attempt of a task of QUEUE that its handler has handed off, for this REASON.",
        "fleet": "fleet: List the workers of all hosts; or drain those of a host or a process, pause all, and resume them.",
        "follow": "tasks: Print the state and the progress of a task of QUEUE, and again each time that the progress changes.",
        "get": "items: Take items out of QUEUE and print them, one JSON value a line.",
        "group": "beside: Count tasks together, wait for all of them, and start a task when they have ended.",
        "import": "exports: Copy the items of other systems' queues, or the queues of an export.",
        "kick": "tasks: Make the first buried tasks of QUEUE ready again, or those that match (see `change`).",
        "limit": "beside: Set, show and delete limits of tasks, which queues share.",
        "metrics": "serving: Serve the figures of all queues, or of each QUEUE, to Prometheus: /metrics, /healthz, /readyz.",
        "partitions": "queues: List the partitions of QUEUE: their tasks, rates, and storage servers.",
        "pause": "queues: Let no task be taken from QUEUE until `resume`.",
        "peek": "items: Print the first item of QUEUE as JSON, without removing it.",
        "put": "items: Put DATA into QUEUE, which must exist: `create` makes one, --create a plain one.",
        "queues": "queues: List the queues, with their kinds and the numbers of their tasks or items.",
        "redrive": "dead: Send buried tasks back at a bounded rate, into their own queue or another one.",
        "release": "leases: Give a task back to its old place.",
        "release-all": "tasks: Release the taken tasks of QUEUE: their leases end, and they are ready again.",
        "repartition": "queues: Give QUEUE N partitions, while it is used, and wait until that is done.",
        "result": "tasks: Print the result of a task of QUEUE as JSON: the value that its handler returned.",
        "resume": "queues: Let tasks be taken from QUEUE again, after `pause`.",
        "schedule": "beside: Put tasks at given times, by cron expressions or every S seconds.",
        "serve": "serving: Serve task queues to the clients of another protocol: beanstalkd's.",
        "size": "items: Print the number of items in QUEUE.",
        "spread": "queues: Print the lines of fdbcli that put the partitions of QUEUE on different storage servers.",
        "stats": "queues: Print the statistics of QUEUE; without QUEUE, of all queues.",
        "take": "leases: Take the next task of QUEUE, and print its id, the TOKEN of its lease, and its data as JSON.",
        "tasks": "tasks: List the first tasks of QUEUE in a state, in order; with --where, those that match, in any state.",
        "top": "top: Watch task queues: numbers of tasks by state, rates, and the wait of the next task.",
        "touch": "leases: Lengthen the lease of a task.",
        "trash": "trash: List what was purged from a queue in the last day, put it back, or remove it for good.",
        "truncate": "tasks: Remove all tasks of QUEUE, in any state; taken ones, too.",
        "verify": "proofs: Check that the stored keys of QUEUE, or of all queues, agree with each other.",
        "waiting": "queues: List the calls that wait for tasks or items of QUEUE, in the order of its line.",
        "work": "work: Take tasks, and call MODULE:FUNCTION or run a command for each.",
    }.items()
}
"""The commands: for each, its module and the first sentence of its help text."""
AUDITED = (
    *("alter", "aside", "bury", "cancel", "change", "clear", "complete", "create", "dead edit", "dead kick"),
    *("elements export-dirq", "elements import-dirq", "elements purge", "elements remove", "redrive run"),
    *("import fdb-layer", "import persist-queue", "schedule fire", "spread", "verify"),
    *("delete", "drop", "fail", "fleet drain", "fleet pause", "fleet resume", "group cancel", "group close"),
    *("import file", "kick", "limit delete", "limit set", "pause", "redrive pause", "redrive resume"),
    *("redrive start", "redrive stop", "release-all", "repartition", "result", "resume", "schedule change"),
    *("schedule create", "schedule delete", "schedule pause", "schedule resume", "schedule run"),
    *("trash empty", "trash restore", "truncate"),
)
"""The commands that write a line of the audit (auditing.py), if they change something."""


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


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options and names of queues.

    bash: put eval "$(fdbqueue completion bash)" into ~/.bashrc. zsh: put eval "$(fdbqueue completion zsh)"
    into ~/.zshrc. fish: run fdbqueue completion fish | source.
    """
    require_stdout()
    completing = get_completion_class(shell)
    if completing is None:
        raise CommandError(f"no completion for {shell}")
    root = context.find_root().command
    try:
        script = completing(root, {}, _PROGRAM, f"_{_PROGRAM.upper()}_COMPLETE").source()
    except RuntimeError as reason:  # this bash is too old
        raise CommandError(str(reason)) from None
    click.echo(script)
