"""How the workload `exact` calls a queue, and its plain model: one list of tasks, one clock, and counts.

After each call the model makes the same one, and the answers must be equal: tasks, errors, numbers. Its
methods change the tasks as docs/tasks.md and docs/unique.md tell it. The clock stands still during a call, so
each time is known to the microsecond, and it does not matter which call sweeps a task.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import BatchOverCapacity, FdbQueueError, NotTaken, QueueFull, UniqueTaskBusy
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import FDBError, Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.task import EndedTask, Failure, Task, TaskState
from fdbqueue.tasks.rows import cure_of_buried
from fdbqueue.testing.cases import Size
from fdbqueue.testing.simulation import Client, Simulation
from tests.system.workloads.common import SPACE
from tests.system.workloads.composed_calls import Rollback

WITHIN, ROLLED_BACK = 0.4, 0.08
_MARK = SPACE["exact"].key()
_ROOT = RootKeys(DEFAULT_ROOT)
_TIMED_OUT = 1031
Verb = Callable[[Any], Any]


class Clock:
    """The clock of the one process: it stands still, except when it is moved."""

    def __init__(self, client: Client) -> None:
        self._runtime = client.runtime
        self.now = client.runtime.now_us()
        self.move_to(self.now)

    def move_to(self, now: int) -> None:
        self.now = max(self.now, now)
        self._runtime.hold(self.now)


class Steps(Protocol):
    """The process of a workload: each step is a call, and looks."""

    def step(self) -> None: ...


P = TypeVar("P", bound=Steps)


def step_by_step(
    simulation: Simulation,
    size: Size,
    made: Callable[[Client], P],
    name: str | None = None,
    end: Callable[[P], object] | None = None,
) -> None:
    """Add the process of a workload. With a name, each of its steps is an operation of the trace."""
    simulation.limit(SESSION_HOLD_SHARE=0)  # its clock stands still, and that of the database does not

    def use(client: Client) -> None:
        process = made(client)
        for _ in range(size.steps):
            if name is None:
                process.step()
            else:
                client.call(name, "step", None, process.step)
        if end is not None:
            end(process)

    for number in range(size.clients):
        simulation.client(use, f"user-{number}")


class Caller:
    """Calls that have their effect once, whatever the faults. An error is an answer, too."""

    def __init__(self, client: Client) -> None:
        self.client, self.random, self.clock = client, client.random, Clock(client)

    def answer(self, verb: Verb, always_alone: bool = False) -> Any:
        """Call `verb` with the database, or in a transaction that happens once."""
        chance = self.random.random()
        if chance < ROLLED_BACK:
            self._roll_back(verb)
        return caught(verb, self.client.db) if always_alone or chance > WITHIN else self.within(verb)

    def _roll_back(self, verb: Verb) -> None:
        def body(tr: Transaction) -> None:
            caught(verb, tr)
            raise Rollback

        with suppress(Rollback):
            run(self.client.db, body)

    def within(self, verb: Verb) -> Any:
        answers: dict[bytes, Any] = {}

        def body(tr: Transaction) -> Any:
            mark = tr.get(_MARK).value
            if mark is None or bytes(mark) not in answers:
                mark = self.client.runtime.random_bytes(8)
                answers[mark] = caught(verb, tr)
                tr.set(_MARK, mark)
            return answers[bytes(mark)]

        return run(self.client.db, body)

    def tick(self) -> None:
        """Let the process sweep all that is due. Many faults may use up the time of a sweep: then it sweeps
        again.
        """
        keeper = keeper_of(self.client.db, _ROOT)
        while True:
            try:
                keeper.tick()
                return
            except FDBError as error:
                if error.code != _TIMED_OUT:
                    raise


def caught(verb: Verb, target: Any) -> Any:
    """The answer of a call; its error, if it is one of ours."""
    try:
        return verb(target)
    except FdbQueueError as error:
        return error


def right(answer: Callable[[], Any]) -> Any:
    """The answer of the model, which may be an error."""
    try:
        return answer()
    except FdbQueueError as error:
        return error


def require_equal(what: str, found: Any, wanted: Any) -> None:
    """Raises: AssertionError, which ends the run as a violation."""
    assert shown_alike(found, wanted), f"{what}: {found!r}, and right is {wanted!r}"


def shown_alike(one: Any, other: Any) -> bool:
    """True for equal answers; the ids of errors' texts count, too."""
    if isinstance(one, Exception) or isinstance(other, Exception):
        return type(one) is type(other) and str(one) == str(other)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(shown_alike, one, other))
    return bool(_without_trace(one) == _without_trace(other))


