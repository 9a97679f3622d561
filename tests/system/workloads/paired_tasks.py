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
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.edges import ask_due
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import TaskKeys
from tests.system.workloads.exact_model import caught
from tests.system.workloads.paired_world import Call, Table, Twins, World, data_of, shown, text_of

KEYED = ("utube", "utubettl", "fair")
UNTIMED = ("fifo", "utube")
SPANS = (None, None, None, 1, 3)
KEYS = ("a", "a", "b")
FAILURES = (None, Failure("Odd", "it failed"), Failure("Rare"))
BY_HOLDER = (*("ack",) * 3, "release", "release", "bury", "delete", "touch", "progress", "renew", "step")
BY_ANY = ("bury", "delete", "cancel", "cancel", "edit", "kick_one", "forget_result")
ROOT = RootKeys(DEFAULT_ROOT)


class TaskCalls(World):
    verbs: Sequence[str] = (
        *("put",) * 7,
        *("put_many",) * 2,
        *("take",) * 6,
        *("use_a_lease",) * 8,
        *("by_id",) * 3,
        *("kick",) * 2,
        *("tick",) * 3,
        "many",
        "pause",
        "end_a_session",
        "change_a_limit",
        "of_a_group",
        "redrive",
        "repartition",
    )
    by_holder: Sequence[str] = BY_HOLDER
    counts: Sequence[int] = (1, 1, 2, 4)
    """Numbers of tasks of a take."""

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.kind = ""
        self.options: dict[str, Any] = {}
        self.own: Any = None
        self.sessions: list[Session] = []
        self.groups: list[Group] = []
        self.leases: dict[str, Task] = {}
        self.now_there: dict[str, Task] = {}
        self.is_due = False
        self.known: dict[str, str] = {}
        self.seen_names: dict[str, str] = {}
        """The data of the tasks that the last look has seen."""
        self.recent: list[str] = []
        self._focus: str | None = None
        self._key_focus: str | None = None

    def forget_focus(self) -> None:
        self._focus = self._key_focus = None

    def _key(self) -> str:
        """A task key: mostly that of the call before."""
        if self._key_focus is None or self.random.random() < 0.2:
            self._key_focus = self.random.choice(KEYS)
        return self._key_focus

    def _one_of(self, ids: list[str]) -> str | None:
        """One of the tasks: mostly that of the call before, or one of the last ones."""
        random = self.random
        if self._focus in ids and random.random() < 0.7:
            return self._focus
        recent = [id_ for id_ in ids if id_ in self.recent]
        pool = recent if recent and random.random() < 0.5 else ids
        found = random.choice(pool) if pool else None
        self._focus = self._focus or found
        return found

    # Puts.

    def _put(self) -> Call:
        (data,), options, special = self.data(1), self._put_options(), self._special()
        options |= special
        name = "put" if special or "limits" in options or "group" in options else "plain put"
        text = f"put {data} with {options}"
        key = options.get("key")
        return self._call(name, text, lambda at, tr: at.q.put(tr, data, **options), adds=[data], touches=key)

    def _put_many(self) -> Call:
        data, options = self.data(self._count_to_put()), self._put_options()
        text = f"put {data} with {options}"
        return self._call("put", text, lambda at, tr: at.q.put_many(tr, data, **options), adds=data)

    def _count_to_put(self) -> int:
        """Two or three tasks, or exactly those for which there is room."""
        room = self.options.get("capacity", 0) - len(self.now_there)
        return self.random.choice((2, 3, room, room) if room > 0 else (2, 3))

    def _put_options(self) -> dict[str, Any]:
        choice, options = self.random.choice, dict[str, Any]()
        if self.kind not in UNTIMED:
            options = {"ttl": choice(SPANS), "ttr": choice(SPANS), "delay": choice((0, 0, 0, 1, 2))}
        if "ttl" in self.kind:
            options["pri"] = choice((0, 0, 1))
        if self.kind in KEYED:
            options["key"] = self._key()
        if self.random.random() < 0.5:
            options["result_ttl"] = choice((1, 5))
        if named := self._limits():
            options["limits"] = named
        if self.groups and self.random.random() < 0.5:
            options["group"] = choice(self.groups).id
        return {name: value for name, value in options.items() if value}

    def _limits(self) -> dict[str, Any]:
        there = self.options.get("task_limits", ())
        keys = {"tenant": self._key(), "named": None}
        return {name: keys[name] for name in there if self.random.random() < 0.6}

    def _special(self) -> dict[str, Any]:
        """The options of a unique key, or of a task that comes after another one."""
        chance = self.random.random()
        if chance < 0.4:
            return {**self._unique(), "group": None}
        after = self._one_of([*self.now_there]) if chance < 0.5 else None
        return {} if after is None else {"after": after, "delay": 0}

    def _unique(self) -> dict[str, Any]:
        choice = self.random.choice
        ways = ("skip", "skip", "replace", "replace" if self.kind in UNTIMED else "debounce")
        how, scope = choice(ways), choice(("unfinished", "queued", "queued", 1, 3))
        most = {"debounce_max": 2} if how == "debounce" else {}
        return {"unique": choice("uuv"), "scope": scope, "on_conflict": how, **most}

    # Takes, and verbs of a task.

    def _take(self) -> Call:
        count, session = self.random.choice(self.counts), self.random.choice(self.sessions)
        text = f"take {count} for {session.id.hex()}"
        return self._call(
            "take", text, lambda at, tr: at.q.take_many(tr, count, session=session), touches=count
        )

    def _use_a_lease(self) -> Call | None:
        taken = [id_ for id_, task in self.now_there.items() if task.state == "t"]
        id_ = self._one_of([id_ for id_ in taken if id_ in self.leases])
        if id_ is None:
            return None
        name, task = self.random.choice(self.by_holder), self._lease(id_)
        verb, told = getattr(self, f"_to_{name}")(task)
        text = f"{name} {task.data} {told}"
        return self._call("of a task", text, verb, touches=id_)

    def _lease(self, id_: str) -> Task:
        """The lease of a taken task under which a verb is called."""
        return self.leases[id_]

    def _to_ack(self, task: Task) -> tuple[Any, str]:
        result = self.random.choice((None, 7))
        return lambda at, tr: at.q.ack(tr, task, result=result), f"with {result}"

    def _to_release(self, task: Task) -> tuple[Any, str]:
        failure = self.random.choice(FAILURES)
        may_wait = failure is not None or self.kind not in UNTIMED
        delay = self.random.choice((0, 1)) if may_wait else 0
        told = f"for {delay} s, {failure and failure.error}"
        return lambda at, tr: at.q.release(tr, task, delay=delay, failure=failure), told

    def _to_bury(self, task: Task) -> tuple[Any, str]:
        failure = self.random.choice(FAILURES)
        return lambda at, tr: at.q.bury(tr, task, failure=failure), f"{failure and failure.error}"

    def _to_delete(self, task: Task) -> tuple[Any, str]:
        return lambda at, tr: at.q.delete(tr, task), "by its lease"

    def _to_touch(self, task: Task) -> tuple[Any, str]:
        if "ttl" not in self.kind:
            return self._to_progress(task)
        return lambda at, tr: at.q.touch(tr, task, 1.5), ""

    def _to_progress(self, task: Task) -> tuple[Any, str]:
        fraction = self.random.choice((0.25, 0.5))
        return lambda at, tr: at.q.progress(tr, task, fraction), str(fraction)

    def _to_renew(self, task: Task) -> tuple[Any, str]:
        return lambda at, tr: sorted(at.q.renew(tr, [task]).items()), ""

    def _to_step(self, task: Task) -> tuple[Any, str]:
        name, result = self.random.choice("xy"), self.random.randrange(9)
        return lambda at, tr: at.q.step(tr, task, name, lambda *_: result), f"{name} that gives {result}"

    def _by_id(self) -> Call | None:
        name = self.random.choice(BY_ANY)
        buried = name in ("edit", "kick_one")
        ids = [id_ for id_, task in self.now_there.items() if not buried or task.state == "!"]
        id_ = self._one_of([*self.known] if name == "forget_result" else ids)
        if id_ is None:
            return None
        text = f"{name} {self.known[id_]}"
        verb = self._edit(id_) if name == "edit" else partial(_of_id, name=name, id_=id_)
        return self._call("of a task", text, verb, touches=id_)

    def _edit(self, id_: str) -> Any:
        (data,), kick = self.data(1), self.random.choice((True, False))
        return lambda at, tr: at.dead.edit(tr, id_, data, kick=kick)

    # Verbs of the queue.

    def _kick(self) -> Call:
        count = self.random.choice((1, 1, 2, 9))
        return self._call("kick", f"kick {count}", lambda at, tr: at.q.kick(tr, count))

    def _tick(self) -> Call:
        """A round of the keeper, which knows a queue once it has been used."""

        def verb(at: Any, db: Any) -> None:
            at.q._calls(db)  # reads nothing
            keeper_of(db, ROOT).tick()

        return self._call("tick", "tick", verb, alone=True)

    def _many(self) -> Call:
        name = self.random.choice(("truncate", "truncate_some", "release_all", "release_some"))
        given = (self.random.choice((1, 3)),) if name.endswith("some") else ()
        return self._call("many", f"{name} {given}", lambda at, tr: getattr(at.q, name)(tr, *given))

    def _pause(self) -> Call:
        name = self.random.choice(("pause", "resume", "resume"))
        return self._call("pause", name, lambda at, tr: getattr(at.q, name)(tr))

    def _end_a_session(self) -> Call | None:
        if self.random.random() < 0.5:
            return None
        session = self.random.choice(self.sessions)
        return self._call(
            "end",
            f"end the session {session.id.hex()}",
            lambda _, db: end_session(db, ROOT, session.id, session._is_last, died=False, timeout_s=None),
            alone=True,
        )

    def _change_a_limit(self) -> Call:
        slots, name = self.random.choice((1, 2, 3)), self.random.choice(("slots", "named", "tenant"))
        options: dict[str, Any] = {"slots": slots, "per_key": name == "tenant"}
        if name == "slots" and "starts" in self.options.get("limits", ()):
            name, options = "starts", {"rate": 2, "per": 5, "burst": slots}
        text = f"set the limit {name} to {slots}"
        return self._call("limit", text, lambda _, tr: shown_limit(Limit.set(tr, name, **options)))

    def _of_a_group(self) -> Call | None:
        if not self.groups or self.random.random() < 0.4:
            return None
        group, name = self.random.choice(self.groups), self.random.choice(("close", "close", "cancel"))
        return self._call("group", f"{name} {group.id}", lambda _, tr: getattr(Group(group.id), name)(tr))

    def _redrive(self) -> Call:
        names = ("begin_redrive", "step_redrive", "step_redrive", "stop_redrive", "kick_matching")
        name, error = self.random.choice(names), self.random.choice((None, "Odd"))
        options = {"error": error} if name in ("begin_redrive", "kick_matching") else {}
        text = f"{name} {options}"
        return self._call("redrive", text, lambda at, tr: getattr(at.dead, name)(tr, **options))

    def _repartition(self) -> Call | None:
        if "partitions" not in self.options:
            return None
        count = self.random.choice((1, 2, 3))
        return self._call("repartition", f"repartition {count}", lambda at, tr: at.q.repartition(tr, count))


