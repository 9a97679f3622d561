"""A worker and a plain model: each attempt finds the counts, the history and the steps of those before it.

The handler ends each attempt by a deed of its own choice, in the model, too. So the next attempt, the hooks,
the tally and the queue at the end are known. Then all buried tasks are kicked for a second worker.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.errors import NoResult
from fdbqueue.core.page import every_row
from fdbqueue.core.task import Failure, Task
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.options import Event, Hooks
from fdbqueue.fleet.outcomes import Backoff, Bury, Done, Retry, Snooze, Unavailable
from fdbqueue.fleet.status import Tally, WorkerStatus
from fdbqueue.fleet.worker import Worker
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import exact_statistics, no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import cramped
from tests.system.workloads.exact_model import require_equal
from tests.system.workloads.fleet import ended
from tests.system.workloads.hooked import TALLIED
from tests.system.workloads.stage import EFFECTS, effects_in

NAME = "work"
ROUNDING_S = 1e-3


@dataclass(frozen=True)
class Plan:
    """The options of the worker in one run."""

    threads: int
    attempts: int | None
    first_s: float
    growth: float
    cap_s: float
    timeout_s: float | None
    of_queue: "Said"

    @classmethod
    def drawn(cls, random: Random, more: Random) -> "Plan":
        return cls(
            random.choice((1, 1, 2, 3)),
            random.choice((None, 1, 2, 4)),
            random.choice((0.0, 0.5, 3.0)),
            random.choice((1.0, 2.0, 3.0)),
            random.choice((3.0, 100.0)),
            random.choice((None, 2.0)),
            Said.drawn(more),
        )

    @property
    def backoff(self) -> Backoff:
        return Backoff(self.first_s, self.growth, self.cap_s)


SAID_P = 0.5
USUAL = 5
"""The default of a worker."""


@dataclass(frozen=True)
class Said:
    """The options of the queue, or of the put of a task."""

    attempts: float | None
    backoff: Backoff | None

    @classmethod
    def drawn(cls, random: Random) -> "Said":
        says = random.random() < SAID_P
        attempts = random.choice((None, 1, 2, 3, inf)) if says else None
        return cls(attempts, random.choice((None, Backoff(1.5, 3, 9), Backoff(0))) if says else None)


def whole_s(backoff: Backoff, failures: int) -> float:
    return min(backoff.first_s * backoff.growth ** (failures - 1), backoff.cap_s)


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
    said: Said
    """Of its put, or else of its queue."""
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

    def add(self, task: Task, own: Said, *, wants_result: bool) -> None:
        queue = self.plan.of_queue
        attempts = queue.attempts if own.attempts is None else own.attempts
        said = Said(attempts, queue.backoff if own.backoff is None else own.backoff)
        self.lives[task.id] = Life(task.id, task.data, wants_result, said)

    def most(self, life: Life) -> float:
        if life.said.attempts is not None:
            return life.said.attempts
        return USUAL if self.plan.attempts is None else self.plan.attempts

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
        if for_good or life.failures >= self.most(life):
            life.history.append((error, message, "buried"))
            self.over(life, "buried", state="!")
            return
        life.history.append((error, message, "retried"))
        pause_s = whole_s(life.said.backoff or self.plan.backoff, life.failures)
        delays_s = (pause_s / 2, pause_s) if delay_s is None else (delay_s, delay_s)
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


KINDS: Sequence[tuple[str, dict[str, Any]]] = (
    ("fifottl", {}),
    ("fifottl", {"partitions": 2}),
    ("utubettl", {}),
    ("limfifottl", {"capacity": 1_000}),
    ("fair", {}),
    ("bag", {}),
)
KEYED = ("utubettl", "fair")
RESULT_TTL_S = 1e6
DELAYS_S = (0.0, 0.2, 5.0)
ATTEMPTS_MAX = 12
Deed = Callable[[HeldTask, Life], object]


# An answer that does not come makes the worker pause, and a process that stands still loses leases.
@workload(clients=1, steps=6, never=("die", "stall", "slow_reply", "future_version", "clock_skew_s"))
def exact_worker(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} exact worker")
    simulation.limit(DUE_BATCH=random.choice((1, 3, 8)), VERB_BATCH=3, FAILURES_KEPT=random.choice((1, 3)))
    kind, options = random.choice(KINDS)
    more = Random(f"{simulation.seed} attempts")  # from other dice: all else of a seed stays as it was
    plan = Plan.drawn(random, more)

    def use(client: Client) -> None:
        made = {**options, **vars(plan.of_queue)}
        q = TaskQueue.create(client.db, NAME, kind, ttr=60.0, if_not_exists=True, **made)
        world = World(client, q, plan)
        for number in range(2 * size.steps):
            wants = random.choice((None, RESULT_TTL_S))
            key = f"{number % 3}" if kind in KEYED else None
            own = Said.drawn(more)
            task = q.put(client.db, f"{number}", key=key, result_ttl=wants, **vars(own))
            world.add(task, own, wants_result=wants is not None)
        work(world, Handler(world).handle)
        look_at_the_end(world)
        world.kick(q.kick(client.db, 2 * size.steps))
        work(world, Handler(world).succeed)
        look_at_the_end(world)

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")
    return [exact_statistics(NAME), no_watch_left_behind]


def work(world: World, handler: Callable[..., object]) -> None:
    plan = world.plan
    names = ("succeeded", "retried", "snoozed", "buried", "lease_lost", "cancelled")
    worker = Worker(
        world.client.db,
        world.q,
        handler,
        hooks=Hooks(**dict.fromkeys(names, world.told)),
        threads=plan.threads,
        attempts=plan.attempts,
        backoff=plan.backoff,
        timeout_s=plan.timeout_s,
        overtake=0,
    )
    worker.start(until_empty=True)
    ended(worker)
    world.require_tally(worker.status())


# Calls.


class Handler:
    def __init__(self, world: World) -> None:
        self._world, self._random = world, world.client.random
        self._deeds: dict[Deed, float] = {
            self._return: 3,
            self._have_an_effect: 2,
            self._retry: 2,
            self._raise: 3,
            self._bury: 0.7,
            self._snooze: 1.5,
            self._return_no_result: 0.7,
            self._end_by_a_verb: 2,
            self._give_back_by_a_verb: 2,
            self._bury_by_a_verb: 1,
            self._be_cancelled: 1.5,
            self._lose_it: 0.7,
            **({self._overrun: 1.0} if world.plan.timeout_s is not None else {self._find_nothing: 1.5}),
        }

    def handle(self, task: HeldTask) -> object:
        """Raises: AssertionError, which the world keeps: to the worker, it is a failed attempt."""
        with self._world.keeping_flaws():
            return self._handle(task)

    def _handle(self, task: HeldTask) -> object:
        life = self._begun(task)
        for name in self._random.sample(("one", "two", "three"), self._random.randint(0, 2)):
            self._do_a_step(task, life, name)
        self._world.client.runtime.sleep(self._random.choice((0, 0, 0.01, 0.5)))
        if life.attempts >= ATTEMPTS_MAX:
            return self._return(task, life)
        [deed] = self._random.choices([*self._deeds], [*self._deeds.values()])
        return deed(task, life)

    def succeed(self, task: HeldTask) -> object:
        with self._world.keeping_flaws():
            return self._return(task, self._begun(task))

    def _begun(self, task: HeldTask) -> Life:
        life = self._world.lives[task.id]
        life.attempts, life.begun_s = life.attempts + 1, self._world.now_s
        look_at_the_task(self._world, task, life)
        return life

    def _do_a_step(self, task: HeldTask, life: Life, name: str) -> None:
        """Do a step, unless an earlier attempt has done it."""
        made = f"{name} in attempt {life.attempts}"
        require_equal(f"step {name}", task.step(name, lambda: made), life.steps.setdefault(name, made))

    # The deeds.

    def _return(self, task: HeldTask, life: Life) -> object:
        life.result = f"result of {task.data}" if life.wants_result else None
        self._world.over(life, "succeeded", state="-")
        return f"result of {task.data}"

    def _have_an_effect(self, task: HeldTask, life: Life) -> None:
        self._return(task, life)
        life.effects += 1
        raise Done(lambda tr: tr.add(EFFECTS + task.data.encode(), b"\x01"), f"result of {task.data}")

    def _retry(self, _: HeldTask, life: Life) -> None:
        delay_s = self._random.choice((None, *DELAYS_S))
        self._world.fail(life, "Retry", "later", delay_s)
        raise Retry(delay_s, "later")

    def _raise(self, _: HeldTask, life: Life) -> None:
        error = self._random.choice((ValueError("odd"), SystemExit("odd"), Snooze, KeyError()))
        if error is Snooze:  # a verdict without its fields
            self._world.fail(life, "TypeError", None)
            raise Snooze  # type: ignore[call-arg]  # a mistake that a handler may make
        self._world.fail(life, type(error).__name__, str(error))
        raise error

    def _bury(self, _: HeldTask, life: Life) -> None:
        self._world.fail(life, "Bury", "never", for_good=True)
        raise Bury("never")

    def _snooze(self, _: HeldTask, life: Life) -> None:
        delay_s = self._random.choice(DELAYS_S)
        self._world.over(life, "snoozed", state="r", delay_s=(delay_s, delay_s))
        raise Snooze(delay_s)

    def _return_no_result(self, _: HeldTask, life: Life) -> object:
        """Return something that shows that the work has not run, or a verdict that was to be raised."""
        unfinished, verdict = (one for one in [life]), self._random.choice((Retry(1.0), Bury))
        error, result = self._random.choice((("DeferredResult", unfinished), ("VerdictReturned", verdict)))
        self._world.fail(life, error, None)
        return result

    def _end_by_a_verb(self, task: HeldTask, life: Life) -> None:
        acks = self._random.random() < 0.5
        verb = self._world.q.ack if acks else self._world.q.delete
        self._world.over(life, "succeeded", state="-")
        verb(self._world.client.db, task)
        self._perhaps_raise()

    def _give_back_by_a_verb(self, task: HeldTask, life: Life) -> None:
        delay_s, world = self._random.choice(DELAYS_S), self._world
        db, q, said = world.client.db, world.q, life.said
        fails = self._random.random() < 0.5
        # A worker buries at the next take a task that its own number has used up.
        if fails and (said.attempts is not None or life.failures + 1 < world.most(life)):
            self._fail_by_a_verb(task, life, delay_s)
        else:
            verb = q.defer if self._random.random() < 0.5 else q.release
            world.over(life, "snoozed", state="r")
            life.due_s += delay_s
            verb(db, task, delay=delay_s)
        self._perhaps_raise()

    def _fail_by_a_verb(self, task: HeldTask, life: Life, delay_s: float) -> None:
        """Release it with a failure: then those of the put, or of the queue, count. A delay of 0 is none."""
        life.failures += 1
        is_over = life.said.attempts is not None and life.failures >= life.said.attempts
        name, state = ("buried", "!") if is_over else ("retried", "r")
        life.history.append(("Odd", "by a verb", name))
        self._world.over(life, name, state=state)
        pause_s = whole_s(life.said.backoff, life.failures) / 2 if life.said.backoff is not None else 0.0
        life.due_s += delay_s or pause_s
        after = self._world.q.release(
            self._world.client.db, task, delay=delay_s or None, failure=Failure("Odd", "by a verb")
        )
        require_equal("state", after.state in "r~", not is_over)

    def _bury_by_a_verb(self, task: HeldTask, life: Life) -> None:
        failure = self._random.choice((None, Failure("Odd", "by a verb")))
        if failure is not None:
            life.failures += 1
            life.history.append(("Odd", "by a verb", "buried"))
        self._world.over(life, "buried", state="!")
        self._world.q.bury(self._world.client.db, task, failure=failure)
        self._perhaps_raise()

    def _perhaps_raise(self) -> None:
        """Raise after the lease has ended: this changes nothing."""
        if self._random.random() < 0.3:
            raise self._random.choice((ValueError("late"), Snooze(1.0), Bury("late")))

    def _be_cancelled(self, task: HeldTask, life: Life) -> object:
        """Cancel the task as an operator does: an attempt that succeeds all the same is acked."""
        self._world.q.cancel(self._world.client.db, task.id)
        if self._random.random() < 0.3:
            return self._return(task, life)
        self._world.over(life, "cancelled", state="-")
        if self._random.random() < 0.5:
            task.progress(0.5)
            task.check()
            raise AssertionError(f"{life.data} was cancelled, and passes its check")
        raise self._random.choice((ValueError("odd"), Snooze(1.0), Retry(1.0), Bury("never")))

    def _lose_it(self, task: HeldTask, life: Life) -> None:
        """Delete the task as an operator does. The attempt ends without a lease."""
        self._world.q.delete(self._world.client.db, task.id)
        away_s = self._world.away_s
        self._world.over(life, "lease_lost", state="-")
        if self._random.random() < 0.5:
            raise ValueError("odd")
        self._world.away_s = away_s  # it tells nothing about that

    def _overrun(self, _: HeldTask, life: Life) -> None:
        assert self._world.plan.timeout_s is not None
        self._world.overrun += 1
        left_s = life.begun_s + self._world.plan.timeout_s - self._world.now_s
        self._world.fail(life, "Timeout", None, after_s=max(0.0, left_s))
        self._world.client.runtime.sleep(4 * self._world.plan.timeout_s)

    def _find_nothing(self, _: HeldTask, life: Life) -> None:
        self._world.meet_nothing(life)
        raise Unavailable("the server is down")


# Looks.


def look_at_the_task(world: World, task: Task, life: Life) -> None:
    """Check that an attempt begins in its time, with the counts and the history of those before it."""
    assert life.state == "r", f"{life.data} is {life.state}, and begins an attempt"
    require_equal(f"attempts of {life.data}", task.attempts, life.attempts)
    require_equal(f"failures of {life.data}", task.failures, life.failures)
    early_s = life.due_s - world.now_s
    assert early_s <= ROUNDING_S, f"attempt {life.attempts} of {life.data} begins {early_s} s early"
    if world.plan.threads == 1:
        early_s = world.away_until_s - world.now_s
        assert early_s <= ROUNDING_S, f"{life.data} begins {early_s} s before the end of a pause"
    life.state = "t"
    _look_at_the_history(world, task, life)


def look_at_the_end(world: World) -> None:
    """Check that the queue holds the buried tasks only, and each result and effect is there once."""
    db, q, lives = world.client.db, world.q, world.lives.values()
    buried = {task.id: task for task in _buried(world)}
    require_equal("buried", sorted(buried), sorted(life.id for life in lives if life.state == "!"))
    require_equal("unfinished", [life.data for life in lives if life.state not in "!-"], [])
    require_equal("tasks", sum(q.statistics(db)["tasks"][name] for name in ("ready", "taken", "delayed")), 0)
    effects = effects_in(db)
    for life in lives:
        require_equal(f"effects of {life.data}", effects.get(life.data, 0), life.effects)
        if life.id in buried:
            require_equal(f"failures of {life.data}", buried[life.id].failures, life.failures)
            _look_at_the_history(world, buried[life.id], life)
        elif life.wants_result:
            require_equal(f"result of {life.data}", _result(world, life), life.result)


def _buried(world: World) -> Iterator[Task]:
    return every_row(partial(world.q.tasks, world.client.db, "!", len(world.lives)))


def _look_at_the_history(world: World, task: Task, life: Life) -> None:
    """Check the last failures of a task."""
    found = world.q.failures(world.client.db, task)
    expected = life.history[-limits.FAILURES_KEPT :]
    require_equal(f"failures of {life.data}", [one.outcome for one in found], [one[2] for one in expected])
    for one, (error, message, _) in zip(found, expected, strict=True):
        require_equal("error", one.error, error)
        require_equal("message", one.message, one.message if message is None else message)


def _result(world: World, life: Life) -> object:
    try:
        return world.q.result(world.client.db, life.id, timeout=0)
    except NoResult:
        return None
