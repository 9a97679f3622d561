"""The calls of the workload `exact_sessions`, each with the same call of the model."""

from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import NotTaken, UnknownSession
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.ending import end_the_dead
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import HolderProcess, Task
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import Caller, caught, require_equal
from tests.system.workloads.exact_many import Many
from tests.system.workloads.exact_model import Model
from tests.system.workloads.exact_sessions_model import Known, Sessions
from tests.system.workloads.exact_times import micro

OPENERS_MAX = 5


class Opener(NamedTuple):
    """An object of a session, and its number in the model."""

    session: Session
    number: int


class Openers(Many):
    def __init__(self, caller: Caller, q: TaskQueue, model: Model) -> None:
        super().__init__(caller, q, model, {})
        self.known, self.openers = Sessions(model), list[Opener]()
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
