"""The calls of a task queue in the workload `paired`: puts, takes, verbs of a task, verbs of the queue."""

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import end_session
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Failure, Task
from fdbqueue.tasks.groups import Group
from fdbqueue.tasks.limits.limit import Limit
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call, World

KEYED = ("utube", "utubettl", "fair")
UNTIMED = ("fifo", "utube")
SPANS = (None, None, None, 1, 3)
KEYS = ("a", "a", "b")
FAILURES = (None, Failure("Odd", "it failed"), Failure("Rare"))
BY_HOLDER = (
    "ack",
    "ack",
    "ack",
    "release",
    "release",
    "bury",
    "delete",
    "touch",
    "progress",
    "renew",
    "step",
)
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
