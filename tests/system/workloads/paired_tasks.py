"""A task queue of any kind in the workload `paired`, with limits, groups, sessions and dead letters."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import UnknownSession
from fdbqueue.core.page import every_row
from fdbqueue.core.partitions import home_of
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_task_calls import KEYED, ROOT, UNTIMED, TaskCalls
from tests.system.workloads.paired_world import Call, Table, data_of, shown, text_of

NAME, THEN = "paired", "paired_then"
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fifo", {}),
    ("fifottl", {}),
    ("fifottl", {"ttr": 2, "ttl": 8}),
    ("limfifottl", {"capacity": 4}),
    ("limfifottl", {"capacity": 9}),
    ("utube", {}),
    ("utube", {"key_concurrency": 2}),
    ("utubettl", {"ttr": 2}),
    ("fair", {"weights": {"a": 2}}),
    ("fair", {"capacity": 5}),
    ("bag", {}),
)
LIMITED = ("fifo", "fifottl", "limfifottl")
ADDING = ("put", "put_many")
ALL = 99
PAGE, TAKES_MAX = 99, 12
STATES = {"r": "ready", "t": "taken", "!": "buried", "~": "delayed"}
Seen = dict[str, Sequence[str]]
COUNTS, FEW, TASK_KEYS = (1, 2, 3), 4, "abcd"


class Handles:
    """The queue of a process, which is opened at once, and two handles that all processes share."""

    def __init__(self, db: Database, own: Database) -> None:
        self._own = own
        self.q = TaskQueue.open(db, NAME)

    @cached_property
    def then(self) -> TaskQueue:
        return TaskQueue.open(self._own, THEN)

    @cached_property
    def dead(self) -> DeadLetters:
        return DeadLetters.open(self._own, NAME)


# Looks.


class TaskLooks(TaskCalls):
    def seen(self, tr: Transaction) -> Seen:
        at = self.opened(self.twins.own) if "partitions" in self.options else self.own
        tasks = {state: list(every_row(partial(at.q.tasks, tr, state, PAGE))) for state in STATES}
        self.seen_names = {task.id: str(task.data) for found in tasks.values() for task in found}
        return {
            **self._of_tasks(at, tr, tasks),
            **self._of_queue(at, tr),
            **self._of_limits(tr),
            "groups": [text_of(group.progress, tr) for group in self.groups],
            "tasks of then": [shown(task) for state in "r~" for task in at.then.tasks(tr, state, PAGE)],
            **self._probes(at, tr, tasks),
        }

    def _of_tasks(self, at: Any, tr: Transaction, tasks: dict[str, list[Task]]) -> Seen:
        found: Seen = {STATES[state]: list(map(shown, of)) for state, of in tasks.items()}
        names = {**self.known, **self.seen_names}
        ids, there = sorted(names, key=names.__getitem__), self.seen_names
        for name in ("failures", "steps"):
            look = getattr(at.q, name)
            found[name] = [text_of(partial(look, task=id_), tr) for id_ in ids if id_ in there]
        found["results"] = [text_of(partial(at.q.result, task=id_), tr) for id_ in ids]
        return found

    def _of_queue(self, at: Any, tr: Transaction) -> Seen:
        found: Seen = {
            "statistics": [text_of(at.q.statistics, tr)],
            "paused": [text_of(at.q.paused, tr)],
            "classes": list(map(repr, at.dead.classes(tr, PAGE))),
            "redrive": [text_of(at.dead.redrive, tr)],
        }
        if self.kind in KEYED:
            found["keys"] = list(map(repr, at.q.key_statistics(tr, PAGE)))
        if "retain_s" in self.options:
            found["ended tasks"] = list(map(repr, every_row(partial(at.q.ended_tasks, tr, PAGE))))
        return found

    def _of_limits(self, tr: Transaction) -> Seen:
        found: Seen = {f"the limit {name}": [_limit(tr, name)] for name in ("slots", "named", "starts")}
        keys = Limit.keys(tr, "tenant")
        found["the limit tenant"] = [f"{one.key}: {one.used} used, {one.free} free" for one in keys]
        return found

    def _probes(self, at: Any, tr: Transaction, tasks: dict[str, list[Task]]) -> Seen:
        """Takes of all tasks, and puts with the unique keys."""
        found: Seen = {}
        if self.kind != "bag" and "partitions" not in self.options:
            for state in "r!":
                found[f"order of {STATES[state]}"] = [str(task.data) for task in tasks[state]]
            if self.kind != "fair" and not {"limits", "task_limits"} & {*self.options}:
                # Rounds are read by snapshot, and a limit cuts the takes short.
                found["order of takes"] = self._taken(at, tr)
        found["unique keys"] = [self._unique_in(at, tr, unique) for unique in "uv"]
        return found

    def _taken(self, at: Any, tr: Transaction) -> list[str]:
        taken: list[str] = []
        for _ in range(TAKES_MAX):
            task = caught(partial(at.q.take, session=self.sessions[0]), tr)
            if not isinstance(task, Task):
                break
            taken.append(str(task.data))
        return taken

    def _unique_in(self, at: Any, tr: Transaction, unique: str) -> str:
        options = {"key": "a"} if self.kind in KEYED else {}
        found = caught(lambda tr: at.q.put(tr, "a probe", unique=unique, **options), tr)
        if isinstance(found, Task):
            return f"{unique} is that of {found.id}" if found.existed else f"{unique} is free"
        return shown(found)


class Tasks(TaskLooks):
    kinds = KINDS

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.kind, options = random.choice(self.kinds)
        self.options = {**options, **self._drawn_options()}
        self.forgets = self.kind == "bag" or "partitions" in self.options
        self._make_limits()
        TaskQueue.create(twins.own, NAME, self.kind, **self.options)
        TaskQueue.create(twins.own, THEN, "fifottl")
        self.own: Handles = self.opened(twins.own)
        self.sessions = [Session(twins.own, ttr=ttr) for ttr in (inf, 3)]
        self.groups = list(self._made_groups()) if random.random() < 0.5 else []

    def _drawn_options(self) -> dict[str, Any]:
        choice, options = self.random.choice, dict[str, Any]()
        options |= choice(({}, {}, {"retain_s": 5.0}))
        options |= choice(({}, {}, {}, {"partitions": choice((1, 2))}))
        options |= choice(({}, {}, {"limits": ("slots",)}, {"limits": ("starts",)}))
        if self.kind in LIMITED:
            options |= choice(({}, {}, {"task_limits": ("tenant",)}, {"task_limits": ("tenant", "named")}))
        return options

    def _make_limits(self) -> None:
        db = self.twins.own
        Limit.set(db, "slots", slots=self.random.choice((1, 2, 3)))
        Limit.set(db, "named", slots=self.random.choice((1, 2)))
        Limit.set(db, "starts", rate=2, per=5, burst=self.random.choice((1, 3)))
        Limit.set(db, "tenant", slots=self.random.choice((1, 2)), per_key=True)

    def _made_groups(self) -> Iterator[Group]:
        for waits in (True, False):
            then = (self.own.then, f"then {waits}")
            yield Group.create(self.twins.own, then=then, wait_for_buried=waits, retain_s=60)

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.options.items())
        return f"a queue of the kind {self.kind} ({told}) at {self.twins.now}"

    def opened(self, db: Database) -> Handles:
        return Handles(db, self.twins.own)

    # The state.

    def refresh(self) -> None:
        listed, alive = run(self.twins.own, self._listed)
        self.now_there = {task.id: task for task in listed}
        self.known |= data_of(listed)
        self.leases = {id_: task for id_, task in self.leases.items() if id_ in self.now_there}
        for number, session in enumerate(self.sessions):
            if not alive[number]:
                self.sessions[number] = Session(self.twins.own, ttr=session.ttr)

    def _listed(self, tr: Transaction) -> tuple[list[Task], list[bool]]:
        """The tasks, and whether the sessions are alive."""
        tasks = [task for state in "rt!~" for task in every_row(partial(self.own.q.tasks, tr, state, ALL))]
        return tasks, [_lives(session, tr) for session in self.sessions]

    def learn(self, answer: Any) -> None:
        for one in answer if isinstance(answer, list | tuple) else (answer,):
            if isinstance(one, list | tuple):
                self.learn(one)
            elif isinstance(one, Task):
                self.known |= data_of([one])
                self.recent = [*self.recent, one.id][-6:]
                if one.token is not None:
                    self.leases[one.id] = one

    def next_time(self, now: int) -> int | None:
        times = [time for task in self.now_there.values() for time in (task.until, task.expires)]
        ends = [round(time * 1_000_000) for time in times if time is not None]
        return min((end for end in ends if end >= now), default=None)

    def names(self) -> Mapping[str, str]:
        groups = {group.id: f"group {number}" for number, group in enumerate(self.groups)}
        return {**self.known, **self.seen_names, **groups}

    def must_forget(self, one: Call, other: Call) -> bool:
        names = {one.name, other.name}
        starts_in_a_lane = "task_limits" in self.options and not names.isdisjoint(("take", "both"))
        return "tick" in names or starts_in_a_lane or super().must_forget(one, other)

    def is_loose(self, one: Call, other: Call) -> bool:
        """A take relies on its own task only, and a verb about many tasks on those that it has seen. So does
        a put that finds its unique key. Two calls in one transaction may see more than they rely on. A take
        may free the unique key of a task that a kick makes ready before it, and that the take has not seen.
        """
        names = {one.name, other.name}
        if names == {"kick", "take"}:
            return any(task.state == "!" and task.unique is not None for task in self.now_there.values())
        return "both" in names or ("many" in names and "take" in names)

    def may_vary(self, one: Call) -> bool:
        """A bag, and partitions, give any task to a take that tries again. With limits of tasks, it goes on
        with the next lane.
        """
        of_any = self.forgets and one.name in ("take", "both", "kick", "many", "redrive")
        return of_any or ("task_limits" in self.options and one.name == "take")

    def promises(self, one: Call, other: Call) -> bool:
        """Without a capacity and limits: puts, takes, verbs of two tasks; or those of two task keys."""
        if {"capacity", "partitions", "limits", "task_limits"} & {*self.options} or self.kind == "bag":
            return False
        if self.kind in KEYED:
            keys = {*map(self._key_of, (one, other))}
            return len(keys) == 2 and None not in keys
        if one.name == "plain put":
            return other.name in ("plain put", "take", "of a task", "kick")
        if one.name == "take":
            return self._finds_enough(one) and (other.name == "plain put" or self._is_held(other))
        if one.name != "of a task":
            return False
        if other.name == "of a task":
            return bool(one.touches != other.touches)
        return other.name == "plain put" or (self._finds_enough(other) and self._is_held(one))

    def _key_of(self, call: Call) -> str | None:
        """The task key of a put, or of a verb of a task; None for another call."""
        if call.name == "plain put":
            return str(call.touches)
        task = self.now_there.get(call.touches) if call.name == "of a task" else None
        return None if task is None else str(task.key)

    def _finds_enough(self, call: Call) -> bool:
        """True for a take that finds all that it wants, and nothing to sweep."""
        ready = sum(task.state == "r" for task in self.now_there.values())
        return call.name == "take" and call.touches <= ready and (self.next_time(0) or inf) > self.twins.now

    def _is_held(self, call: Call) -> bool:
        """True for a verb of a task that no take finds."""
        task = self.now_there.get(call.touches) if call.name == "of a task" else None
        return task is not None and task.state == "t"


def _lives(session: Session, tr: Transaction) -> bool:
    try:
        session.ask(tr)()
    except UnknownSession:
        return False
    return True


def _limit(tr: Transaction, name: str) -> str:
    limit = Limit.open(tr, name)
    return f"{limit.used} used, {limit.free} free, next at {limit.next}"


class Moves(Table, Tasks):
    verbs: Sequence[str] = (
        "put",
        "take",
        "use_a_lease",
        "by_id",
        "kick",
        "tick",
        "repartition",
        "many",
    )
    topped_up = 0.8
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        *(("utube", {}), ("utubettl", {"ttr": 2}), ("fair", {}), ("fair", {"capacity": 5})) * 3,
        *(("utube", {"key_concurrency": 2}),) * 3,
        ("fifo", {}),
        ("limfifottl", {"capacity": 4}),
        ("bag", {}),
    )
    _moved = "a"

    def _drawn_options(self) -> dict[str, Any]:
        choice = self.random.choice
        return {"partitions": choice(COUNTS), **choice(({}, {}, {"retain_s": 5.0}))}

    def must_forget(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # a process remembers the plan
        return True

    def _key(self) -> str:
        return self._moved if self.random.random() < 0.7 else super()._key()

    def top_up(self) -> None:
        """Begin a repartition, with taken tasks and a delayed one of a key in its old partition."""
        own, q = self.twins.own, self.own.q
        if len(self.now_there) > FEW:
            q.truncate(own)
        for _ in range(2):  # the first one may end a repartition
            q.paused(own)
            keeper_of(own, ROOT).tick()
        now, count = self._count(), self.random.choice(COUNTS)
        self._moved = self.random.choice([key for key in TASK_KEYS if moves(key, now, count)] or TASK_KEYS)
        options: dict[str, Any] = {"key": self._moved} if self.kind in KEYED else {}
        caught(lambda db: q.put_many(db, self.data(self.random.choice((1, 2, 2))), **options), own)
        if self.kind not in UNTIMED:
            caught(lambda db: q.put(db, self.data(1)[0], delay=1, **options), own)
        q.resume(own)
        self.learn(q.take_many(own, self.random.choice((1, 2)), session=self.sessions[0]))
        if count != now:
            caught(lambda db: run(db, lambda tr: q.repartition(tr, count)), own)

    def _count(self) -> int:
        plan = self.own.q._calls(self.twins.own).parts.plan
        return 1 if plan is None else plan.count


def moves(key: str, before: int, after: int) -> bool:
    packed = key_bytes(key)
    return home_of(packed, before) != home_of(packed, after)
