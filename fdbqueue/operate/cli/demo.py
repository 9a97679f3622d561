"""`fdbqueue demo`: shows a fleet that loses no task while its processes are killed."""

import click

from fdbqueue.core.open import shared_url
from fdbqueue.operate.cli.commands import OUTER_ROOT, OUTER_SHARED, OUTER_URL, cli
from fdbqueue.operate.demo import main


@cli.command()
@click.option("--url", metavar="URL", help="a database to run on, instead of a temporary directory")
@click.option("--tasks", type=click.IntRange(min=1), default=20_000, metavar="N", help="N tasks [20000]")
@click.pass_context
def demo(context: click.Context, url: str | None, tasks: int) -> int:
    """Run a fleet, kill and stall its processes, and check that each task counted once.

    The demo runs in a temporary directory, or below a root of its own at --url, and removes it at the end.

    Four processes count the lines of the source files of this Python's standard library. Each of N tasks is a
    part of a file. Meanwhile the demo kills processes (SIGKILL), or stops them for longer than their leases
    (SIGSTOP). One task cannot succeed, and must be buried. Status 1 if a task was lost or counted twice.
    """
    if context.meta[OUTER_ROOT] is not None:
        raise click.UsageError("demo has a root of its own: it takes no --root")
    where = url or context.meta[OUTER_URL]
    return main(shared_url(where) if where and context.meta[OUTER_SHARED] else where, tasks)
