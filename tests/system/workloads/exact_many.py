"""The calls of the workload `exact` about many tasks, about sessions, and about the queue."""

from math import inf
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.sessions.session import Session
from tests.system.workloads.exact_calls import require_equal
from tests.system.workloads.exact_model import HOLDER_DIED
from tests.system.workloads.exact_verbs import Verbs

DIES_AFTER_S = 3.0


class Many(Verbs):
    def kick(self) -> None:
        count = self.random.choice((1, 2, 3, 5, 9))
        buried = self.model.in_state("!")
        many = count > limits.VERB_BATCH
        found = self.caller.answer(lambda tr: self.q.kick(tr, count), always_alone=many)
        require_equal(f"kick {count}", found, len(buried[:count]))
        self.model.kick(buried[:count])

    def release_all(self) -> None:
        self.caller.answer(self.q.release_all, always_alone=True)
        for life in sorted(self.model.in_state("t"), key=lambda life: (life.session or "", life.id)):
            self.model.release(life)

    def truncate(self) -> None:
        self.caller.answer(self.q.truncate)
        self.model.truncate()

    def pause(self) -> None:
        """Pause the queue, or resume it."""
        verb = self.q.resume if self.model.paused else self.q.pause
        self.caller.answer(verb)
        self.model.paused = not self.model.paused
        require_equal("paused", self.caller.answer(self.q.paused), self.model.paused)

    def forget_result(self) -> None:
        if self.ids:
            id_ = self.random.choice([*self.model.results, *self.ids[-3:]])
            found = self.caller.answer(lambda tr: self.q.forget_result(tr, id_))
            require_equal("forget_result", found, self.model.results.pop(id_, None) is not None)

    # Sessions.

    def end_session(self) -> None:
        name = self.random.choice([*self.sessions])
        old = self.sessions[name]
        old.end()
        for life in self._held_by(old):
            self.model.release(life)
        self.sessions[name] = Session(self.caller.client.db, ttr=inf)

    def let_a_session_die(self) -> None:
        """Take a task for a session that has no heartbeat any more, until the session is dead.

        A sweep ends it; or the next opener of its name, before its own session begins. Its tasks come back
        before or after those with a lapsed lease, so no two of them may want the same unique key.
        """
        if any(life.scope == "queued" for life in self.model.lives.values()):
            return
        db, name = self.caller.client.db, self.random.choice((None, "named"))
        session = Session(db, name, DIES_AFTER_S)
        self.sessions["dying"] = session
        session._keeper.forget(session)
        self.take()
        del self.sessions["dying"]
        self.caller.tick()
        self.model.now += round(DIES_AFTER_S * 1_000_000)
        self.caller.clock.move_to(self.model.now)
        self.model.sweep()
        for life in self._held_by(session):
            self.model.lose(life, HOLDER_DIED, "release")
        if name is not None:
            Session(db, name).end()
        self.caller.tick()

    def _held_by(self, session: Session) -> list[Any]:
        return [life for life in self.model.in_state("t") if life.session == session.id.hex()]
