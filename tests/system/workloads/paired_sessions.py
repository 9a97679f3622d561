"""Sessions with a name and without, and a queue with leases of both: each verb meets each other one."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_queues import Queues
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call, text_of

KEYS = RootKeys(DEFAULT_ROOT)
TTRS_S, KINDS = {"shared": 5.0, "": 3.0}, ("fifo", "fifottl", "utube")
LATEST_US = 2**62


class Opened:
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
        self._sides: list[Opened] = []

    def __str__(self) -> str:
        return f"sessions that take from a queue of the kind {self._kind}"

    def opened(self, db: Database) -> Opened:
        self._sides = [*self._sides, Opened(db, self.queues[0])][-2:]
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

    def _about(self, name: str, verb: Callable[[Session, Opened, Database], Any]) -> Call:
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

    def _taken_by(self, which: str, count: int, at: Opened, tr: Any) -> list[Task]:
        return list(at.tasks.take_many(tr, count, session=at.sessions[which])) if count else []

    def _put(self) -> Call:
        [data] = self.data(1)
        return self._call("put", f"put {data}", lambda at, tr: self._put_one(at, tr, data), adds=[data])

    def _put_one(self, at: Opened, tr: Any, data: str) -> Task:
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
