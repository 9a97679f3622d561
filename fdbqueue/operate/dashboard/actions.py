"""Actions: the changes of a queue or a task by a form, each with the sentence of its confirmation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.redaction import Redaction
from fdbqueue.core.visible import counted
from fdbqueue.operate.audit import AFTER, Deed, Trail, told_values
from fdbqueue.operate.dashboard.guard import FormRefused
from fdbqueue.operate.dashboard.roles import ACT, PURGE
from fdbqueue.operate.exports import trash
from fdbqueue.tasks.dead_letters import RATE_PER_S, DeadLetters
from fdbqueue.tasks.queue import TaskQueue

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The queue, and for an action on a task its id."""

    database: Database
    root: Any
    queue: str
    id: str = ""
    redaction: Redaction | None = None
    """The parts of tasks that the actor does not see."""
    actor: str = ""
    trail: Trail | None = None
    """The audit of the action."""

    def counts(self, tasks: int) -> None:
        """Tell the audit the number of tasks that the action has changed."""
        if self.trail is not None:
            self.trail.tasks = tasks

    def tasks(self) -> TaskQueue:
        return TaskQueue.open(self.database, self.queue, root=self.root)

    def letters(self) -> DeadLetters:
        return DeadLetters.open(self.database, self.queue, root=self.root)


Perform = Callable[[Target, Form], str]


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    label: str
    default: str = ""
    help: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """One action. `perform` returns the sentence that tells its outcome."""

    name: str
    label: str
    """The text of its button."""
    asks: str
    """The sentence of its confirmation."""
    perform: Perform
    is_dangerous: bool = False
    """True if it cannot be undone."""
    fields: tuple[Field, ...] = ()
    """Fields of its confirmation."""
    drives: bool = False
    """True if a redrive may have tasks to move afterwards."""
    needs: str = ACT
    """The action that its request must be allowed to take."""
    is_bulk: bool = False
    """True if it may change many tasks."""
    tells: tuple[str, ...] = ()
    """Fields of its form that stand in the line of the audit."""
    opens: bool = False
    """True if it may show data to who could not see them."""
    states: tuple[str, ...] = ()
    """Those of the tasks that its form names, in which it may change them."""


QUEUE_ACTIONS, TASK_ACTIONS = dict[str, Action](), dict[str, Action]()


def _among(actions: dict[str, Action], name: str, label: str, **more: Any) -> Callable[[Perform], Perform]:
    """Make an action of a function, which performs it. Its docstring is the sentence of the confirmation."""

    def made(perform: Perform) -> Perform:
        actions[name] = Action(name, label, perform.__doc__ or "", perform, **more)
        return perform

    return made


_of_queue, _of_task = partial(_among, QUEUE_ACTIONS), partial(_among, TASK_ACTIONS)


@_of_queue("pause", "Pause")
def _pause(target: Target, _: Form) -> str:
    """No task of this queue will be taken until it is resumed."""
    target.tasks().pause(target.database)
    return "Paused: no task is taken until it is resumed."


@_of_queue("resume", "Resume")
def _resume(target: Target, _: Form) -> str:
    """Tasks of this queue will be taken again."""
    target.tasks().resume(target.database)
    return "Resumed: tasks are taken again."


_COUNT = Field("count", "Number of tasks", "100", "the first ones, in order")


@_of_queue("kick", "Kick", fields=(_COUNT,), is_bulk=True, tells=("count",))
def _kick(target: Target, form: Form) -> str:
    """Buried tasks become ready, at once."""
    count = whole(form, "count", 1, limits.BATCH_ITEMS_MAX)
    kicked = target.tasks().kick(target.database, count)
    target.counts(kicked)
    return f"{counted(kicked, 'task')} kicked."


@_of_queue("kick-class", "Kick all", is_bulk=True, tells=("error",))
def _kick_class(target: Target, form: Form) -> str:
    """All buried tasks that match become ready, at once."""
    letters, error, text = target.letters(), form.get("error"), form.get("text") or None
    kicked, after = letters.kick_some(target.database, error=error, text=text)
    while after is not None and kicked < limits.KICKED_MAX:
        more, after = letters.kick_some(target.database, error=error, text=text, after=after)
        kicked += more
    target.counts(kicked)
    rest = "" if after is None else " Others are left: a redrive moves all."
    return f"{counted(kicked, 'task')} kicked.{rest}"


_REDRIVE = (
    Field("rate", "Tasks a second", f"{RATE_PER_S:g}"),
    Field("text", "Text in the last failure", help="empty for all"),
    Field("into", "Into another queue", help="empty for their own"),
    Field("limit", "At most", help="empty for all"),
)


@_of_queue("redrive", "Redrive", fields=_REDRIVE, drives=True, tells=("rate", "into", "limit", "error"))
def _redrive(target: Target, form: Form) -> str:
    """Buried tasks that match go back at a bounded rate."""
    limit = form.get("limit", "").strip()
    target.letters().begin_redrive(
        target.database,
        error=form.get("error"),
        text=form.get("text") or None,
        rate_per_s=rate(form),
        into=form.get("into", "").strip() or None,
        limit=whole(form, "limit", 1, 10**12) if limit else None,
    )
    return "The redrive has begun."


@_of_queue("redrive-pause", "Pause redrive")
def _pause_redrive(target: Target, _: Form) -> str:
    """The redrive moves no task until it goes on."""
    target.letters().pause_redrive(target.database)
    return "The redrive is paused."