def _without_trace(answer: Any) -> Any:
    return replace(answer, trace=None) if isinstance(answer, Task) else answer


def micro(span_s: float | None) -> int | None:
    return None if span_s is None or span_s == inf else round(span_s * 1_000_000)


def seconds(time: int | None) -> float | None:
    return None if time is None else time / 1_000_000


def added(time: int | None, span: int | None) -> int | None:
    return None if time is None or span is None else time + span


def earliest(*times: int | None) -> int | None:
    return min(known(times), default=None)


def known(times: Iterable[int | None]) -> Iterable[int]:
    return (time for time in times if time is not None)


def is_over(time: int | None, now: int) -> bool:
    """True if it is that time, or later."""
    return time is not None and time <= now


LEASE_OVER = Failure("LeaseLost", "its lease ended before its holder ended the task")


def holder_died(name: str | None, runtime: Runtime) -> Failure:
    """A session without a name has one process, and its failures name it."""
    process = f"{runtime.host_name()}:{runtime.process_id()}" if name is None else ""
    return Failure("LeaseLost", "its holder's session died", worker=process)


WAITS = "r~"
STATES = {"t": "taken", "!": "buried", "-": "done"}
Answer = Task | Exception


@dataclass
class Life:
    """A task that has not ended. Times and spans are microseconds, None for never."""

    id: str
    data: Any
    created: int
    expires: int | None
    ttr: int | None
    pri: int = 0
    key: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    result_ttl: int | None = None
    unique: Any = None
    scope: str | float = "unfinished"
    state: str = "r"
    until: int | None = None
    attempts: int = 0
    failures: int = 0
    """All since its put; `forgiven` of them do not count any more."""
    forgiven: int = 0
    orphaned: int = 0
    token: bytes | None = None
    taken: int | None = None
    session: str | None = None
    cancelled: int | None = None
    fraction: float | None = None
    told: int | None = None
    steps: dict[str, Any] = field(default_factory=dict)
    failed: list[tuple[int, Failure]] = field(default_factory=list)
    """The stored failures with their numbers."""
    waits: str | None = None
    """The group for whose end it waits."""
    groups: dict[str, bool] = field(default_factory=dict)
    """Its groups. True for one that counts it as failed, since a burial."""

    @property
    def place(self) -> tuple[int, str]:
        return (self.pri, self.id)

    @property
    def timer(self) -> int | None:
        return self.until if self.state in "t~" else self.expires

    def shown(self, state: str = "") -> Task:
        return Task(
            id=self.id,
            state=TaskState(state or self.state),
            data=self.data,
            pri=self.pri,
            key=self.key,
            attempts=self.attempts,
            failures=self.failures - self.forgiven,
            orphaned=self.orphaned,
            created=self.created / 1_000_000,
            expires=seconds(self.expires),
            until=seconds(self.until),
            token=self.token,
            taken=seconds(self.taken),
            session=self.session,
            cancel_asked=seconds(self.cancelled),
            fraction=self.fraction,
            fraction_told=seconds(self.told),
            headers=self.headers,
            result_ttl=seconds(self.result_ttl),
            steps=len(self.steps),
            unique=self.unique,
            groups=tuple(self.groups),
            waits_for=self.waits,
        )

    def ended(self, outcome: str, now: int) -> EndedTask:
        return EndedTask(
            id=self.id,
            outcome=outcome,
            created=self.created / 1_000_000,
            taken=seconds(self.taken),
            ended=now / 1_000_000,
            attempts=self.attempts,
            failures=self.failures,
            key=self.key,
            pri=self.pri,
            session=self.session,
        )

    def free(self, state: str = "r") -> None:
        """Let it have no lease any more."""
        self.state, self.until, self.token, self.taken, self.session = state, None, None, None, None
        self.cancelled, self.fraction, self.told = None, None, None

    def put_off(self, now: int, delay: int) -> None:
        if delay:
            self.state, self.until, self.expires = "~", added(now, delay), added(self.expires, delay)

    def fail(self, failure: Failure, outcome: str, now: int) -> None:
        self.failures += 1
        noted = Failure(
            failure.error,
            failure.message,
            worker=failure.worker,
            outcome=outcome,
            attempt=self.attempts,
            when=now / 1_000_000,
            began=seconds(self.taken),
        )
        self.failed = [*self.failed, (self.failures, noted)][-limits.FAILURES_KEPT :]


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

    def result_ttl(self, options: dict[str, Any]) -> int | None:
        return micro(_given(options, "result_ttl", self.options.get("result_ttl")))

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


