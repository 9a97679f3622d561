"""The sessions of the workload `exact_sessions`, as plain Python: openers with deadlines in microseconds."""

from collections.abc import Callable
from dataclasses import dataclass, field

from fdbqueue.core.task import Holder, HolderProcess
from tests.system.workloads.exact_life import Life
from tests.system.workloads.exact_model import HOLDER_DIED, Model
from tests.system.workloads.exact_times import is_over


@dataclass
class Known:
    """A session that has not ended. Times and spans are microseconds."""

    id: str
    name: str | None
    ttr: int
    deadline: int = 0
    openers: dict[int, int] = field(default_factory=dict)
    """The deadlines of its openers, by number."""


class Sessions:
    def __init__(self, model: Model) -> None:
        self._model = model
        self.known: dict[str, Known] = {}

    @property
    def now(self) -> int:
        return self._model.now

    def overdue(self) -> list[Known]:
        return [one for one in self.known.values() if is_over(one.deadline, self.now)]

    def named(self, name: str | None) -> Known | None:
        return next((one for one in self.known.values() if one.name is not None and one.name == name), None)

    def before_opening(self, name: str | None) -> Known | None:
        """The session that a new opener of that name shares. One that is overdue ends before."""
        found = self.named(name)
        if found is not None and is_over(found.deadline, self.now):
            self.die(found)
        return self.named(name)

    def open(self, id_: str, name: str | None, ttr: int, opener: int) -> Known:
        one = self.known.setdefault(id_, Known(id_, name, ttr))
        one.ttr = max(one.ttr, ttr)
        self.beat(one, opener)
        return one

    def beat(self, one: Known, opener: int) -> None:
        """Renew an opener. Others that are dead are forgotten."""
        one.openers = {number: at for number, at in one.openers.items() if at > self.now}
        one.openers[opener] = self.now + one.ttr
        one.deadline = max(one.openers.values())

    def leave(self, one: Known, opener: int) -> None:
        """End an opener, and the session with the last one that lives."""
        one.openers.pop(opener, None)
        if one.name is not None and any(at > self.now for at in one.openers.values()):
            one.deadline = max(one.openers.values())
        else:
            self._end(one, lambda life: self._model.release(life))

    def die(self, one: Known) -> None:
        self._end(one, lambda life: self._model.lose(life, HOLDER_DIED, "release"))

    def die_all(self) -> None:
        self.die_first(len(self.known))

    def die_first(self, most: int) -> None:
        """End the sessions that are overdue for the longest time."""
        for one in sorted(self.overdue(), key=lambda one: (one.deadline, one.id))[:most]:
            self.die(one)
        self._model.sweep()  # a task that comes back may have expired

    def _end(self, one: Known, give_back: Callable[[Life], object]) -> None:
        for life in self._model.in_state("t"):
            if life.session == one.id:
                give_back(life)
        del self.known[one.id]

    def holder(self, life: Life, process: HolderProcess) -> Holder:
        one = self.known[life.session or ""]
        processes = (process,) * (1 if one.name is None else len(one.openers))
        return Holder(
            one.id, one.name, processes, (one.deadline - one.ttr) / 1_000_000, one.deadline / 1_000_000
        )
