"""`fdbqueue put`: puts values in batches, one transaction each, and shows the progress."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fdbqueue.core import limits, visible
from fdbqueue.core.errors import QueueFull, TooMuchForOneTransaction
from fdbqueue.core.signals import Signals
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.values import LineReader, line_of

if TYPE_CHECKING:
    from fdbqueue.operate.cli.reports import Report

Sink = Callable[[Sequence[Any]], None]
"""A function that puts values, in order, in one transaction."""


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
        held = f"it holds {visible.counted(full.current_size, 'task')}, its capacity is {full.capacity}"
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


def put_lines(sink: Sink, lines: LineReader, batch_max: int, report: "Report", signals: Signals) -> None:
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
