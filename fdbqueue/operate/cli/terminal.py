"""What is drawn on a terminal: tables, and bars of a progress. Its import loads rich."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from fdbqueue.core import limits
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import visible
from fdbqueue.operate.cli.exits import say

Row = Mapping[str, Any]
REPORT_EVERY = 10_000


def print_table(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> None:
    Console(highlight=False).print(table_of(rows, columns))


def table_of(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], str]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    shown = [[cell(row) for cell in columns.values()] for row in rows]
    for number, name in enumerate(columns):
        numeric = bool(shown) and all(not cells[number].strip("0123456789.,%/s ") for cells in shown)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for cells in shown:
        table.add_row(*map(Text, map(visible, cells)))  # as Text: rich would read square brackets as styles
    return table


@contextmanager
def reporting(stream: io.BufferedReader) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is told how many items were put, and how many bytes of `stream` were read.

    It shows the progress on standard error: as a bar on a terminal, else as lines. The total follows.
    """
    console, items = Console(stderr=True), 0
    counted, left = TextColumn("{task.fields[items]:,} put"), TimeRemainingColumn()
    bar = Progress(counted, BarColumn(), TaskProgressColumn(), left, console=console, transient=True)
    # A regular file has a size; a pipe or a terminal has none.
    task = bar.add_task("", total=os.fstat(stream.fileno()).st_size or None, items=0)

    def advance(more: int, bytes_read: int) -> None:
        nonlocal items
        before, items = items, items + more
        bar.update(task, completed=bytes_read, items=items)
        if not console.is_terminal and before // REPORT_EVERY != items // REPORT_EVERY:
            say(f"{items} put so far")

    try:
        with bar if console.is_terminal else nullcontext():
            yield advance
    finally:
        say(f"{items} put")


def step_by_step(signals: Signals, doing: str, most: int, step: Callable[[int], int]) -> int:
    """Call `step` with a small number until it has done `most`, or finds no more. Return the number done.

    The bound `most` ends the loop also while other processes put tasks. A signal takes effect between two
    steps.
    """
    total = 0
    with _bar(doing, most) as advance:
        while total < most:
            with signals.deferred():
                done = step(min(most - total, limits.VERB_BATCH))
            if not done:
                break
            total += done
            advance(done)
    return total


@contextmanager
def _bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.advance(task, done)
