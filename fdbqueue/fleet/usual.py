"""How long the tasks of a worker usually run: a mean for each class, in which late runs weigh more.

A class is a queue, and in a worker of functions a function in it. Only runs that were acked count: one that
fails may fail at once, and one that hangs says nothing about the others. The first limits.RUN_CLASSES_MAX
classes of a worker are measured. The presence of the worker tells the mean beside each running task.
"""

from fdbqueue.core import limits
from fdbqueue.core.task import Task
from fdbqueue.fleet.functions import Tasks

Class = tuple[str, str]
"""The queue, and the function or an empty text."""


class Usual:
    def __init__(self, functions: Tasks | None) -> None:
        self._functions = functions
        self._runs: dict[Class, tuple[int, float]] = {}
        """The number of runs, and their mean in seconds."""

    def ran(self, queue: str, task: Task, seconds: float) -> None:
        """A run of a task was acked."""
        of = self._class_of(queue, task)
        known = self._runs.get(of)
        if known is not None or len(self._runs) < limits.RUN_CLASSES_MAX:
            self._runs[of] = weighed(known, seconds)

    def seconds(self, queue: str, task: Task) -> float | None:
        """The mean of the class of a task; None before its first run has ended."""
        known = self._runs.get(self._class_of(queue, task))
        return None if known is None else known[1]

    def _class_of(self, queue: str, task: Task) -> Class:
        found = None if self._functions is None else self._functions.function_of(task)
        return queue, "" if found is None else found.name


def weighed(known: tuple[int, float] | None, seconds: float) -> tuple[int, float]:
    """The number of runs and their mean, with one more: a plain mean until limits.RUNS_WEIGHED runs."""
    runs, mean = (0, 0.0) if known is None else known
    runs = min(runs + 1, limits.RUNS_WEIGHED)
    return runs, mean + (seconds - mean) / runs
