"""Swept: what the keeper sweeps of a queue: tasks, the keys of features, and the end of a repartition."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fdbqueue import tasks as late
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.feature import SWEPT, Feature, Site, feature_of_tasks, overriding
from fdbqueue.tasks.parts import Parts

if TYPE_CHECKING:
    from fdbqueue.tasks.repartition import Settling


class Swept:
    def __init__(self, parts: Parts, runtime: Runtime) -> None:
        self.name = parts.zero.name
        self.guard = parts.zero.guard
        self._parts = parts
        of_tasks = tuple(map(feature_of_tasks, SWEPT))
        self._features = (*of_tasks, *overriding(parts.shape.features, "sweep"))
        self._settling: Settling | None = None
        self._monotonic = runtime.monotonic

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        asked = [self._parts.ask_next_due(tr), *(one.ask_due(site) for one, site in self._swept(tr))]

        def reply() -> int | None:
            if self._due_settling() is not None:
                return 0
            return min((due for ask in asked if (due := ask()) is not None), default=None)

        return reply

    def tidy(self, tr: Transaction) -> bool:
        return (
            self._parts.tidy(tr)
            or self._settle(tr)
            or any(feature.sweep(site) for feature, site in self._swept(tr))
        )

    def _swept(self, tr: Transaction) -> Iterator[tuple[Feature, Site]]:
        """The features, each with the parts of the queue in which it has keys of its own that come due."""
        for feature in self._features:
            for source in self._parts.holding() if feature.in_each_part else (self._parts.zero,):
                yield feature, source.change(tr).site

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
