"""Swept: what the keeper sweeps of a queue: tasks, windows of unique keys, results, and ended tasks."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fdbqueue import tasks as late
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.chores import Tidied
from fdbqueue.tasks import results
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.unique import ask_first_window, close_windows

if TYPE_CHECKING:
    from fdbqueue.tasks.repartition import Settling


def swept(parts: Parts, runtime: Runtime) -> Tidied:
    """The keeper's view of a queue."""
    retain_us = parts.shape.retain_us
    return Swept(parts, runtime) if retain_us is None else SweptAndRetaining(parts, runtime, retain_us)


def _first(asked: Iterable[Callable[[], int | None]]) -> int | None:
    return min((due for reply in asked if (due := reply()) is not None), default=None)


class Swept:
    def __init__(self, parts: Parts, runtime: Runtime) -> None:
        self.name = parts.zero.name
        self.guard = parts.zero.guard
        self._parts = parts
        self._shared = parts.shape.shared
        self._limits = parts.shape.limits
        self._settling: Settling | None = None
        self._monotonic = runtime.monotonic
        self._now_us = runtime.now_us

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        keys = self._shared
        asked = [self._parts.ask_next_due(tr), ask_first_window(tr, keys), results.ask_over(tr, keys)]
        if self._limits is not None:
            asked.append(self._limits.ask_next_rest(tr))
        return lambda: _first(asked) if self._due_settling() is None else 0

    def tidy(self, tr: Transaction) -> bool:
        return (
            self._parts.tidy(tr)
            or self._settle(tr)
            or close_windows(tr, self._shared, self._now_us())
            or results.forget(tr, self._shared, self._now_us())
            or (self._limits is not None and self._limits.ask_rest(tr, self._now_us())())
        )

    def _settle(self, tr: Transaction) -> bool:
        settling = self._due_settling()
        return settling is not None and settling.step(tr)

    def _due_settling(self) -> "Settling | None":
        """The steps towards the end of a repartition; None if none is due."""
        if self._parts.plan is None:
            return None
        if self._settling is None:
            self._settling = late.repartition.Settling(self._parts, self._monotonic)
        return self._settling if self._settling.is_due() else None


class SweptAndRetaining(Swept):
    def __init__(self, parts: Parts, runtime: Runtime, retain_us: int) -> None:
        super().__init__(parts, runtime)
        self._retain_us = retain_us

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        holding = self._parts.holding()
        asked = [
            super().ask_next_due(tr),
            *(late.retaining.ask_surplus_due(tr, source.shape.keys, self._retain_us) for source in holding),
        ]
        return lambda: _first(asked)

    def tidy(self, tr: Transaction) -> bool:
        return super().tidy(tr) or any(
            late.retaining.forget(source.change(tr), self._retain_us) for source in self._parts.holding()
        )
