"""The command that shows what this is for."""

import click

from fdbqueue.cli.group import OUTER_ROOT, OUTER_SHARED, OUTER_URL, cli
from fdbqueue.demo import main
from fdbqueue.open import shared_url


@cli.command()
@click.option("--url", metavar="URL", help="a database to run on, instead of a temporary directory")
@click.option("--tasks", type=click.IntRange(min=1), default=20_000, metavar="N", help="how many [20000]")
@click.pass_context
def demo(context: click.Context, url: str | None, tasks: int) -> int:
    """A fleet at work on real files, killed and stalled at it, and a proof that each counted once.

    It runs in a temporary directory, or below a root of its own at --url, and leaves nothing behind.

    The source files of this Python's standard library are counted, in so many parts, by four processes; all
    the while, some are killed (SIGKILL) or stopped for longer than their leases last (SIGSTOP). Among the
    tasks is one that cannot succeed. Status 1 if anything was lost, done twice, or not noticed.
    """
    if context.meta[OUTER_ROOT] is not None:
        raise click.UsageError("demo has a root of its own: it takes no --root")
    where = url or context.meta[OUTER_URL]
    return main(shared_url(where) if where and context.meta[OUTER_SHARED] else where, tasks)
