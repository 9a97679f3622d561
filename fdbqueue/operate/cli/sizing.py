"""The command that sizes a cluster: `estimate`. It opens no database."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.frame import NUMBER, json_option
from fdbqueue.operate.cli.show import Row, columns, show
from fdbqueue.operate.cli.wording import in_options
from fdbqueue.operate.estimate import COPIES_MAX, KINDS, LOADS, OPTIONS, Estimate, Plan, Server, estimate

RATE, BATCH = click.FloatRange(min=0, min_open=True), click.IntRange(1, limits.BATCH_ITEMS_MAX)
PAYLOAD, COPIES = click.IntRange(0, limits.PAYLOAD_BYTES_MAX), click.IntRange(1, COPIES_MAX)
FULL = "a second that fill a storage process"
_NUMBERS: tuple[tuple[str, str, Any, float, str], ...] = (
    ("--payload", "payload", PAYLOAD, 100, "bytes of each task, encoded"),
    ("--partitions", "partitions", NUMBER, 1, "of the queue"),
    ("--batch", "batch", BATCH, 1, "tasks of each transaction"),
    ("--replication", "replication", COPIES, 3, "copies of each key"),
    ("--receipts", "receipts", NUMBER, 1, "parts of the receipts, after `spread --receipts`"),
    ("--writes", "storage_writes", RATE, Server().storage_writes, FULL),
    ("--reads", "storage_reads", RATE, Server().storage_reads, FULL),
    ("--log-bytes", "log_bytes", RATE, Server().log_bytes, "a second that fill a log"),
    ("--commits", "proxy_commits", RATE, Server().proxy_commits, "a second that fill a commit proxy"),
)


def _number_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for flag, name, type_, default, told in reversed(_NUMBERS):
        help_ = f"{told} [{default:.0f}]"
        click.option(flag, name, type=type_, default=default, metavar="N", help=help_)(function)
    return function


@cli.command("estimate")
@click.option("--tasks-per-second", type=RATE, required=True, metavar="N", help="put, taken and acked")
@click.option("--kind", type=click.Choice([*KINDS]), default="fifo", help="of the queue [fifo]")
@click.option(
    "--with", "options", multiple=True, type=click.Choice([*OPTIONS]), help="an option of the tasks"
)
@_number_options
@json_option
@click.pass_obj
def sizes(signals: Signals, /, as_json: bool, **asked: Any) -> None:
    """Tell the load of a queue on a cluster, and the processes that carry it half busy.

    It opens no database, and knows the counts of calls without contention (docs/sizing.md). Columns: figure,
    value.
    """
    with in_options():
        server = Server(**{field.name: asked.pop(field.name) for field in fields(Server)})
        found = estimate(Plan(server=server, **asked))
    show(signals, [asdict(found)] if as_json else _rows(found), columns("figure", "value"), as_json)


def _rows(found: Estimate) -> Iterator[Row]:
    for name in LOADS:
        each, second = getattr(found.task, name), getattr(found.second, name)
        yield _row(f"{name.replace('_', ' ')}, of a task; a second", f"{each:,.2f}; {second:,.0f}")
    yield _row("storage teams", f"{found.storage_teams:,}")
    yield _row("logs", f"{found.logs:,}")
    yield _row("commit proxies", f"{found.commit_proxies:,}")
    yield _row("cores of clients", f"{found.client_cores:,.1f}")
    for bound in found.bounds:
        yield _row(f"tasks a second, {bound.part} half busy", f"{bound.tasks_per_second:,.0f}")
    yield _row("partitions for this rate", _partitions(found))


def _partitions(found: Estimate) -> str:
    if found.partitions is not None:
        return f"{found.partitions:,}"
    others = [bound for bound in found.bounds if bound.part != "partitions"]
    return f"none: the {min(others, key=lambda bound: bound.tasks_per_second).part} are too busy"


def _row(figure: str, value: str) -> Row:
    return {"figure": figure, "value": value}
