"""Swept: what the keeper sweeps of a queue with `retain_s`: its tasks, and the ended tasks that it keeps."""

from collections.abc import Callable

from fdbqueue.seam import Transaction
from fdbqueue.sessions.keeper import Tidied
from fdbqueue.tasks.retaining import ask_surplus_due, forget
from fdbqueue.tasks.source import TaskSource


def swept(source: TaskSource) -> Tidied:
    """The keeper's view of a queue."""
    retain_us = source.shape.retain_us
    return source if retain_us is None else Swept(source, retain_us)


class Swept:
    def __init__(self, source: TaskSource, retain_us: int) -> None:
        self.name = source.name
        self.guard = source.guard
        self._source = source
        self._retain_us = retain_us

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        asked = self._source.ask_next_due(tr), ask_surplus_due(tr, self._source.shape.keys, self._retain_us)
        return lambda: min((due for reply in asked if (due := reply()) is not None), default=None)

    def tidy(self, tr: Transaction) -> bool:
        return self._source.tidy(tr) or forget(self._source.change(tr), self._retain_us)