class Model(Tasks):
    # Time.

    def next_change(self) -> int | None:
        """The next time at which a task changes without a call."""
        timers = [life.timer for life in self.lives.values()]
        ends = [window.until for window in self.windows.values()]
        ends += [stored.until for stored in self.results.values()]
        return earliest(*timers, *(end for end in ends if not is_over(end, self.now)))

    def due(self) -> list[Life]:
        """The tasks that have come to their time, in its order."""
        over = [life for life in self.lives.values() if is_over(life.timer, self.now)]
        return sorted(over, key=lambda life: (life.timer or 0, life.id))

    def is_contested(self) -> bool:
        """True if the first of several sweeps decides which task has a unique key."""
        due = self.due()
        return len(due) > 1 and any(life.scope == "queued" for life in due)

    def sweep(self) -> None:
        """Let the tasks change that have come to their time: in batches, as a sweep does."""
        while batch := self.due()[: limits.DUE_BATCH]:
            for state in "t~":
                for life in (life for life in batch if life.state == state):
                    self._sweep_one(life)
            for life in batch:
                if life.id in self.lives and life.state in "r!" and is_over(life.expires, self.now):
                    self.calls["ttl"] += 1
                    self.end(life, "delete", "expired")
        self.windows = {key: one for key, one in self.windows.items() if not is_over(one.until, self.now)}
        self.results = {id_: one for id_, one in self.results.items() if one.until > self.now}

    def _sweep_one(self, life: Life) -> None:
        if life.state == "t":
            self.lose(life, LEASE_OVER, "ttr")
        else:
            self.come_back(life)
            self.calls["delay"] += 1

    def retained(self) -> list[EndedTask]:
        """The ended tasks that a queue keeps, the latest first."""
        after = self.now / 1_000_000 - self.options["retain_s"]
        latest = sorted(self.kept, key=lambda one: (one.ended, one.id), reverse=True)
        return [one for one in latest if one.ended > after][: limits.RETAINED_MAX]

    # The edges of the life cycle.

    def lease(self, life: Life, taken: Task, session: str) -> None:
        self.leave_scope(life)
        life.state, life.attempts, life.taken = "t", life.attempts + 1, self.now
        life.token, life.session, life.until = taken.token, session, self.lease_end(life)
        self.calls["take"] += 1

    def lease_end(self, life: Life) -> int | None:
        until = added(self.now, life.ttr)
        return until if self.kind == "utubettl" else earliest(until, life.expires)

    def held(self, task: Task) -> Life:
        life = self.lives.get(task.id)
        if life is None or life.state != "t" or life.token != task.token:
            raise NotTaken(id=task.id)
        return life

    def release(self, life: Life, delay: int = 0, failure: Failure | None = None) -> Task:
        if life.cancelled is not None:
            return self.end(life, "cancel", "cancelled")
        if failure is not None:
            life.fail(failure, "retried", self.now)
            life.orphaned = 0
        self.come_back(life)
        life.put_off(self.now, delay)
        self.calls["release"] += 1
        return life.shown()

    def lose(self, life: Life, failure: Failure, call: str) -> None:
        if life.cancelled is not None:
            self.end(life, "cancel", "cancelled")
            return
        life.fail(failure, "lease_lost", self.now)
        life.orphaned += 1
        self.come_back(life)
        self.calls[call] += 1

    def bury(self, life: Life, failure: Failure | None = None) -> Task:
        if life.state == "!":
            return life.shown()
        if life.cancelled is not None:
            return self.end(life, "cancel", "cancelled")
        if failure is not None:
            life.fail(failure, "buried", self.now)
        self.put_aside(life)
        return life.shown()

    def put_aside(self, life: Life) -> None:
        self.leave_scope(life)
        life.free("!")
        self.calls["bury"] += 1

    def kick(self, lives: Iterable[Life]) -> None:
        for life in lives:
            self.come_back(life)
            life.forgiven, life.orphaned = life.failures, 0
            self.calls["kick"] += 1

    def truncate(self) -> None:
        self.lives, self.windows = {}, {}