def _of_id(at: Any, tr: Any, name: str, id_: str) -> Any:
    return at.dead.kick(tr, id_) if name == "kick_one" else getattr(at.q, name)(tr, id_)


def shown_limit(_: Any) -> None:
    """What a change of a limit answers depends on nothing but the change."""


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
        listed, alive, self.is_due = run(self.twins.own, self._listed)
        self.now_there = {task.id: task for task in listed}
        self.known |= data_of(listed)
        self.leases = {id_: task for id_, task in self.leases.items() if id_ in self.now_there}
        for number, session in enumerate(self.sessions):
            if not alive[number]:
                self.sessions[number] = Session(self.twins.own, ttr=session.ttr)

    def _listed(self, tr: Transaction) -> tuple[list[Task], list[bool], bool]:
        """The tasks, whether the sessions are alive, and whether a take has tasks to sweep: the listing has
        a delayed task as ready from the end of its delay, and none that has expired.
        """
        due = ask_due(tr, TaskKeys(self.own.q.contents), self.twins.now)
        tasks = [task for state in "rt!~" for task in every_row(partial(self.own.q.tasks, tr, state, ALL))]
        return tasks, [_lives(session, tr) for session in self.sessions], any(True for _ in due)

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
        return call.name == "take" and call.touches <= ready and not self.is_due

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
    verbs: Sequence[str] = ("put", "take", "use_a_lease", "by_id", "kick", "tick", "repartition", "many")
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
