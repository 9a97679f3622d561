"""The tasks of the model of the workload `exact`: their states, their unique keys, and their ends."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from fdbqueue.core.task import EndedTask, Task
from tests.system.workloads.exact_life import WAITS, Life
from tests.system.workloads.exact_times import is_over, micro


class Stored(NamedTuple):
    """A stored result, or the outcome that left none."""

    outcome: str
    value: Any
    until: int


class Window(NamedTuple):
    """The holder of a unique key. `until`: the end of a scope in seconds."""

    id: str
    until: int | None


class Tasks:
    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        self.kind, self.options = kind, options
        self.now = 0
        self.lives: dict[str, Life] = {}
        self.calls = Counter[str]()
        self.results: dict[str, Stored] = {}
        self.kept: list[EndedTask] = []
        self.windows: dict[Any, Window] = {}
        self.paused = False
        self.overdue: Collection[str] = ()
        """Sessions that are dead, and that no process has ended yet."""

    @property
    def is_parted(self) -> bool:
        """True if its tasks lie in partitions, which say nothing about the order of their tasks."""
        return "partitions" in self.options

    # The options of a put, and the defaults of the queue.

    def ttl(self, options: dict[str, Any]) -> int | None:
        return micro(_given(options, "ttl", self.options.get("ttl")))

    def ttr(self, options: dict[str, Any]) -> int | None:
        """The default is the ttr of the queue, and without one, the ttl of the queue."""
        return micro(_given(options, "ttr", _given(self.options, "ttr", self.options.get("ttl"))))

    def pri(self, options: dict[str, Any]) -> int:
        return int(_given(options, "pri", self.options.get("pri", 0)))

    def end(self, life: Life, call: str, outcome: str, value: Any = None) -> Task:
        """Remove the task. Return it as the call does."""
        if life.result_ttl is not None:
            self.results[life.id] = Stored(outcome, value, self.now + life.result_ttl)
        if "retain_s" in self.options:
            self.kept.append(life.ended(outcome, self.now))
        if life.unique is not None and self.is_holder(life) and self.windows[life.unique].until is None:
            del self.windows[life.unique]
        del self.lives[life.id]
        self.calls.update((call, "done"))
        life.free()
        return life.shown("-")

    def come_back(self, life: Life, state: str = "r") -> None:
        """Let a task wait again; it takes its unique key again, unless another task has it."""
        if life.unique is not None and life.scope == "queued" and life.state not in WAITS:
            window = self.windows.get(life.unique)
            if window is not None and not is_over(window.until, self.now):
                life.unique = None
            else:
                self.windows[life.unique] = Window(life.id, None)
        life.free(state)

    def leave_scope(self, life: Life) -> None:
        if life.unique is not None and life.scope == "queued" and self.is_holder(life):
            del self.windows[life.unique]

    def is_holder(self, life: Life) -> bool:
        return life.unique in self.windows and self.windows[life.unique].id == life.id

    def in_state(self, state: str) -> list[Life]:
        """The tasks in that state, in order."""
        found = [life for life in self.lives.values() if life.state == state]
        return sorted(found, key=lambda life: life.place if state in "r!" else (0, life.id))

    def takeable(self) -> list[Life]:
        """The ready tasks that a take may give, the next one first, unless the order of keys is that of
        rounds, or none.
        """
        if self.paused:
            return []
        busy = Counter(life.key for life in self.in_state("t"))
        free = {key: self.options.get("key_concurrency", 1) - busy[key] for key in {*self._keys()}}
        found = []
        for life in self.in_state("r"):
            if "utube" not in self.kind or free[life.key] > 0:
                found.append(life)
                free[life.key] -= 1
        return found

    def _keys(self) -> Iterable[Any]:
        return (life.key for life in self.lives.values())


def _given(options: dict[str, Any], name: str, default: Any) -> Any:
    found = options.get(name)
    return default if found is None else found
