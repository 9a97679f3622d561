"""Several at once: the ticked tasks of a page, or those that its search finds, and an action on all of them.

The page that asks holds their ids. So the action meets the tasks that this page has counted: a task that
matches only later is left alone, as is one that runs by then.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from fdbqueue.core import limits
from fdbqueue.core.task import Task
from fdbqueue.core.visible import counted
from fdbqueue.operate.dashboard.actions import QUEUE_ACTIONS, Action, Field, Form, Target, whole
from fdbqueue.operate.dashboard.guard import FormRefused
from fdbqueue.operate.dashboard.roles import ACT, PURGE
from fdbqueue.operate.exports import trash
from fdbqueue.operate.filters import searched
from fdbqueue.tasks.selected import EDGES, STATES, ChangedTasks, Edit


@dataclass(frozen=True, slots=True)
class Preview:
    """What an action would do to some tasks."""

    ids: Sequence[str]
    tasks: Sequence[Task]
    """Those of the ids that are in the queue."""
    states: Sequence[str]
    """In which the action may change them."""
    has_more: bool = False
    """True if a search has more tasks."""

    @property
    def by_state(self) -> Counter[str]:
        return Counter(task.state.name.lower() for task in self.tasks)

    @property
    def would(self) -> int:
        return sum(self.by_state[name] for name in self.states)

    @property
    def text(self) -> str:
        """How many would change, from which states, and why the others would not."""
        parts = [f"{number:,} {name}" for name in self.states if (number := self.by_state[name])]
        changing = f"{self.would:,} would change" + f" ({', '.join(parts)})" * bool(parts)
        return f"Of {counted(len(self.ids), 'task')}, {'; '.join([changing, *self._others(self.would)])}."

    def outcome(self, changed: int, done: str) -> str:
        all_of = counted(len(self.ids), "task")
        told = all_of if changed == len(self.ids) else f"{changed:,} of {all_of}" if changed else "No task"
        return "; ".join([f"{told} {'were' if changed > 1 else 'was'} {done}", *self._others(changed)]) + "."

    def _others(self, changed: int) -> list[str]:
        left, reasons = len(self.ids) - changed, []
        gone, running = len(self.ids) - len(self.tasks), self.by_state["taken"]
        for number, one, more in (
            (running, "runs now", "run now"),
            (gone, "is no longer here", "are no longer here"),
            (left, "stays as it is", "stay as they are"),
        ):
            met = max(0, min(number, left))
            left -= met
            reasons += [f"{met:,} {one if met == 1 else more}"] * bool(met)
        return reasons


def search_of(form: Form) -> tuple[dict[str, str], str | None]:
    """The fields of the search that chooses the tasks of a form, and its place. Raises: FormRefused."""
    is_all = form.get("all") == "yes"
    back = dict(parse_qsl(form.get("back", ""))) if is_all else {}
    search = searched(back) if is_all else {"id": form.get("task", "")}
    if not any(search.values()):
        raise FormRefused("Tick tasks first.", 400)
    return search, back.get("after")


def preview(
    target: Target, states: Sequence[str], where: Mapping[str, Any], after: str | None = None
) -> Preview:
    """The tasks that filters choose, the first limits.BATCH_ITEMS_MAX, without their hidden parts."""
    found = target.tasks().search(target.database, where, after=after, most=limits.BATCH_ITEMS_MAX)
    tasks = found.tasks if target.redaction is None else [*map(target.redaction.task, found.tasks)]
    given = where.get("id") or [task.id for task in tasks]
    ids = dict.fromkeys([given] if isinstance(given, str) else given)
    return Preview([*ids], tasks, states, found.after is not None)


def _perform(target: Target, form: Form, *, verb: str, done: str, states: Sequence[str]) -> str:
    queue, database, where = target.tasks(), target.database, {"id": form.get("task", "").split(",")}
    before = preview(target, states, where)

    def count(so_far: ChangedTasks) -> None:
        target.counts(so_far.changed)

    if verb == "delete":
        answer = trash.purge(queue, database, target.actor, where, progress=count)
    elif verb in EDGES:
        answer = queue.change(database, where, do=verb, progress=count)  # type: ignore[arg-type]
    else:
        into = {"queue": form.get("into", "").strip()}
        options = into if verb == "move" else {"pri": whole(form, "pri", 0, limits.PRIORITY_MAX)}
        answer = queue.change(database, where, options, progress=count)
    return before.outcome(answer.changed, done)


def _action(verb: str, label: str, asks: str, done: str, *fields: Field) -> Action:
    edit = Edit(verb if verb in EDGES else None)
    states = tuple(name for name, state in STATES.items() if state in edit.states)
    return Action(
        f"{verb}-tasks",
        label,
        asks,
        partial(_perform, verb=verb, done=done, states=states),
        verb == "cancel",
        fields,
        needs=PURGE if verb in ("cancel", "delete") else ACT,
        is_bulk=True,
        tells=tuple(field.name for field in fields),
        opens=verb == "move",
        states=states,
    )


_INTO = "The tasks get new ids behind those of another queue. Buried ones are ready there."
ACTIONS_OF_QUEUE = QUEUE_ACTIONS | {
    action.name: action
    for action in (
        _action("kick", "Kick", "The tasks become ready. Their failures no longer count.", "kicked"),
        _action("bury", "Bury", "The tasks are put aside until they are kicked.", "buried"),
        _action("pri", "Priority", "The lowest is taken first.", "changed", Field("pri", "Priority")),
        _action("move", "Move", _INTO, "moved", Field("into", "Into the queue")),
        _action("cancel", "Cancel", "The tasks end without another attempt.", "cancelled"),
        _action("delete", "Delete", "The tasks go to the trash, for a day.", "deleted"),
    )
}
"""Those of the queue, and those on the tasks that a form names."""
