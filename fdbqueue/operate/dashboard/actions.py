"""Actions: the changes of a queue or a task by a form, each with the sentence of its confirmation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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
    perform: Callable[[Target, Form], str]
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


def _told(act: Callable[[Target], object], outcome: str) -> Callable[[Target, Form], str]:
    def perform(target: Target, _: Form) -> str:
        act(target)
        return outcome

    return perform


def _kick(target: Target, form: Form) -> str:
    count = whole(form, "count", 1, limits.BATCH_ITEMS_MAX)
    kicked = target.tasks().kick(target.database, count)
    target.counts(kicked)
    return f"{counted(kicked, 'task')} kicked."


def _kick_class(target: Target, form: Form) -> str:
    letters, error, text = target.letters(), form.get("error"), form.get("text") or None
    kicked, after = letters.kick_some(target.database, error=error, text=text)
    while after is not None and kicked < limits.KICKED_MAX:
        more, after = letters.kick_some(target.database, error=error, text=text, after=after)
        kicked += more
    target.counts(kicked)
    rest = "" if after is None else " Others are left: a redrive moves all."
    return f"{counted(kicked, 'task')} kicked.{rest}"


def _redrive(target: Target, form: Form) -> str:
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


def _stop_redrive(target: Target, _: Form) -> str:
    stopped = target.letters().stop_redrive(target.database)
    return f"The redrive is stopped: {counted(stopped.moved, 'task')} moved."


def _restore(target: Target, _: Form) -> str:
    done = trash.restore(target.tasks(), target.database, most=limits.KICKED_MAX)
    target.counts(done.tasks)
    left = f" {counted(done.left, 'task')} left: unique keys in use, or unreadable." if done.left else ""
    rest = "" if done.after is None else " Others are left: restore again."
    return f"{counted(done.tasks, 'task')} restored.{left}{rest}"


def _empty(target: Target, _: Form) -> str:
    removed = trash.empty(target.tasks(), target.database)
    target.counts(removed)
    return f"The trash is empty: {counted(removed, 'task')} removed."


def _cancel(target: Target, _: Form) -> str:
    task = target.tasks().cancel(target.database, target.id)
    if task.cancel_asked is None:
        return "The task is cancelled."
    return "The task is marked: its handler learns of the cancel at its next heartbeat."


def _complete(target: Target, form: Form) -> str:
    queue, text = target.tasks(), form.get("result", "").strip()
    queue.complete(target.database, target.id, edited(queue, text) if text else None)
    return "The task is completed."


def _fail(target: Target, form: Form) -> str:
    target.tasks().fail(target.database, target.id, form.get("reason", "").strip())
    return "The attempt has failed: the task is ready again."


def _edit(target: Target, form: Form) -> str:
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


_COUNT = Field("count", "Number of tasks", "100", "the first ones, in order")
_TEXT = Field("text", "Text in the last failure", help="empty for all")
QUEUE_ACTIONS = {
    action.name: action
    for action in (
        Action(
            "pause",
            "Pause",
            "No task of this queue will be taken until it is resumed.",
            _told(lambda t: t.tasks().pause(t.database), "Paused: no task is taken until it is resumed."),
        ),
        Action(
            "resume",
            "Resume",
            "Tasks of this queue will be taken again.",
            _told(lambda t: t.tasks().resume(t.database), "Resumed: tasks are taken again."),
        ),
        Action(
            "kick",
            "Kick",
            "Buried tasks become ready, at once.",
            _kick,
            fields=(_COUNT,),
            is_bulk=True,
            tells=("count",),
        ),
        Action(
            "kick-class",
            "Kick all",
            "All buried tasks that match become ready, at once.",
            _kick_class,
            is_bulk=True,
            tells=("error",),
        ),
        Action(
            "redrive",
            "Redrive",
            "Buried tasks that match go back at a bounded rate.",
            _redrive,
            fields=(
                Field("rate", "Tasks a second", f"{RATE_PER_S:g}"),
                _TEXT,
                Field("into", "Into another queue", help="empty for their own"),
                Field("limit", "At most", help="empty for all"),
            ),
            drives=True,
            tells=("rate", "into", "limit", "error"),
        ),
        Action(
            "redrive-pause",
            "Pause redrive",
            "The redrive moves no task until it goes on.",
            _told(lambda t: t.letters().pause_redrive(t.database), "The redrive is paused."),
        ),
        Action(
            "redrive-resume",
            "Go on",
            "This dashboard moves the tasks that are left.",
            _told(lambda t: t.letters().resume_redrive(t.database), "The redrive goes on."),
            drives=True,
        ),
        Action(
            "redrive-stop",
            "Stop redrive",
            "The redrive ends for good; the tasks that are left stay buried.",
            _stop_redrive,
            is_dangerous=True,
        ),
        Action(
            "trash-restore",
            "Restore",
            "The tasks of the latest purge come back, as they were.",
            _restore,
            needs=PURGE,
            is_bulk=True,
        ),
        Action(
            "trash-empty",
            "Empty trash",
            "All tasks in the trash are removed for good.",
            _empty,
            is_dangerous=True,
            needs=PURGE,
            is_bulk=True,
        ),
    )
}
TASK_ACTIONS = {
    action.name: action
    for action in (
        Action(
            "kick",
            "Kick",
            "The task becomes ready. Its failures so far no longer count.",
            _told(lambda t: t.letters().kick(t.database, t.id), "The task is ready again."),
        ),
        Action(
            "bury",
            "Bury",
            "The task is put aside until it is kicked. A lease of it ends.",
            _told(lambda t: t.tasks().bury(t.database, t.id), "The task is buried."),
        ),
        Action(
            "cancel",
            "Cancel",
            "The task ends without another attempt. A running handler is told at its next heartbeat.",
            _cancel,
            is_dangerous=True,
            needs=PURGE,
        ),
        Action(
            "delete",
            "Delete",
            "The task is removed for good.",
            _told(lambda t: t.tasks().delete(t.database, t.id), "The task is deleted."),
            is_dangerous=True,
            needs=PURGE,
        ),
        Action(
            "complete",
            "Complete",
            "The task was handed off. Its work is done, and it ends.",
            _complete,
            is_dangerous=True,
            fields=(Field("result", "Result", help="empty for none"),),
        ),
        Action(
            "fail",
            "Fail",
            "The task was handed off. Its attempt fails, and it is ready again.",
            _fail,
            fields=(Field("reason", "Reason"),),
        ),
        Action(
            "edit",
            "Save",
            "The task gets other data. Its old data is lost.",
            _edit,
            is_dangerous=True,
            opens=True,
        ),
    )
}


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
