"""Dead letters in the workload `exact_mixed`: single kicks, edits, and redrives into another queue."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.core.errors import NotBuried, TaskNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.soundness import unsound
from tests.system.workloads.exact_calls import require_equal
from tests.system.workloads.exact_life import Life
from tests.system.workloads.exact_mixed_model import MixedModel
from tests.system.workloads.exact_verbs import Verbs

OTHER, RATE_PER_S = "exact_mixed, other", 1e9
STATES = {"r": "ready", "t": "taken", "~": "delayed"}


class DeadDeeds(Verbs):
    model: MixedModel
    _other: TaskQueue | None = None

    def any_id(self) -> str:
        raise NotImplementedError

    def winners_first(self, lives: list[Life]) -> list[Life]:
        raise NotImplementedError

    def dead_letter(self) -> None:
        """Kick one buried task, or give it other data, by its id."""
        if not self.ids:
            return
        id_, kicks, data = self.any_id(), self.random.random() < 0.6, self._data()
        verbs: dict[bool, Callable[[Any], Any]] = {
            True: lambda tr: self._letters.kick(tr, id_),
            False: lambda tr: self._letters.edit(tr, id_, data),
        }
        what = "kick" if kicks else "edit"
        self._call(f"{what} {id_}", verbs[kicks], partial(self._dead_letter, id_, None if kicks else data))

    @property
    def _letters(self) -> DeadLetters:
        return DeadLetters.open(self.caller.client.db, self.q.name)

    def _dead_letter(self, id_: str, data: Any) -> Task:
        life = self.model.lives.get(id_)
        if life is None:
            raise TaskNotFound(id=id_, name=self.q.name)
        if life.state != "!":
            raise NotBuried(id=id_, state=STATES[life.state])
        if data is None:
            self.model.kick([life])
        else:
            life.data = data
        return life.shown()

    def redrive(self) -> None:
        """Move all buried tasks into another queue, or back into their own one."""
        letters, db = self._letters, self.caller.client.db
        into = self.random.choice((None, self._elsewhere().name))
        buried = self.model.in_state("!")
        letters.begin_redrive(db, rate_per_s=RATE_PER_S, into=into)
        moved, is_open = 0, bool(buried)
        while is_open:
            step = letters.step_redrive(db)
            moved, is_open = moved + step.moved, step.redrive.is_open
        require_equal("redriven", moved, len(buried))
        if into is None:
            self.model.kick(self.winners_first(buried))
        else:
            for life in buried:
                self.model.send_away(life)

    def _elsewhere(self) -> TaskQueue:
        if self._other is None:
            self._other = TaskQueue.create(self.caller.client.db, OTHER, "fifo", if_not_exists=True)
        return self._other

    def use_the_other_queue(self) -> None:
        """Take a task that was moved there, and end it."""
        other, session = self._elsewhere(), self.sessions["a"]
        found = self.caller.answer(lambda tr: other.take_many(tr, 1, session=session))
        require_equal("tasks elsewhere", len(found), min(1, len(self.model.away)))
        if found:
            groups, acks = self.model.away.pop(0), self.random.random() < 0.5
            verb = other.ack if acks else other.delete
            self.caller.answer(lambda tr: verb(tr, found[0]))
            self.model.count_off(groups, acks)

    def verify(self) -> None:
        found = unsound(self.caller.client.db, DEFAULT_ROOT)
        require_equal("verification", found, [])
