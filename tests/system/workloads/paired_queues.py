"""Tables of pairs over small task queues, some under limits: takes, ends of leases, verbs by id."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.database import Database, run
from fdbqueue.core.page import every_row
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.queues.persistent import PersistentQueue
from fdbqueue.queues.unacked import Stored, Work
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_model import caught
from tests.system.workloads.paired_world import Call, Table, Twins, data_of, shown, text_of

ALL, FOCUSED = 99, 0.8
STATES = "rt!~"
ENDS = ("ack", "ack", "release", "bury", "delete")
BY_ID = ("cancel", "delete", "bury")
ROOT = RootKeys(DEFAULT_ROOT)
Opened = Callable[[Any, str], TaskQueue]
"""Of a database or a transaction, and the name of a queue."""
NAME, MAXSIZE = "paired", 3


class Queues(Table):
    queues: Sequence[str] = ("paired", "paired_other")
    ends: Sequence[str] = ENDS
    by_id: Sequence[str] = BY_ID

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self.session = Session(twins.own, ttr=inf)
        self.there: dict[str, tuple[str, Task]] = {}
        """The tasks by their ids, each with the name of its queue."""
        self.leases: dict[str, Task] = {}
        self._known: dict[str, str] = {}
        self._focus: str | None = None

    def opened(self, db: Database) -> Opened:
        handles = {name: TaskQueue.open(db, name) for name in self.queues}
        return lambda _, name: handles[name]

    def must_forget(self, one: Call, other: Call) -> bool:
        is_a_round = "tick" in (one.name, other.name)
        return is_a_round or super().must_forget(one, other)

    # The state.

    def look_around(self) -> None:
        self.there = {task.id: (name, task) for name, task in run(self.twins.own, self._listed)}
        self._known |= data_of(task for _, task in self.there.values())
        self.leases = {id_: task for id_, task in self.leases.items() if self._is_held(id_)}

    def _is_held(self, id_: str) -> bool:
        return id_ in self.there and self.there[id_][1].state == "t"

    def _listed(self, tr: Transaction) -> list[tuple[str, Task]]:
        return [(name, task) for name in self.queues for tasks in self._states(tr, name) for task in tasks]

    def handle(self, tr: Transaction, name: str) -> TaskQueue | None:
        """The queue, for a look; None if there is none."""
        queue = caught(partial(TaskQueue.open, name=name), tr)
        return queue if isinstance(queue, TaskQueue) else None

    def _states(self, tr: Transaction, name: str) -> list[list[Task]]:
        queue = self.handle(tr, name)
        if queue is None:
            return []
        return [list(every_row(partial(queue.tasks, tr, state, ALL))) for state in STATES]

    def in_state(self, state: str, name: str | None = None) -> list[str]:
        """The ids of the tasks in a state."""
        return [id_ for id_, (of, task) in self.there.items() if task.state == state and name in (None, of)]

    def learn(self, answer: Any) -> None:
        for one in answer if isinstance(answer, list | tuple) else (answer,):
            if isinstance(one, list | tuple):
                self.learn(one)
            elif isinstance(one, Task):
                self._known |= data_of([one])
                if one.token is not None:
                    self.leases[one.id] = one

    def names(self) -> Mapping[str, str]:
        return self._known

    def forget_focus(self) -> None:
        super().forget_focus()
        self._focus = None

    def one_of(self, ids: Iterable[str]) -> str | None:
        """One of the tasks: mostly that of the call before."""
        among = list(ids)
        if self._focus in among and self.random.random() < FOCUSED:
            return self._focus
        self._focus = self.random.choice(among) if among else None
        return self._focus

    def queue_name(self) -> str:
        return self.queues[0] if self.random.random() < FOCUSED else self.queues[-1]

    # Calls.

    def _take(self) -> Call:
        name, count = self.queue_name(), self.random.choice((1, 1, 2, 3))
        return self._call("take", f"take {count} from {name}", partial(self._taken, name, count))

    def _taken(self, name: str, count: int, at: Opened, tr: Any) -> list[Task]:
        return at(tr, name).take_many(tr, count, session=self.session)

    def _end(self) -> Call | None:
        id_ = self.one_of(id_ for id_ in self.leases if id_ in self.there)
        if id_ is None:
            return None
        verb, (name, _), task = self.random.choice(self.ends), self.there[id_], self.leases[id_]
        text = f"{verb} {task.data} by its lease"
        return self._call("end", text, lambda at, tr: getattr(at(tr, name), verb)(tr, task), touches=id_)

    def _id(self) -> Call | None:
        id_ = self.one_of(self.there)
        if id_ is None:
            return None
        verb, (name, task) = self.random.choice(self.by_id), self.there[id_]
        text = f"{verb} {task.data} by its id"
        return self._call("id", text, lambda at, tr: getattr(at(tr, name), verb)(tr, id_), touches=id_)

    def _kick(self) -> Call:
        name, count = self.queue_name(), self.random.choice((1, 2))
        return self._call("kick", f"kick {count} of {name}", lambda at, tr: at(tr, name).kick(tr, count))

    def _truncate(self) -> Call:
        name = self.queue_name()
        return self._call("truncate", f"truncate {name}", lambda at, tr: at(tr, name).truncate(tr))

    def _tick(self) -> Call:
        """A round of the keeper, which knows a queue once it has been used."""

        def verb(at: Opened, db: Any) -> None:
            for name in self.queues:
                caught(lambda db, name=name: at(db, name).paused(db), db)  # type: ignore[misc]
            keeper_of(db, ROOT).tick()

        return self._call("tick", "tick", verb, alone=True)

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found: dict[str, Sequence[str]] = {}
        for name in self.queues:
            tasks = [task for state in self._states(tr, name) for task in state]
            self._known |= data_of(tasks)
            found[f"tasks of {name}"] = [shown(task) for task in tasks]
            queue = self.handle(tr, name)
            if queue is not None:
                found[f"statistics of {name}"] = [text_of(queue.statistics, tr)]
        return found


class Proxied:
    """The task queue below, and the stored half of the persistent queue."""

    def __init__(self, db: Database, maxsize: int) -> None:
        self._tasks = TaskQueue.open(db, NAME)
        self.stored: Stored = PersistentQueue(db, NAME, maxsize)._stored

    def __call__(self, _: Any, name: str) -> TaskQueue:  # noqa: ARG002  # there is one queue
        return self._tasks


class Persistent(Queues):
    verbs = ("put", "take", "ack", "keep", "give_back", "id", "end", "truncate")
    queues = (NAME,)
    ends = ("ack", "release", "bury")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._maxsize = random.choice((0, MAXSIZE))
        self._own = self.opened(twins.own)

    def __str__(self) -> str:
        return f"a persistent queue of the size {self._maxsize}"

    def opened(self, db: Database) -> Any:
        PersistentQueue(db, NAME, self._maxsize)
        return Proxied(db, self._maxsize)

    # The state.

    def top_up(self) -> None:
        """Leave some items un-acked, and the queue near its bound."""
        own, choice = self.twins.own, self.random.choice
        if len(self.leases) < choice((1, 2)):
            self._do(self._own, Work(puts=self._drafts(self.data(2))))
            self.learn(self._taken(NAME, choice((1, 2)), self._own, own))
        waiting = len(self.in_state("r"))
        if waiting < choice((0, MAXSIZE - 1, MAXSIZE)):
            self._do(self._own, Work(puts=self._drafts(self.data(choice((1, 2))))))

    def _drafts(self, data: list[str]) -> list[Any]:
        return [self._own.stored.draft(item) for item in data]

    def _do(self, at: Proxied, work: Work) -> bool:
        """False if there is no room."""
        return at.stored.do(work, self.twins.runtime.monotonic())

    # Calls.

    def _put(self) -> Call:
        data = self.data(self.random.choice((1, 1, 2)))
        return self._work(f"put {data}", Work(puts=self._drafts(data)), data)

    def _ack(self) -> Call | None:
        """Ack an item and put another one."""
        task = self._held()
        if task is None:
            return None
        data = self.data(self.random.choice((0, 1)))
        return self._work(f"ack {task.data} and put {data}", Work([task], (), self._drafts(data)), data)

    def _keep(self) -> Call | None:
        """Put an item while another one is still held."""
        task = self._held()
        if task is None:
            return None
        data = self.data(1)
        return self._work(f"keep {task.data} and put {data}", Work((), [task], self._drafts(data)), data)

    def _held(self) -> Task | None:
        id_ = self.one_of(self.leases)
        return None if id_ is None else self.leases[id_]

    def _work(self, text: str, work: Work, adds: list[str]) -> Call:
        return self._call("work", text, lambda at, _: self._do(at, work), adds=adds, alone=True)

    def _give_back(self) -> Call | None:
        task = self._held()
        if task is None:
            return None
        verb = partial(_given_back, [task])
        return self._call("give back", f"give {task.data} back", verb, alone=True)


def _given_back(tasks: list[Task], at: Proxied, _: Any) -> None:
    at.stored.release(tasks)


READY, TAKES_MAX, DELETED = 4, 12, 0.2
CHOICES: Sequence[tuple[Sequence[str], Sequence[str]]] = (
    *((("slots",), ()),) * 3,
    (("starts",), ()),
    *(((), ("tenant",)),) * 3,
    ((), ("rated",)),
    ((), ("named", "tenant")),
    (("slots", "starts"), ("rated", "named")),
)
"""Limits of all tasks, and those that tasks name; mostly one, so that each pair is about it."""
KEYED = ("tenant", "rated")
KEYS = RootKeys(DEFAULT_ROOT)
TTRS_S, KINDS = {"shared": 5.0, "": 3.0}, ("fifo", "fifottl", "utube")
LATEST_US = 2**62


class Limits(Queues):
    verbs = ("put", "take", "end", "id", "set", "truncate", "tick")
    topped_up = 0.9

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        of_all, named = random.choice(CHOICES)
        self._named, self._names = named, [*of_all, *named]
        for name in self._names:
            self._set_to(twins.own, name, 2)
        for queue in self.queues:
            TaskQueue.create(twins.own, queue, "fifottl", limits=of_all, task_limits=named)
        self._own = self.opened(twins.own)

    def __str__(self) -> str:
        return f"queues under the limits {', '.join(self._names)}"

    def _set_to(self, target: Any, name: str, number: int) -> None:
        if name in ("starts", "rated"):
            Limit.set(target, name, rate=2, per=5, burst=number, per_key=name in KEYED)
        else:
            Limit.set(target, name, slots=number, per_key=name in KEYED)

    def must_forget(self, one: Call, other: Call) -> bool:
        """A process remembers the lane at which its next take begins."""
        return "take" in (one.name, other.name) or super().must_forget(one, other)

    def may_vary(self, one: Call) -> bool:
        """With limits of tasks, a second attempt of a take goes on with the next lane."""
        return bool(self._named) and one.name == "take"

    def handle(self, tr: Transaction, name: str) -> TaskQueue:
        return self._own(tr, name)

    # The state.

    def top_up(self) -> None:
        """Leave tasks in front of the limits, and few slots."""
        self._fill()
        getattr(self, self.random.choice(("_start", "_tighten", "_tighten", "_spread", "_spread")))()

    def _fill(self) -> None:
        own, name = self.twins.own, self.queues[0]
        if len(self.in_state("r", name)) < READY:
            self._own(own, name).put_many(own, self.data(READY), **self._put_options())
        if len(self.leases) > READY:
            id_, task = self.leases.popitem()
            caught(lambda db: self._own(db, self.there[id_][0]).ack(db, task), own)

    def _start(self) -> None:
        self.learn(self._taken(self.queues[0], 1, self._own, self.twins.own))

    def _tighten(self) -> None:
        """Leave a limit with a slot or two, or none."""
        name = self.random.choice(self._names)
        self._set_to(self.twins.own, name, max(1, self._used(name) + self.random.choice((0, 1, 1, 2))))

    def _spread(self) -> None:
        """Let tasks start in several cells, and make the slots fewer."""
        slots = self.random.choice((4, 5, 6))
        for name in self._names:
            self._set_to(self.twins.own, name, slots)
        for _ in range(slots - 2 - len(self.leases)):
            self._start()
        for name in self._names:
            self._set_to(self.twins.own, name, self._used(name) + 1)

    def _used(self, name: str) -> int:
        """The slots in use; with keys, those of the key with the most."""
        limit = caught(partial(Limit.open, name=name), self.twins.own)
        if not isinstance(limit, Limit):
            return 0
        if not limit.per_key:
            return limit.used
        return max((key.used for key in Limit.keys(self.twins.own, name)), default=0)

    def next_time(self, now: int) -> int | None:
        times = [limit.next for name in self._names if (limit := self._open(name)) and limit.next]
        ends = [round(time * 1_000_000) for time in times]
        return min((end for end in ends if end >= now), default=None)

    def _open(self, name: str) -> Limit | None:
        limit = caught(partial(Limit.open, name=name), self.twins.own)
        return limit if isinstance(limit, Limit) else None

    # Calls.

    def _put_options(self) -> dict[str, Any]:
        """Mostly the key of the other tasks, and its limit alone."""
        choice = self.random.choice
        if not self._named or choice((False, False, False, True)):
            return {}
        keys = {name: choice("aaab") if name in KEYED else None for name in self._named}
        few = self._named[:1] if choice((True, True, False)) else self._named
        return {"limits": {name: keys[name] for name in few}}

    def _put(self) -> Call:
        (data,), name, options = self.data(1), self.queue_name(), self._put_options()
        text = f"put {data} into {name} with {options}"
        return self._call("put", text, lambda at, tr: at(tr, name).put(tr, data, **options), adds=[data])

    def _set(self) -> Call:
        name = self.random.choice(self._names)
        if self.random.random() < DELETED and not self._walks(name):
            return self._call("delete", f"delete the limit {name}", lambda _, tr: Limit.delete(tr, name))
        number = max(1, self._used(name) + self.random.choice((-1, 0, 1, 2)))
        return self._call("set", f"set {name} to {number}", lambda _, tr: self._set_to(tr, name, number))

    def _walks(self, name: str) -> bool:
        """True if sweeps go through all keys. A refused delete sweeps then, but not in a transaction."""
        return self.twins.own.get(LimitKeys(RootKeys(DEFAULT_ROOT).prefix, name).walk) is not None

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found = super().seen(tr)
        for name in self._names:
            found[f"the limit {name}"] = [_told(tr, name)]
            if name in KEYED:
                keys = caught(partial(Limit.keys, name=name), tr)
                found[f"the keys of {name}"] = (
                    [str(keys)] if isinstance(keys, Exception) else [*map(str, keys)]
                )
        if len(self._names) == 1:  # with several limits, the first lane of a take decides which tasks start
            found |= {f"takes of {name}": self._takes(tr, name) for name in self.queues}
        return found

    def _takes(self, tr: Transaction, name: str) -> list[str]:
        taken: list[str] = []
        for _ in range(TAKES_MAX):
            task = caught(partial(self._own(tr, name).take, session=self.session), tr)
            if not isinstance(task, Task):
                break
            taken.append(str(task.data))
        return taken


def _told(tr: Transaction, name: str) -> str:
    limit = caught(partial(Limit.open, name=name), tr)
    if not isinstance(limit, Limit):
        return str(limit)
    return f"{limit.used} used, {limit.free} free, next at {limit.next}"


class Side:
    """The queue, and the sessions that one process has opened, by their names: "" is that without a name."""

    def __init__(self, db: Database, name: str) -> None:
        self.tasks = TaskQueue.open(db, name)
        self._db = db
        self.sessions = {name: self.open(name, ttr_s) for name, ttr_s in TTRS_S.items()}

    def __call__(self, _: Any, name: str) -> TaskQueue:  # noqa: ARG002  # there is one queue
        return self.tasks

    def open(self, name: str, ttr_s: float) -> Session:
        session = Session(self._db, name or None, ttr_s)
        session._keeper.forget(session)  # each heartbeat is a call
        return session

    def restore(self, name: str) -> None:
        """Open a session again that has ended."""
        session = self.sessions[name]
        if self._db[KEYS.session(session.id)] is None:
            self.sessions[name] = self.open(name, TTRS_S[name])


class Sessions(Queues):
    verbs = ("beat", "end_session", "open", "end_dead", "take", "end", "put")
    queues = ("paired",)
    ends = ("ack", "release", "bury")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._kind = random.choice(KINDS)
        TaskQueue.create(twins.own, self.queues[0], self._kind)
        self._sides: list[Side] = []

    def __str__(self) -> str:
        return f"sessions that take from a queue of the kind {self._kind}"

    def opened(self, db: Database) -> Side:
        self._sides = [*self._sides, Side(db, self.queues[0])][-2:]
        return self._sides[-1]

    def must_forget(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # a session stays with its process
        return False

    # The state.

    def top_up(self) -> None:
        """Let all sessions live, some ready tasks be there, and some leases."""
        own, choice = self.twins.own, self.random.choice
        for side in self._sides:
            for name in side.sessions:
                side.restore(name)
        for data in self.data(choice((0, 1, 3))):
            self._put_one(self._sides[0], own, data)
        take = partial(self._taken_by, choice((*TTRS_S,)), choice((0, 1, 2)), self._sides[0])
        self.learn(caught(take, own))  # the session may be overdue

    def next_time(self, now: int) -> int | None:
        """The next deadline of a session."""
        due = KEYS.beats_due_after(now)
        for row in self.twins.own.get_range(due.start, due.stop, limit=1):
            beat = KEYS.beat_of(row.key)
            return None if beat is None or beat[0] > LATEST_US else beat[0]
        return None

    # Calls.

    def _about(self, name: str, verb: Callable[[Session, Side, Database], Any]) -> Call:
        which = self.random.choice(("shared", "shared", ""))
        text = f"{name} the session {which!r}"
        return self._call(name, text, lambda at, db: verb(at.sessions[which], at, db), alone=True)

    def _beat(self) -> Call:
        return self._about("beat", _alive)

    def _end_session(self) -> Call:
        return self._about("end", lambda session, *_: session.end())

    def _open(self) -> Call:
        ttr_s = self.random.choice((1.0, 5.0, 9.0))
        return self._about("open", lambda session, at, _: at.open(session.name or "", ttr_s).ttr)

    def _end_dead(self) -> Call:
        return self._call("end the dead", "end the dead", lambda _, db: _ended(db), alone=True)

    def _take(self) -> Call:
        which, count = self.random.choice(("shared", "")), self.random.choice((1, 1, 2))
        return self._call("take", f"take {count} for {which!r}", partial(self._taken_by, which, count))

    def _taken_by(self, which: str, count: int, at: Side, tr: Any) -> list[Task]:
        return list(at.tasks.take_many(tr, count, session=at.sessions[which])) if count else []

    def _put(self) -> Call:
        [data] = self.data(1)
        return self._call("put", f"put {data}", lambda at, tr: self._put_one(at, tr, data), adds=[data])

    def _put_one(self, at: Side, tr: Any, data: str) -> Task:
        return at.tasks.put(tr, data, key=len(data) % 2) if self._kind == "utube" else at.tasks.put(tr, data)

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        shared = tr.get(KEYS.session_named("shared")).value
        return {
            **super().seen(tr),
            "deadlines": [str(beat[0]) for beat in _beats(tr)],
            "holders": [text_of(partial(self._holder, id_), tr) for id_ in self.there],
            "openers": [] if shared is None else [str(_openers(tr, bytes(shared)))],
        }

    def _holder(self, id_: str, tr: Transaction) -> Any:
        holder = self._sides[0].tasks.holder(tr, id_)
        return None if holder is None else (holder.name, holder.dies)


def _alive(session: Session, *_: Any) -> bool:
    session.lost = False
    session.beat()
    return not session.lost


def _ended(db: Database) -> None:
    after: bytes | None = None
    while (after := end_the_dead(db, KEYS, after)) is not None:
        pass


def _beats(tr: Transaction) -> list[tuple[int, bytes]]:
    due = KEYS.beats_due_after(0)
    return [beat for row in tr.get_range(due.start, due.stop) if (beat := KEYS.beat_of(row.key)) is not None]


def _openers(tr: Transaction, session: bytes) -> int:
    under = KEYS.openers(session)
    return len(tr.get_range(under.start, under.stop).to_list())
