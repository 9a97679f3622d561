"""The output of commands: a table on a terminal, tab-separated lines in a pipe, or JSON."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import visible
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.exits import require_stdout, say
from fdbqueue.operate.cli.group import stdout_of
from fdbqueue.operate.cli.values import line_of

Row = Mapping[str, Any]
Columns = Mapping[str, Callable[[Row], str]]


def show(signals: Signals, rows: Iterable[Row], columns: Columns, as_json: bool) -> None:
    """Print `rows`: all of each as JSON, or its `columns`."""
    if on_a_terminal() and not as_json:
        late.tables.print_table(rows, columns)
        return
    out = stdout_of(signals)
    for row in rows:
        out.print(line_of(row) if as_json else plain_line(row, columns))


def tell(signals: Signals, message: str, row: Row, as_json: bool) -> None:
    """Report a change: as `row` in JSON, or as `message` on standard error."""
    if as_json:
        stdout_of(signals).print(line_of(row))
    else:
        say(message)


def on_a_terminal() -> bool:
    require_stdout()
    return os.isatty(sys.stdout.fileno())


def plain_line(row: Row, columns: Columns) -> bytes:
    return ("\t".join(visible(_one_line(cell(row))) for cell in columns.values()) + "\n").encode()


def field(name: str) -> Callable[[Row], str]:
    """Return a column of one field; empty where the field is missing or None."""
    return lambda row: "" if row.get(name) is None else str(row[name])


def span(seconds: float | None) -> str:
    """Return a length of time as a short text: 42s, 3m10s, 2h5m, 4d3h."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    for size, unit, below, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size}{unit}{f'{rest}{smaller}' if rest else ''}"
    return f"{whole}s"


def _one_line(text: str) -> str:
    return " ".join(text.split())