class Stored(NamedTuple):
    """A stored result, or the outcome that left none."""

    outcome: str
    value: Any
    until: int


class Window(NamedTuple):
    """The holder of a unique key. `until`: the end of a scope in seconds."""

    id: str
    until: int | None


def _given(options: dict[str, Any], name: str, default: Any) -> Any:
    found = options.get(name)
    return default if found is None else found


def put(model: Model, name: str, data: Any, options: dict[str, Any], made: Task | None) -> Answer:
    """The right answer of a put. `made`: the answer of the queue; a new task has its id."""
    unique = options.get("unique")
    if unique is not None and unique in model.windows:
        return _beside(model, model.windows[unique], data, options)
    full = full_with(model, name, 1)
    if full is not None:
        return full
    return _new(model, data, options, "" if made is None else made.id).shown()


def put_many(model: Model, name: str, data: list[Any], options: dict[str, Any], made: list[str]) -> Any:
    full = full_with(model, name, len(data))
    if full is not None:
        return full
    ids = made if len(made) == len(data) else [""] * len(data)
    return [_new(model, one, options, id_).shown() for one, id_ in zip(data, ids, strict=True)]


def full_with(model: Model, name: str, more: int) -> Exception | None:
    capacity = model.options.get("capacity")
    if capacity is None or len(model.lives) + more <= capacity:
        return None
    told = {"name": name, "current_size": len(model.lives), "capacity": capacity}
    if more > capacity:
        return BatchOverCapacity(**told, wanted=more)
    mostly_buried = 2 * sum(life.state == "!" for life in model.lives.values()) > len(model.lives)
    return QueueFull(**told, wanted=more, cure=cure_of_buried(name) if mostly_buried else "")


def _new(model: Model, data: Any, options: dict[str, Any], id_: str) -> Life:
    delay, ttl, now = micro(options.get("delay", 0)) or 0, model.ttl(options), model.now
    life = Life(id_, data, now, added(added(now, ttl), delay), model.ttr(options))
    life.pri, life.key = model.pri(options), options.get("key")
    life.headers, life.result_ttl = options.get("headers") or {}, model.result_ttl(options)
    if delay:
        life.state, life.until = "~", now + delay
    unique, scope = options.get("unique"), options.get("scope", "unfinished")
    if unique is not None:
        life.unique, life.scope = unique, scope
        until = None if isinstance(scope, str) else added(now, micro(scope))
        model.windows[unique] = Window(id_, until)
    assert id_ not in model.lives, f"the id {id_!r} is given twice"
    assert model.is_parted or id_ > max(model.lives, default=""), f"{id_!r} is not behind all others"
    model.lives[id_] = life
    model.calls["put"] += 1
    return life


def _beside(model: Model, window: Window, data: Any, options: dict[str, Any]) -> Answer:
    """The answer of a put with the unique key of another task."""
    life, unique = model.lives.get(window.id), options["unique"]
    if options.get("on_conflict", "skip") == "skip":
        if life is None:
            return Task(window.id, TaskState.DONE, None, unique=unique)
        return life.shown()
    if life is None or life.state not in WAITS:
        state = "-" if life is None else life.state
        return UniqueTaskBusy(id=window.id, state=STATES[state], unique=unique)
    _overwrite(model, life, data, options)
    return life.shown()


def _overwrite(model: Model, life: Life, data: Any, options: dict[str, Any]) -> None:
    now, due = model.now, life.until if life.state == "~" else model.now
    if options["on_conflict"] == "debounce":
        latest = life.created + (micro(options["debounce_max"]) or 0)
        due = min(now + (micro(options.get("delay", 0)) or 0), latest)
    due = max(now, due or 0)
    life.data, life.headers, life.ttr = data, options.get("headers") or {}, model.ttr(options)
    life.result_ttl = micro(options.get("result_ttl")) or life.result_ttl or model.result_ttl({})
    life.expires, life.steps = added(due, model.ttl(options)), {}
    if life.state == "~" and due <= now:
        model.calls["delay"] += 1
    life.state, life.until = ("~", due) if due > now else ("r", None)
