"""The command `alter`: other options of a queue while it is used, and its last changes."""

from collections.abc import Callable
from typing import Any

import click

from fdbqueue.core.registry import told_option
from fdbqueue.operate.cli.frame import Here, OptionName, cli, command, flag_of, queue_argument, queue_options
from fdbqueue.operate.cli.queues import weight_of
from fdbqueue.operate.cli.redacting import seen
from fdbqueue.operate.cli.show import Row, columns, moment_in
from fdbqueue.operate.cli.wording import option_named
from fdbqueue.tasks.altering import ALTERABLE, LASTING, Alteration

WITHOUT = {flag_of(name).removeprefix("--"): name for name in ALTERABLE}


def _altered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hide the options that stay. Given all the same, they are refused with the reason."""
    for param in getattr(function, "__click_params__", ()):
        if isinstance(param, click.Option) and param.name in {*ALTERABLE, *LASTING}:
            param.hidden = param.name in LASTING
            param.help = (param.help or "").split(" [")[0]  # it is no default here
    return function


@command(cli, queue_argument)
@_altered
@click.option("--kind", metavar="KIND")
@queue_options
@click.option(
    "--without", type=OptionName(sorted(WITHOUT)), multiple=True, help="take back an option; repeatable"
)
def alter(here: Here, queue: str, without: tuple[str, ...], **options: Any) -> None:
    """Change options of QUEUE while it is used. Without an option, list its last changes.

    Running producers, workers and waiting calls go by the new values at once. Times and the priority concern
    tasks that are put from then on. A smaller capacity or --key-concurrency lets what is there run out.
    Columns: time, process, option, value before, value after.
    """
    options["weights"] = dict(map(weight_of, options["weights"]))
    given: dict[str, Any] = dict.fromkeys(WITHOUT[name] for name in without)
    given |= {name: value for name, value in options.items() if value not in (None, (), {})}
    both = sorted(name for name in WITHOUT if name in without and given[WITHOUT[name]] is not None)
    if both:
        raise click.UsageError(f"alter takes --{both[0]} or --without {both[0]}, not both")
    with here.tasks(queue) as (database, found):
        if not given:
            here.show([row for one in found.alterations(database) for row in _rows(one)], COLUMNS)
            return
        done = found.alter(database, **given)
    changes = _seen(done)
    told = ", ".join(
        f"{option_named(name)} from {told_option(before)} to {told_option(after)}"
        for name, (before, after) in changes.items()
    )
    row = {"queue": queue, "by": done.by, "at": done.at, "changes": changes}
    here.tell(f"{queue!r} changes {told}" if told else f"{queue!r} has these options already", row)


def _rows(one: Alteration) -> list[Row]:
    return [
        {"at": one.at, "by": one.by, "option": name, "before": before, "after": after}
        for name, (before, after) in _seen(one).items()
    ]


def _seen(one: Alteration) -> dict[str, tuple[Any, Any]]:
    """The changes. Weights are stored as text, which a hidden key hides whole."""
    return {
        name: (seen("key", before), seen("key", after)) if name == "weights" else (before, after)
        for name, (before, after) in one.changes.items()
    }


COLUMNS = columns(
    at=moment_in("at"),
    by="by",
    option=lambda row: flag_of(row["option"]).removeprefix("--"),
    before=lambda row: told_option(row["before"]),
    after=lambda row: told_option(row["after"]),
)
