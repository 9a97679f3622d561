"""The puts of the workload `exact_mixed`: with a unique key, into a group, or after another task."""

from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.core.errors import GroupClosed, GroupNotFound, NotBuried, TaskNotFound
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.tasks.dead.letters import DeadLetters
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.soundness import unsound
from tests.system.workloads.exact_calls import require_equal, right
from tests.system.workloads.exact_groups_model import Gathered
from tests.system.workloads.exact_mixed_model import MixedModel
from tests.system.workloads.exact_model import Life, put
from tests.system.workloads.exact_verbs import Verbs

WISHES = ("", "", "unique", "group", "after")
LIKED = 0.5
GROUPS_MAX = 10
OTHER, RATE_PER_S = "exact_mixed, other", 1e9
STATES = {"r": "ready", "t": "taken", "~": "delayed"}


class MixedPuts(Verbs):
    model: MixedModel
    is_swept = True
    """True if no task has come due since the last sweep."""
    _liked: str | None = None

    def put(self) -> None:
        """A wish that one run likes has half of its puts."""
        if self._liked is None:
            self._liked = self.random.choice(WISHES)
        wish = self._liked if self.random.random() < LIKED else self.random.choice(WISHES)
        # Before a sweep, it is open which task has the key.
        if wish == "unique" and self.is_swept:
            options = self._options()
            self._put(options | self._unique(options))
        elif wish == "group":
            self._put_member()
        elif wish == "after":
            self._put_after()
        else:
            self._put(self._options())

    def _put(self, options: dict[str, Any], **joins: Any) -> Task | None:
        """Put a task. Return it if it is new. Some are so long that few move together (MOVED_BYTES_MAX)."""
        data, known = self._data() * self.random.choice((1, 1, 1, 8)), options | joins
        found = self.caller.answer(lambda tr: self.q.put(tr, data, **known))
        made = found if isinstance(found, Task) else None
        wanted = right(lambda: put(self.model, self.q.name, data, options, made))
        is_new = made is not None and made.id not in self.ids
        if made is not None and is_new:
            assert not made.existed, f"put {known}: it tells of a task that was there"
            self.ids.append(made.id)
            self._follow(made, **joins)
            wanted = self.model.lives[made.id].shown()
        require_equal(f"put {known}", found, wanted)
        return made if is_new else None

    def _follow(self, made: Task, group: str | None = None, after: str | None = None) -> None:
        """Let the groups of the model follow a new task."""
        model, life = self.model, self.model.lives[made.id]
        if group is not None:
            model.join(life, model.groups[group])
        if after in model.lives and made.waits_for is not None:
            model.groups[made.waits_for] = own = Gathered(made.waits_for, True, is_open=False)
            model.join(model.lives[after], own)
            life.state, life.waits = "~", own.id

    def _put_member(self) -> None:
        groups = [*self.model.groups.values()]
        groups = [group for group in groups if group.is_open] or groups
        if not groups:
            self._put(self._options())
            return
        group = self.random.choice(groups)
        if group.is_open:
            self._put(self._options(), group=group.id)
            return
        found = self.caller.answer(lambda tr: self.q.put(tr, "late", group=group.id))
        refused = GroupClosed if group.ended is None else (GroupClosed, GroupNotFound)
        assert isinstance(found, refused), f"a put into the ended group {group.id}: {found!r}"

    def _put_after(self) -> None:
        """Put a task after one of any state; after one that has ended, too."""
        options = self._options()
        options.pop("delay", None)
        parent = self.any_id() if self.ids else None
        life = self.model.lives.get(parent or "")
        if life is None or len(life.groups) < GROUPS_MAX:
            self._put(options, **({} if parent is None else {"after": parent}))

    def any_id(self) -> str:
        return self.random.choice(self.ids[-8:])


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
