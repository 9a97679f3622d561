"""The command `audit`: the last actions of operators."""

from functools import partial

import click
from msgspec.structs import asdict

from fdbqueue.core.database import run
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate.audit import lines as audits_of
from fdbqueue.operate.audit import seen_line
from fdbqueue.operate.cli.frame import Here, cli, command, first_option, queue_names
from fdbqueue.operate.cli.redacting import in_environment
from fdbqueue.operate.cli.show import Cell, columns, moment_in


@command(cli)
@click.argument("queue", required=False, metavar="[QUEUE]", shell_complete=queue_names)
@first_option
def audit(here: Here, queue: str | None, count: int) -> None:
    """List the last actions of operators: their times, actors and values.

    The latest comes first; with QUEUE, its own, also after its drop. They have acted by the dashboard or the
    command line. An action on many tasks has a line at its beginning, and one at its end. Columns: time,
    actor, action, queue, id or name, phase, tasks, values before and after. $FDBQUEUE_ACTOR names the actor
    of a command, in place of user@host.
    """
    with here.database() as database:
        found = run(database, partial(audits_of, keys=RootKeys(here.root), queue=queue))
    redaction = in_environment()
    here.show((asdict(seen_line(one, redaction)) for one in found[:count]), COLUMNS)


def _values(name: str) -> Cell:
    return lambda row: ", ".join(f"{one}={value}" for one, value in row[name].items())


COLUMNS = columns(
    **columns(at=moment_in("at")),
    **columns("actor", "action", "queue", "subject", "phase", "tasks"),
    before=_values("before"),
    after=_values("after"),
)
