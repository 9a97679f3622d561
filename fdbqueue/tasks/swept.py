"""Swept: what the keeper sweeps of a queue: tasks of all partitions, results, and ended tasks."""

from collections.abc import Callable

from fdbqueue.runtime import Runtime
from fdbqueue.seam import Transaction
from fdbqueue.sessions.keeper import Tidied
from fdbqueue.tasks import results
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.repartition import Settling
from fdbqueue.tasks.retaining import ask_surplus_due, forget


def swept(parts: Parts, runtime: Runtime) -> Tidied:
    """The keeper's view of a queue."""
    retain_us, settling = parts.shape.retain_us, Settling(parts, runtime.monotonic)
    if retain_us is None:
        return Swept(parts, settling, runtime)
    return SweptAndRetaining(parts, settling, runtime, retain_us)


def _first(*times: int | None) -> int | None:
    return min((time for time in times if time is not None), default=None)


class Swept:
    def __init__(self, parts: Parts, settling: Settling, runtime: Runtime) -> None:
        self._runtime = runtime
        self.name = parts.zero.name
        self.guard = parts.zero.guard
        self._parts = parts
        self._settling = settling
        self._results = parts.shape.shared

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        asked, over = self._parts.ask_next_due(tr), results.ask_over(tr, self._results)
        return lambda: 0 if self._settling.is_due() else _first(asked(), over())

    def tidy(self, tr: Transaction) -> bool:
        return (
            self._parts.tidy(tr)
            or (self._settling.is_due() and self._settling.step(tr))
            or results.forget(tr, self._results, self._runtime.now_us())
        )


class SweptAndRetaining(Swept):
    def __init__(self, parts: Parts, settling: Settling, runtime: Runtime, retain_us: int) -> None:
        super().__init__(parts, settling, runtime)
        self._retain_us = retain_us

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        holding = self._parts.holding()
        asked = [
            super().ask_next_due(tr),
            *(ask_surplus_due(tr, source.shape.keys, self._retain_us) for source in holding),
        ]
        return lambda: _first(*(reply() for reply in asked))

    def tidy(self, tr: Transaction) -> bool:
        return super().tidy(tr) or any(
            forget(source.change(tr), self._retain_us) for source in self._parts.holding()
        )
