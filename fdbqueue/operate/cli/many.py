"""Verbs on any number of tasks: bounded transactions, one after another, with a progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.signals import Signals
from fdbqueue.tasks.queue import TaskQueue


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


def remove_all(signals: Signals, database: Database, queue: TaskQueue, most: int) -> int:
    """Remove up to `most` tasks; return their number."""
    return step_by_step(signals, "removing", most, lambda few: queue.truncate_some(database, few))


@contextmanager
def _bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on standard error, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _nothing
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.advance(task, done)


def _nothing(_: int) -> None: ...
