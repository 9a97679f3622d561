"""Fitting: verbs about many tasks, in transactions that are small enough."""

from collections.abc import Callable, Iterator

from fdbqueue import limits
from fdbqueue.database import engine_errors

TRANSACTION_TOO_LARGE = 2101


def in_batches(step: Callable[[int], int]) -> Iterator[int]:
    """Repeat `step` with a number of tasks until it has found none, and yield the number that it found.

    Tasks with long keys, many groups and limits may have too many bytes for one transaction: then the number
    is halved.
    Raises: an error of `step`; also that one for a single task.
    """
    count = limits.VERB_BATCH
    while True:
        try:
            found = step(count)
        except engine_errors() as error:
            if error.code != TRANSACTION_TOO_LARGE or count == 1:
                raise
            count //= 2
            continue
        if not found:
            return
        yield found
