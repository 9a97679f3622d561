"""The puts of the workload `exact_mixed`: with a unique key, into a group, or after another task."""

from typing import Any

from fdbqueue.core.errors import GroupClosed, GroupNotFound
from fdbqueue.core.task import Task
from tests.system.workloads.exact_calls import require_equal, right
from tests.system.workloads.exact_groups_model import Gathered
from tests.system.workloads.exact_mixed_model import MixedModel
from tests.system.workloads.exact_puts import put
from tests.system.workloads.exact_verbs import Verbs

WISHES = ("", "", "unique", "group", "after")
LIKED = 0.5
GROUPS_MAX = 10


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
