"""The progress of `fdbqueue put --lines`: a bar on a terminal, lines otherwise."""

import io
import os

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fdbqueue.operate.cli.exits import say

REPORT_EVERY = 10_000


class Report:
    """A context manager that shows the progress as lines, and the total at its end."""

    def __init__(self) -> None:
        self._items = 0

    def __enter__(self) -> "Report":
        return self

    def __exit__(self, *exc: object) -> None:
        say(f"{self._items} put")

    def advance(self, items: int, bytes_read: int) -> None:  # noqa: ARG002  # for a bar
        before, self._items = self._items, self._items + items
        if before // REPORT_EVERY != self._items // REPORT_EVERY:
            say(f"{self._items} put so far")


class BarReport(Report):
    def __init__(self, console: Console, bytes_total: int | None) -> None:
        super().__init__()
        self._progress = Progress(
            TextColumn("{task.fields[items]:,} put"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=bytes_total, items=0)

    def __enter__(self) -> "BarReport":
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()
        super().__exit__(*exc)

    def advance(self, items: int, bytes_read: int) -> None:
        self._items += items
        self._progress.update(self._task, completed=bytes_read, items=self._items)


def report_on(stream: io.BufferedReader) -> Report:
    """Return a bar for a terminal, plain lines otherwise; both on standard error."""
    console = Console(stderr=True)
    return BarReport(console, _length_of(stream)) if console.is_terminal else Report()


def _length_of(stream: io.BufferedReader) -> int | None:
    """Return the size of a regular file in bytes; None for a pipe or a terminal."""
    status = os.fstat(stream.fileno())
    return status.st_size or None
