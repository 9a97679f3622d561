"""The plain model of the workload `exact_worker`: tasks with the ends of their attempts, and one worker."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.task import Task
from fdbqueue.fleet.options import Event
from fdbqueue.fleet.status import Tally, WorkerStatus
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.simulation import Client
from tests.system.workloads.exact_calls import require_equal
from tests.system.workloads.hooked import TALLIED

NAME = "work"
ROUNDING_S = 1e-3


@dataclass(frozen=True)
class Plan:
    """The options of the worker in one run."""

    threads: int
    max_attempts: int | None
    first_s: float
    growth: float
    cap_s: float
    timeout_s: float | None

    @classmethod
    def drawn(cls, random: Random) -> "Plan":
        return cls(
            random.choice((1, 1, 2, 3)),
            random.choice((None, 1, 2, 4)),
            random.choice((0.0, 0.5, 3.0)),
            random.choice((1.0, 2.0, 3.0)),
            random.choice((2.0, 100.0)),
            random.choice((None, 2.0)),
        )

    def backoff_s(self, failures: int) -> float:
        return min(self.first_s * self.growth ** (failures - 1), self.cap_s)


@dataclass(frozen=True)
class End:
    """The expected end of an attempt: the name of its event, and the bounds of its delay."""

    name: str
    delay_s: tuple[float, float] = (0.0, 0.0)


@dataclass
class Life:
    """One task. `history`: the error, the message and the outcome of each failed attempt; a message of None
    is any.
    """

    id: str
    data: str
    wants_result: bool
    state: str = "r"
    attempts: int = 0
    failures: int = 0
    due_s: float = 0.0
    begun_s: float = 0.0
    history: list[tuple[str, str | None, str]] = field(default_factory=list)
    steps: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    effects: int = 0
    ends: dict[int, End] = field(default_factory=dict)
    """The ends of its attempts that no hook has told yet: the next attempt may begin before that."""


class World:
    def __init__(self, client: Client, q: TaskQueue, plan: Plan) -> None:
        self.client, self.q, self.plan = client, q, plan
        self.lives: dict[str, Life] = {}
        self.ends = Counter[str]()
        self.away_s = 0.0
        """The length of the last pause; 0 after an attempt that met nothing away."""
        self.away_until_s = -inf
        self.overrun = 0
        self._flaws: list[str] = []

    @property
    def now_s(self) -> float:
        return self.client.runtime.monotonic()

    def add(self, task: Task, *, wants_result: bool) -> None:
        self.lives[task.id] = Life(task.id, task.data, wants_result)

    @contextmanager
    def keeping_flaws(self) -> Iterator[None]:
        """Keep an AssertionError, which the worker takes for an error of its handler or its hook."""
        try:
            yield
        except AssertionError as error:
            self._flaws.append(str(error))
            raise

    # The ends of attempts.

    def over(self, life: Life, name: str, *, state: str, delay_s: tuple[float, float] = (0.0, 0.0)) -> None:
        """The attempt ends like this. After a delay, the task is due again."""
        life.state, life.ends[life.attempts] = state, End(name, delay_s)
        life.due_s = self.now_s + delay_s[0]
        self.ends[name] += 1
        self.away_s = 0.0

    def fail(
        self,
        life: Life,
        error: str,
        message: str | None,
        delay_s: float | None = None,
        *,
        for_good: bool = False,
        after_s: float = 0.0,
    ) -> None:
        """The attempt fails, `after_s` from now. `delay_s`: the delay of the handler's choice."""
        life.failures += 1
        most = self.plan.max_attempts
        if for_good or (most is not None and life.failures >= most):
            life.history.append((error, message, "buried"))
            self.over(life, "buried", state="!")
            return
        life.history.append((error, message, "retried"))
        whole_s = self.plan.backoff_s(life.failures)
        delays_s = (whole_s / 2, whole_s) if delay_s is None else (delay_s, delay_s)
        self.over(life, "retried", state="r", delay_s=delays_s)
        life.due_s += after_s

    def meet_nothing(self, life: Life) -> None:
        """Something is away: the worker pauses, and the task, too. It may be in a pause already."""
        pause_s = min(2 * self.away_s or limits.AWAY_FIRST_S, limits.AWAY_MAX_S)
        is_own = self.plan.threads == 1
        delay_s = (pause_s, pause_s) if is_own else (limits.AWAY_FIRST_S, limits.AWAY_MAX_S)
        self.over(life, "retried", state="r", delay_s=delay_s)
        self.away_s, self.away_until_s = pause_s, self.now_s + pause_s

    def kick(self, count: int) -> None:
        buried = [life for life in self.lives.values() if life.state == "!"]
        require_equal("kicked", count, len(buried))
        for life in buried:
            life.state, life.failures, life.due_s = "r", 0, 0.0

    # What the worker tells.

    def told(self, event: Event) -> None:
        """Check the event of the end of an attempt: it comes once, after the commit."""
        with self.keeping_flaws():
            self._require_told(self.lives[event.task.id], event)

    def _require_told(self, life: Life, event: Event) -> None:
        attempt = event.task.attempts
        end = life.ends.pop(attempt, None)
        assert end is not None, f"{event} is told, and no attempt has ended"
        require_equal(f"the end of attempt {attempt} of {life.data}", event.name, end.name)
        low_s, high_s = end.delay_s
        assert low_s - ROUNDING_S <= event.delay_s <= high_s + ROUNDING_S, f"{event}, not in {end.delay_s} s"

    def require_tally(self, status: WorkerStatus) -> None:
        assert not self._flaws, self._flaws[0]
        tally = Tally(**{TALLIED[name]: count for name, count in self.ends.items()})
        require_equal("tally", status.tally, tally)
        require_equal("threads that were given up", status.overrun, self.overrun)
        left = [life.data for life in self.lives.values() if life.ends]
        require_equal("ends that no hook has told", left, [])
        self.ends.clear()
        self.overrun = 0
