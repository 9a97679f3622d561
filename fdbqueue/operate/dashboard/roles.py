"""Roles: the actions that a request may take on each queue, its actor, and the parts of tasks hidden from it.

The program decides by two functions. One that raises, or answers something else than it should, refuses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_function
from fdbqueue.core.logger import logger
from fdbqueue.core.redaction import HIDDEN, Redaction, redaction_of, whole
from fdbqueue.core.task import Explanation
from fdbqueue.core.visible import shown, visible
from fdbqueue.operate.audit import AuditLine, seen_line
from fdbqueue.operate.dashboard.guard import FormRefused, address_of
from fdbqueue.operate.dashboard.looks import ChronicleLook, DeadLook, History, QueueLook, TaskLook
from fdbqueue.operate.dashboard.views import QueuesView, queues_view
from fdbqueue.operate.figures import Figures, GroupsFigures, ScheduleFigures
from fdbqueue.tasks.redrive import Redrive
from fdbqueue.tasks.rows import command

ACTIONS = LOOK, PAYLOADS, ACT, PURGE = "look", "payloads", "act", "purge"
Authorize = Callable[[Request, str, str | None], bool]
"""Given a request, an action and a queue: true allows it. The queue is None for limits, groups, and all that
belongs to no queue.
"""
Actor = Callable[[Request], str]
Look = TypeVar("Look", QueueLook, TaskLook, DeadLook, ChronicleLook)
_log = logger("fdbqueue.dashboard")


@dataclass(frozen=True)
class Roles:
    write: bool = False
    authorize: Authorize | None = None
    name: Actor | None = None
    redaction: Redaction | None = None

    def may(self, request: Request, action: str, queue: str | None) -> bool:
        if action in (ACT, PURGE) and not self.write:
            return False
        if self.authorize is None:
            return True
        try:
            answer = self.authorize(request, action, queue)
        except Exception as error:
            _log.error("authorize has failed, so %s of %s is refused", action, shown(queue), exc_info=error)
            return False
        if answer is not True and answer is not False:
            _log.error("authorize must return a bool: %s of %s is refused", action, shown(queue))
        return answer is True

    def require(self, request: Request, action: str, queue: str | None) -> None:
        """Raises: FormRefused."""
        if not self.may(request, action, queue):
            what = {LOOK: "look at", PAYLOADS: "see, find or edit data of", ACT: "act on", PURGE: "purge"}
            raise FormRefused(f"You may not {what[action]} this queue.", 403)

    def told(self, request: Request, queue: str | None) -> str:
        """The actions that the request may take on the queue; empty for a page of many queues."""
        if self.authorize is None:
            return "Actions on" if self.write else "Read-only"
        allowed = [one for one in ACTIONS if queue is not None and self.may(request, one, queue)]
        return f"You may {', '.join(allowed)}" if allowed else ""

    def actor(self, request: Request) -> str:
        """The name for the audit and the log. Raises: FormRefused if the program gives none."""
        if self.name is None:
            return f"dashboard {address_of(request)}"
        try:
            name = self.name(request)
        except Exception as error:
            _log.error("actor has failed, so an action is refused", exc_info=error)
        else:
            if isinstance(name, str) and 0 < len(name) <= limits.AUDIT_TEXT_LENGTH:
                return name
            _log.error("actor must return a text, so an action is refused")
        raise FormRefused("This dashboard does not know your name.", 403)

    def redaction_for(self, request: Request, queue: str | None) -> Redaction | None:
        return self.redaction if self.may(request, PAYLOADS, queue) else whole()

    def seen(self, request: Request, queue: str, look: Look) -> Look:
        """The look without its hidden parts, and without the names of queues that the request may not see."""
        look = hidden_in(look, self.redaction_for(request, queue))
        if isinstance(look, QueueLook | DeadLook) and look.redrive is not None and look.redrive.into:
            into = self._name(request, look.redrive.into)
            look = replace(look, redrive=replace(look.redrive, into=into))
        if isinstance(look, TaskLook) and look.explanation is not None:
            look = replace(look, explanation=self._explained(request, look.explanation))
        return look

    def _explained(self, request: Request, found: Explanation) -> Explanation:
        """Its reasons name tasks of other queues, which hold a limit, or the threads of its workers."""
        named = {(one.task, one.queue) for limit in found.reached for one in limit.holders}
        named |= {(run.id, run.queue) for run in found.runs}
        hidden = [(id_, queue) for id_, queue in named if self._name(request, queue) == HIDDEN]

        def seen(text: str) -> str:
            for id_, queue in hidden:
                name = visible(queue)
                for form in (f"{id_} of {name}", f"{id_} of {name!r}", command(queue, "explain", id_)):
                    text = text.replace(form, HIDDEN)
            return text

        reasons = tuple(replace(one, text=seen(one.text), cure=seen(one.cure)) for one in found.reasons)
        return replace(found, reasons=reasons)

    def _name(self, request: Request, queue: str) -> str:
        return queue if self.may(request, LOOK, queue) else HIDDEN

    def view(self, request: Request, view: QueuesView, history: History) -> QueuesView:
        """The first page with the queues that the request may look at."""
        if self.authorize is None and self.redaction is None:
            return view
        return queues_view(self._seen(request, view.figures), history.trend)

    def _seen(self, request: Request, figures: Figures) -> Figures:
        queues = tuple(queue for queue in figures.queues if self.may(request, LOOK, queue.name))
        known = {queue.name for queue in queues}
        if not self.may(request, LOOK, None):
            workers = max((queue.tasks.workers for queue in queues if queue.tasks), default=0)
            figures = replace(figures, workers=workers, limits=(), groups=GroupsFigures())
        limits = tuple(
            replace(one, queues=tuple(name for name in one.queues if name in known)) for one in figures.limits
        )
        there = (one for one in figures.schedules if self.may(request, LOOK, one.queue or None))
        schedules = tuple(self._schedule(request, one) for one in there)
        return replace(figures, queues=queues, limits=limits, schedules=schedules)

    def _schedule(self, request: Request, found: ScheduleFigures) -> ScheduleFigures:
        """The error of a schedule may tell the data of its tasks."""
        is_hidden = found.error and self.redaction_for(request, found.queue or None)
        return replace(found, error=HIDDEN) if is_hidden else found

    def lines(self, request: Request, lines: Sequence[AuditLine]) -> list[AuditLine]:
        """The lines of the audit about queues that the request may look at."""
        allowed = {queue: self.may(request, LOOK, queue or None) for queue in {one.queue for one in lines}}
        return [self._line(request, one) for one in lines if allowed[one.queue]]

    def _line(self, request: Request, line: AuditLine) -> AuditLine:
        into = line.after.get("into")
        after = {**line.after, "into": self._name(request, into)} if into else line.after
        redaction = self.redaction_for(request, line.queue or None)
        return seen_line(msgspec.structs.replace(line, after=after), redaction)


def roles_of(write: bool, authorize: Any, actor: Any, redact: Any) -> Roles:
    """Raises: InvalidArgument."""
    for name, function in (("authorize", authorize), ("actor", actor)):
        if function is not None:
            checked_function(name, function)
    return Roles(write, authorize, actor, redaction_of(redact))


def hidden_in(look: Look, redaction: Redaction | None) -> Look:
    """The look without its hidden parts."""
    if redaction is None or isinstance(look, ChronicleLook):
        return look
    if isinstance(look, TaskLook):
        return _in_task(look, redaction)
    if isinstance(look, QueueLook):
        return replace(
            look,
            tasks=[redaction.task(task) for task in look.tasks],
            ended=[replace(one, key=redaction.key("key", one.key)) for one in look.ended],
            keys=[replace(one, key=redaction.key("key", one.key)) for one in look.keys],
            redrive=_redrive(look.redrive),
            **_without_weights(look) if redaction.hides("key") else {},
        )
    letters = [
        replace(one, task=redaction.task(one.task), failure=redaction.failure(one.task, one.failure))
        for one in look.letters
    ]
    # The task of the first failure of a class is not read, so its text is hidden whole.
    classes = [
        replace(one, failure=one.failure and replace(one.failure, message=HIDDEN, detail=""))
        for one in look.classes
    ]
    return replace(look, letters=letters, classes=classes, redrive=_redrive(look.redrive))


def _in_task(look: TaskLook, redaction: Redaction) -> TaskLook:
    if look.explanation is None:
        ended = look.ended and replace(look.ended, key=redaction.key("key", look.ended.key))
        return replace(look, ended=ended)
    failures = redaction.failures(look.explanation.task, look.failures)
    seen = redaction.explanation(look.explanation)
    is_editable = seen.task.data == look.explanation.task.data
    return replace(look, explanation=seen, failures=failures, is_editable=is_editable)


def _without_weights(look: QueueLook) -> dict[str, Any]:
    """The options of the queue and their changes, without those that name task keys."""
    changes = [one for one in look.alterations if "weights" not in one.changes]
    return {"options": {**look.options, "weights": None}, "alterations": changes}


def _redrive(found: Redrive | None) -> Redrive | None:
    """A redrive without the text that its failures have."""
    return replace(found, text=HIDDEN) if found is not None and found.text else found
