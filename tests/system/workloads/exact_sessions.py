"""Sessions with one, several and no live openers, in one process with a clock that stands still in each call.

Each heartbeat, each end and each sweep is a step of its own, mostly at the microsecond of a deadline. The
answers, the tasks and their holders equal those of a plain model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Holder, HolderProcess, Task
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.common import draw_limits, unswept
from tests.system.workloads.exact_model import (
    Caller,
    Life,
    Model,
    caught,
    earliest,
    holder_died,
    is_over,
    known,
    micro,
    require_equal,
    step_by_step,
)
from tests.system.workloads.exact_verbs import Looks, Many

NAME = "exact_sessions"
KINDS = ("fifo", "fifottl", "utube", "utubettl", "fair")
VERBS = (
    *("put",) * 4,
    *("take",) * 6,
    *("use_a_lease",) * 3,
    *("by_session",) * 3,
    "by_id",
    "kick",
    *("open",) * 3,
    *("beat",) * 3,
    *("end",) * 3,
    "end_the_dead",
    "busy",
)
RARE = ("release_all", "truncate", "pause")
LOOKED = 0.35
BEHIND = (0, 0, 0, 0, 1, 700_000)
OPENERS_MAX = 5


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_sessions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact sessions")
    unswept(simulation, 1e6)
    draw_limits(simulation, random, DUE_BATCH=(1, 8), VERB_BATCH=(2, 8))
    simulation.outage(1e9, 1.0)  # far away: but now the sessions of a live process may end as dead
    kind = random.choice(KINDS)

    def made(client: Client) -> Process:
        caller = Caller(client)
        q, model = TaskQueue.create(client.db, NAME, kind, if_not_exists=True), Model(kind, {})
        model.now = caller.clock.now
        caller.tick()
        return Process(Openers(caller, q, model))

    step_by_step(simulation, size, made)
    return [no_watch_left_behind]


@dataclass
class Known:
    """A session that has not ended. Times and spans are microseconds."""

    id: str
    name: str | None
    ttr: int
    deadline: int = 0
    openers: dict[int, int] = field(default_factory=dict)
    """The deadlines of its openers, by number."""


class Openers(Many):
    def __init__(self, caller: Caller, q: TaskQueue, model: Model) -> None:
        super().__init__(caller, q, model, {})
        self.known, self.openers = Sessions(model, caller.client.runtime), list[Opener]()
        self._opened = 0

    def _unique(self, _: dict[str, Any]) -> dict[str, Any]:
        return {}  # with these, the order of the ends of sessions would count

    # Sessions. No thread renews them: each heartbeat is a step.

    def open(self) -> None:
        choice, self._opened = self.random.choice, self._opened + 1
        name, ttr = choice((None, "a", "a", "a", "b")), choice((1.0, 3.0, 10.0))
        must_exist = name is not None and choice((True, False, False))
        opened = caught(lambda db: Session(db, name, ttr, must_exist=must_exist), self.caller.client.db)
        there = self.known.before_opening(name)
        if must_exist and there is None:
            require_equal("open", opened, UnknownSession(session=name))
            return
        opened._keeper.forget(opened)
        if there is not None:
            require_equal("the session of that name", opened.id.hex(), there.id)
        one = self.known.open(opened.id.hex(), name, micro(ttr) or 0, self._opened)
        require_equal("its ttr", opened.ttr, one.ttr / 1_000_000)
        self.openers = [*self.openers, Opener(opened, self._opened)][-OPENERS_MAX:]

    def beat(self) -> None:
        if self.openers:
            session, number = self.random.choice(self.openers)
            one = self._known(session)
            session.beat()
            require_equal("lost", session.lost, one is None)
            if one is not None:
                self.known.beat(one, number)
                require_equal("the ttr of a heartbeat", session.ttr, one.ttr / 1_000_000)

    def end(self) -> None:
        if self.openers:
            session, number = self.openers.pop(self.random.randrange(len(self.openers)))
            one = self._known(session)
            session.end()
            if one is not None:
                self.known.leave(one, number)

    def end_the_dead(self) -> None:
        """A sweep of sessions, as each process makes it."""
        after: bytes | None = None
        while True:
            after = end_the_dead(self.caller.client.db, RootKeys(DEFAULT_ROOT), after)
            if after is None:
                break
        self.known.die_all()

    def _known(self, session: Session) -> Known | None:
        return self.known.known.get(session.id.hex())

    # Tasks.

    def take(self) -> None:
        if not self.openers:
            return
        (session, _), count = self.random.choice(self.openers), self.random.choice((1, 1, 2, 4))
        take, alone = partial(self.q.take_many, n=count, session=session), self.random.random() < 0.6
        found = self.caller.answer(take, always_alone=True) if alone else self.caller.within(take)
        if alone and self._known(session) is not None and not self.model.takeable():
            self.known.die_first(limits.DEAD_SESSIONS_MAX)  # a take that does not wait ends one batch
        if self._known(session) is None:
            require_equal("take", found, UnknownSession(session=session.id.hex()))
        else:
            self._require_taken(found, count, session)

    def by_session(self) -> None:
        """A verb of a holder, by the id of its task and by a session."""
        if not (self.openers and self.ids):
            return
        session, _ = self.random.choice(self.openers)
        verb, taken = self.random.choice(("ack", "release", "progress")), self.model.in_state("t")
        id_ = self.random.choice([*(life.id for life in taken), self.random.choice(self.ids)])
        arguments = (0.5,) if verb == "progress" else ()
        self._call(
            f"{verb} {id_}",
            lambda tr: getattr(self.q, verb)(tr, id_, *arguments, session=session),
            partial(self._by_session, verb, id_, session.id.hex()),
        )

    def _by_session(self, verb: str, id_: str, session: str) -> Task:
        life = self.model.lives.get(id_)
        if life is None or life.state != "t" or life.session != session:
            raise NotTaken(id=id_)
        if verb == "ack":
            return self.model.end(life, "ack", "acked")
        if verb == "release":
            return self.model.release(life)
        life.fraction, life.told = 0.5, self.model.now
        return life.shown()

    def busy(self) -> None:
        """Ask if the queue may be dropped. Given a database, overdue sessions end before it may not."""
        alone = self.random.random() < 0.5
        found = self.caller.answer(self.q.busy, True) if alone else self.caller.within(self.q.busy)
        if alone and self.model.in_state("t"):
            self.known.die_all()
        require_equal("busy", bool(found), bool(self.model.in_state("t")))

    # Looks.

    def require_holders(self) -> None:
        run(self.caller.client.db, self._require_holders)

    def _require_holders(self, tr: Any) -> None:
        runtime = self.caller.client.runtime
        process = HolderProcess(runtime.host_name(), runtime.process_id())
        for life in self.model.in_state("t"):
            wanted = self.known.holder(life, process)
            require_equal(f"the holder of {life.id}", self.q.holder(tr, life.id), wanted)


class Process:
    def __init__(self, user: Openers) -> None:
        self._user, self._caller, self._model, self._random = user, user.caller, user.model, user.random
        self._looks = Looks(user)

    def step(self) -> None:
        self._move()
        random = self._random
        verb = random.choice(RARE) if random.random() < 0.05 else random.choice(VERBS)
        behind = random.choice(BEHIND) if verb in ("open", "beat", "end") else 0
        self._by_a_clock(behind, verb)
        self._model.sweep()
        self._caller.tick()
        self._user.require_holders()
        if random.random() < LOOKED:
            self._model.overdue = [one.id for one in self._user.known.overdue()]
            self._looks.look(swept=True)

    def _by_a_clock(self, behind: int, verb: str) -> None:
        """Let a process do it, the clock of which may be a little behind."""
        model, runtime = self._model, self._caller.client.runtime
        now = model.now
        model.now -= behind
        runtime.hold(model.now)
        self._caller.client.call(NAME, f"step {verb}", now, getattr(self._user, verb))
        model.now = now
        runtime.hold(now)

    def _move(self) -> None:
        """Move the clock: mostly to the deadline of a session or of an opener, or to just before or after."""
        model, random = self._model, self._random
        sessions = self._user.known.known.values()
        ends = [at for one in sessions for at in (one.deadline, *one.openers.values())]
        following = earliest(*(at for at in known([model.next_change(), *ends]) if at >= model.now))
        to = model.now
        if random.random() < 0.35 and following is not None:
            to = following + random.choice((-1, 0, 0, 1))
        elif random.random() < 0.1:
            to += random.choice((1, 500_000, 3_000_000))
        model.now = max(to, model.now)
        self._caller.clock.move_to(model.now)
        model.sweep()
        self._caller.tick()


class Opener(NamedTuple):
    """An object of a session, and its number in the model."""

    session: Session
    number: int


class Sessions:
    def __init__(self, model: Model, runtime: Runtime) -> None:
        self._model, self._runtime = model, runtime
        self.known: dict[str, Known] = {}

    @property
    def now(self) -> int:
        return self._model.now

    def overdue(self) -> list[Known]:
        return [one for one in self.known.values() if is_over(one.deadline, self.now)]

    def named(self, name: str | None) -> Known | None:
        return next((one for one in self.known.values() if one.name is not None and one.name == name), None)

    def before_opening(self, name: str | None) -> Known | None:
        """The session that a new opener of that name shares. One that is overdue ends before."""
        found = self.named(name)
        if found is not None and is_over(found.deadline, self.now):
            self.die(found)
        return self.named(name)

    def open(self, id_: str, name: str | None, ttr: int, opener: int) -> Known:
        one = self.known.setdefault(id_, Known(id_, name, ttr))
        one.ttr = max(one.ttr, ttr)
        self.beat(one, opener)
        return one

    def beat(self, one: Known, opener: int) -> None:
        """Renew an opener. Others that are dead are forgotten."""
        one.openers = {number: at for number, at in one.openers.items() if at > self.now}
        one.openers[opener] = self.now + one.ttr
        one.deadline = max(one.openers.values())

    def leave(self, one: Known, opener: int) -> None:
        """End an opener, and the session with the last one that lives."""
        one.openers.pop(opener, None)
        if one.name is not None and any(at > self.now for at in one.openers.values()):
            one.deadline = max(one.openers.values())
        else:
            self._end(one, lambda life: self._model.release(life))

    def die(self, one: Known) -> None:
        died = holder_died(one.name, self._runtime)
        self._end(one, lambda life: self._model.lose(life, died, "release"))

    def die_all(self) -> None:
        self.die_first(len(self.known))

    def die_first(self, most: int) -> None:
        """End the sessions that are overdue for the longest time."""
        for one in sorted(self.overdue(), key=lambda one: (one.deadline, one.id))[:most]:
            self.die(one)
        self._model.sweep()  # a task that comes back may have expired

    def _end(self, one: Known, give_back: Callable[[Life], object]) -> None:
        for life in self._model.in_state("t"):
            if life.session == one.id:
                give_back(life)
        del self.known[one.id]

    def holder(self, life: Life, process: HolderProcess) -> Holder:
        one = self.known[life.session or ""]
        processes = (process,) * (1 if one.name is None else len(one.openers))
        return Holder(
            one.id, one.name, processes, (one.deadline - one.ttr) / 1_000_000, one.deadline / 1_000_000
        )
