"""`fdbqueue put`: puts values in batches, one transaction each, and shows the progress."""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fdbqueue import limits, plurals
from fdbqueue.cli.exits import Refused, say
from fdbqueue.cli.values import LineReader, line_of
from fdbqueue.errors import QueueFull, TooMuchForOneTransaction
from fdbqueue.signals import Signals

REPORT_EVERY = 10_000
Sink = Callable[[Sequence[Any]], None]
"""A function that puts values, in order, in one transaction."""


class Report(Protocol):
    """A context manager that shows the progress, and the total at its end."""

    def __enter__(self) -> "Report": ...
    def __exit__(self, *exc: object) -> None: ...
    def advance(self, items: int, bytes_read: int) -> None: ...


@contextmanager
def counted(sink: Sink, queue: str) -> Iterator[Sink]:
    """Yield a sink that counts its values, as a queue may become full behind the first ones.

    Raises: Refused for QueueFull behind values that were put; otherwise QueueFull itself.
    """
    done = 0

    def put_some(values: Sequence[Any]) -> None:
        nonlocal done
        sink(values)
        done += len(values)

    try:
        yield put_some
    except QueueFull as full:
        if not done:
            raise
        held = f"it holds {plurals.counted(full.current_size, 'task')}, its capacity is {full.capacity}"
        raise Refused(f"The first {done} were put. Then the queue {queue!r} was full: {held}.") from None


def put_values(sink: Sink, values: Sequence[Any], batch_max: int) -> None:
    """Put `values`, in order, in few transactions."""
    for batch in batches_of(values, batch_max):
        try:
            _put_in_parts(sink, batch)
        except TypeError as reason:
            raise Refused(str(reason)) from None


def _put_in_parts(sink: Sink, batch: Sequence[Any]) -> None:
    """Put a batch, in halves if it does not fit: long keys and headers count beside the values."""
    try:
        sink(batch)
    except TooMuchForOneTransaction:
        if len(batch) == 1:
            raise
        half = len(batch) // 2
        _put_in_parts(sink, batch[:half])
        _put_in_parts(sink, batch[half:])


def put_lines(sink: Sink, lines: LineReader, batch_max: int, report: Report, signals: Signals) -> None:
    """Put the values of all lines. A batch is reported after its commit, also if a signal arrives."""
    with report:
        for values in lines.batches():
            with signals.deferred():
                for batch in batches_of(values, batch_max):
                    put_values(sink, batch, batch_max)
                    report.advance(len(batch), lines.bytes_read)


def batches_of(values: Sequence[Any], batch_max: int = limits.BATCH_ITEMS_MAX) -> Iterator[Sequence[Any]]:
    """Split `values` into consecutive parts, each small enough for one transaction."""
    start = size_bytes = 0
    for end, value in enumerate(values):
        size_bytes += (length := len(line_of(value)))
        if end > start and (end - start == batch_max or size_bytes > limits.BATCH_BYTES_MAX):
            yield values[start:end]
            start, size_bytes = end, length
    if start < len(values):
        yield values[start:]


def report_on(stream: io.BufferedReader) -> Report:
    """Return a bar for a terminal, plain lines otherwise; both on standard error."""
    console = Console(stderr=True)
    return BarReport(console, _length_of(stream)) if console.is_terminal else PlainReport()


class PlainReport:
    def __init__(self) -> None:
        self._items = 0

    def __enter__(self) -> "PlainReport":
        return self

    def __exit__(self, *exc: object) -> None:
        say(f"{self._items} put")

    def advance(self, items: int, bytes_read: int) -> None:  # noqa: ARG002  # a Report
        before, self._items = self._items, self._items + items
        if before // REPORT_EVERY != self._items // REPORT_EVERY:
            say(f"{self._items} put so far")


class BarReport(PlainReport):
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


def _length_of(stream: io.BufferedReader) -> int | None:
    """Return the size of a regular file in bytes; None for a pipe or a terminal."""
    status = os.fstat(stream.fileno())
    return status.st_size or None
