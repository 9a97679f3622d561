"""A task queue of any kind in the workload `paired`, with limits, groups, sessions and dead letters."""

from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import UnknownSession
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.groups.group import Group
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.paired_calls import Call, data_of
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_task_looks import TaskLooks

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
        """Of queues without a capacity, task keys and limits: puts beside all, and verbs of two tasks."""
        if self.kind not in ("fifo", "fifottl") or {"partitions", "limits", "task_limits"} & {*self.options}:
            return False
        if one.name == "plain put":
            return other.name in ("plain put", "take", "of a task")
        if one.name == other.name == "of a task":
            return bool(one.touches != other.touches)
        ready = sum(task.state == "r" for task in self.now_there.values())
        return (one.name, other.name) == ("take", "plain put") and bool(one.touches <= ready)


def _lives(session: Session, tr: Transaction) -> bool:
    try:
        session.ask(tr)()
    except UnknownSession:
        return False
    return True
