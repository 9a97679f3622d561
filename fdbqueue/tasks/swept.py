"""Swept: what the keeper sweeps of a queue: tasks of all partitions, and the ended tasks that it keeps."""

from collections.abc import Callable

from fdbqueue.runtime import Runtime
from fdbqueue.seam import Transaction
from fdbqueue.sessions.keeper import Tidied
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.repartition import Settling
from fdbqueue.tasks.retaining import ask_surplus_due, forget


def swept(parts: Parts, runtime: Runtime) -> Tidied:
    """The keeper's view of a queue."""
    retain_us, settling = parts.shape.retain_us, Settling(parts, runtime.monotonic)
    return Swept(parts, settling) if retain_us is None else SweptAndRetaining(parts, settling, retain_us)


class Swept:
    def __init__(self, parts: Parts, settling: Settling) -> None:
        self.name = parts.zero.name
        self.guard = parts.zero.guard
        self._parts = parts
        self._settling = settling

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        asked = self._parts.ask_next_due(tr)
        return lambda: 0 if self._settling.is_due() else asked()

    def tidy(self, tr: Transaction) -> bool:
        return self._parts.tidy(tr) or (self._settling.is_due() and self._settling.step(tr))


class SweptAndRetaining(Swept):
    def __init__(self, parts: Parts, settling: Settling, retain_us: int) -> None:
        super().__init__(parts, settling)
        self._retain_us = retain_us

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        holding = self._parts.holding()
        asked = [
            super().ask_next_due(tr),
            *(ask_surplus_due(tr, source.shape.keys, self._retain_us) for source in holding),
        ]
        return lambda: min((due for reply in asked if (due := reply()) is not None), default=None)

    def tidy(self, tr: Transaction) -> bool:
        return super().tidy(tr) or any(
            forget(source.change(tr), self._retain_us) for source in self._parts.holding()
        )
