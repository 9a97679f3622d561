"""Verbs over as many tasks as there are: bounded transactions one after another, and how far it has come."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress

from fdbqueue import limits
from fdbqueue.database import Database
from fdbqueue.signals import Signals
from fdbqueue.tasks.queue import TaskQueue


def step_by_step(signals: Signals, doing: str, most: int, step: Callable[[int], int]) -> int:
    """Have `step` do up to `most`, some at a time, until it finds no more; how many it did.

    More may come meanwhile: so many as there were are enough, and it ends. A signal comes between two steps.
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
    """Remove as many tasks as there are; how many that was."""
    return step_by_step(signals, "removing", most, lambda few: queue.truncate_some(database, few))


@contextmanager
def _bar(doing: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, nothing elsewhere; both on standard error."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _nothing
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.advance(task, done)


def _nothing(_: int) -> None: ...
