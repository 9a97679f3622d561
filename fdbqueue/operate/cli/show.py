"""The output of commands: a table on a terminal, tab-separated lines in a pipe, or JSON."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from fdbqueue.core.page import Page
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import span as span
from fdbqueue.core.visible import visible
from fdbqueue.operate import cli as late
from fdbqueue.operate.cli.exits import require_stdout, say
from fdbqueue.operate.cli.output import LineWriter
from fdbqueue.operate.cli.wording import line_of

Row = Mapping[str, Any]
Cell = Callable[[Row], str]
Columns = Mapping[str, Cell]
T = TypeVar("T")
PLAIN_EVERY_S = 10.0
"""Time between two lines of a progress that is not drawn on a terminal."""


def stdout_of(signals: Signals) -> LineWriter:
    """Raises: CommandError if it is closed."""
    require_stdout()
    return LineWriter(sys.stdout.fileno(), signals.check)


def show(signals: Signals, rows: Iterable[Row], columns: Columns, as_json: bool) -> None:
    """Print `rows`: all of each as JSON, or its `columns`."""
    if on_a_terminal() and not as_json:
        late.terminal.print_table(rows, columns)
        return
    out = stdout_of(signals)
    for row in rows:
        out.print(line_of(row) if as_json else plain_line(row, columns))


def on_a_terminal() -> bool:
    require_stdout()
    return os.isatty(sys.stdout.fileno())


def plain_line(row: Row, columns: Columns) -> bytes:
    cells = (visible(" ".join(cell(row).split())) for cell in columns.values())
    return ("\t".join(cells) + "\n").encode()


def paged(read: Callable[[int, str | None], Page[T]], count: int, more: str) -> Iterator[T]:
    """Read at most `count` rows, page by page. If others may follow them, tell the sentence `more`.

    `read` takes a number of rows and the place after which they begin.
    """
    left, after = count, None
    while left:
        page = read(left, after)
        yield from page
        left, after = left - len(page), page.next
        if after is None:
            return
    say(f"{more}: -n N lists N")


def columns(*names: str, **others: Any) -> dict[str, Cell]:
    """Make columns: fields of these names, then others, each by the name of its field, or by a Cell."""
    cells = {name: field(cell) if isinstance(cell, str) else cell for name, cell in others.items()}
    return {**{name: field(name) for name in names}, **cells}


def field(name: str) -> Cell:
    """Return a column of one field; empty where the field is missing or None."""
    return lambda row: "" if row.get(name) is None else str(row[name])


def time_in(name: str) -> Cell:
    """Return a column of one length of time in seconds."""
    return lambda row: span(row[name])


def json_in(name: str, *, null: bool = False) -> Cell:
    """Return a column of one value as JSON; without `null`, empty for None."""
    return lambda row: "" if row[name] is None and not null else line_of(row[name]).decode().strip()


def cell_of(value: Any) -> str:
    """Return a text as it is, another value as JSON."""
    return value if isinstance(value, str) else line_of(value).decode().strip()


def per_second(name: str) -> Cell:
    """Return a column of one rate; empty for None."""
    return lambda row: "" if row[name] is None else f"{row[name]:,.1f}"