@_of_queue("redrive-resume", "Go on", drives=True)
def _resume_redrive(target: Target, _: Form) -> str:
    """This dashboard moves the tasks that are left."""
    target.letters().resume_redrive(target.database)
    return "The redrive goes on."


@_of_queue("redrive-stop", "Stop redrive", is_dangerous=True)
def _stop_redrive(target: Target, _: Form) -> str:
    """The redrive ends for good; the tasks that are left stay buried."""
    stopped = target.letters().stop_redrive(target.database)
    return f"The redrive is stopped: {counted(stopped.moved, 'task')} moved."


@_of_queue("trash-restore", "Restore", needs=PURGE, is_bulk=True, tells=("purge",))
def _restore(target: Target, form: Form) -> str:
    """The tasks of this purge come back, as they were."""
    purge = form.get("purge") or None
    done = trash.restore(target.tasks(), target.database, purge, most=limits.KICKED_MAX)
    target.counts(done.tasks)
    left = f" {counted(done.left, 'task')} left: unique keys in use, or unreadable." if done.left else ""
    rest = "" if done.after is None else " Others are left: restore again."
    return f"{counted(done.tasks, 'task')} restored.{left}{rest}"


@_of_queue("trash-empty", "Empty trash", is_dangerous=True, needs=PURGE, is_bulk=True)
def _empty(target: Target, _: Form) -> str:
    """All tasks in the trash are removed for good."""
    removed = trash.empty(target.tasks(), target.database)
    target.counts(removed)
    return f"The trash is empty: {counted(removed, 'task')} removed."


@_of_task("kick", "Kick")
def _kick_one(target: Target, _: Form) -> str:
    """The task becomes ready. Its failures so far no longer count."""
    target.letters().kick(target.database, target.id)
    return "The task is ready again."


@_of_task("bury", "Bury")
def _bury(target: Target, _: Form) -> str:
    """The task is put aside until it is kicked. A lease of it ends."""
    target.tasks().bury(target.database, target.id)
    return "The task is buried."


@_of_task("cancel", "Cancel", is_dangerous=True, needs=PURGE)
def _cancel(target: Target, _: Form) -> str:
    """The task ends without another attempt. A running handler is told at its next heartbeat."""
    task = target.tasks().cancel(target.database, target.id)
    if task.cancel_asked is None:
        return "The task is cancelled."
    return "The task is marked: its handler learns of the cancel at its next heartbeat."


@_of_task("delete", "Delete", is_dangerous=True, needs=PURGE)
def _delete(target: Target, _: Form) -> str:
    """The task is removed for good."""
    target.tasks().delete(target.database, target.id)
    return "The task is deleted."


_RESULT = Field("result", "Result", help="empty for none")


@_of_task("complete", "Complete", is_dangerous=True, fields=(_RESULT,))
def _complete(target: Target, form: Form) -> str:
    """The task was handed off. Its work is done, and it ends."""
    queue, text = target.tasks(), form.get("result", "").strip()
    queue.complete(target.database, target.id, edited(queue, text) if text else None)
    return "The task is completed."


@_of_task("fail", "Fail", fields=(Field("reason", "Reason"),))
def _fail(target: Target, form: Form) -> str:
    """The task was handed off. Its attempt fails, and it is ready again."""
    target.tasks().fail(target.database, target.id, form.get("reason", "").strip())
    return "The attempt has failed: the task is ready again."


@_of_task("edit", "Save", is_dangerous=True, opens=True)
def _edit(target: Target, form: Form) -> str:
    """The task gets other data. Its old data is lost."""
    letters, kick = target.letters(), form.get("kick") == "yes"
    if target.redaction is not None:
        data = target.tasks().peek(target.database, target.id).data
        if target.redaction.value("data", data) != data:
            raise FormRefused("You do not see all of this data, so you may not replace it.", 403)
    letters.edit(target.database, target.id, edited(letters, form.get("data", "")), kick=kick)
    return "The task has the new data, and is ready." if kick else "The task has the new data."


def edited(queue: DeadLetters | TaskQueue, text: str) -> Any:
    if queue.options.get("codec") == "bytes":
        return text.replace("\r\n", "\n").encode()
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise InvalidArgument(name="the data", wanted="JSON (a text needs its quotes)", got=text) from None


def whole(form: Form, name: str, least: int, most: int) -> int:
    text = form.get(name, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and least <= int(text) <= most):
        raise InvalidArgument(name=name, wanted=f"a whole number from {least:,} to {most:,}", got=text)
    return int(text)


def rate(form: Form) -> float:
    text = form.get("rate", "").strip() or str(RATE_PER_S)
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1e9:
        raise InvalidArgument(name="rate", wanted="a positive number of tasks a second", got=text)
    return found


UNTOLD = ("data", "result", "reason")
"""Fields that no log has: data of tasks."""


def performed(action: Action, target: Target, form: Form) -> str:
    """Do the action, and write its lines of the audit."""
    trail = Trail(target.database, target.root, deed_of(action, target, form))
    with trail as database:
        return action.perform(replace(target, database=database, trail=trail), form)


def deed_of(action: Action, target: Target, form: Form) -> Deed:
    told = {name: form[name] for name in action.tells if form.get(name)}
    name, is_named = action.name.removesuffix("-tasks"), bool(target.id or action.states)
    states = AFTER.get("dead kick" if is_named and name == "kick" else name, {})
    named = (target.actor, name, target.queue, target.id)
    return Deed(*named, told_values({**told, **states}), action.is_bulk, 1 if target.id else None)
