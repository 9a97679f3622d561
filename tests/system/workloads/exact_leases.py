"""The verbs of holders in the workload `exact`, each with the same verb of the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fdbqueue.core.errors import NotTaken
from fdbqueue.core.task import Failure, Task
from tests.system.workloads.exact_life import Life
from tests.system.workloads.exact_model import Model
from tests.system.workloads.exact_times import added, micro, seconds

if TYPE_CHECKING:
    from tests.system.workloads.exact_verbs import Verbs

Answer = Callable[[Model, Life], Any]
Made = tuple[Callable[[Any], Any], Answer]
"""The call of the queue, and that of the model about a task that is held."""

FAILURES = (None, Failure("Odd", "it failed"), Failure("Rare"))


def of_holder(model: Model, task: Task, answer: Answer) -> Callable[[], Any]:
    return lambda: answer(model, model.held(task))


def _ack(user: Verbs, task: Task) -> Made:
    result = user.random.choice((None, 7, "done" * 9))
    return lambda tr: user.q.ack(tr, task, result=result), lambda m, life: m.end(life, "ack", "acked", result)


def _delete(user: Verbs, task: Task) -> Made:
    return lambda tr: user.q.delete(tr, task), lambda m, life: m.end(life, "delete", "deleted")


def _release(user: Verbs, task: Task) -> Made:
    failure = user.random.choice(FAILURES)
    delays = failure is not None or user.q.kind not in ("fifo", "utube")
    delay = user.random.choice((0, 0.5, 2)) if delays else 0
    return (
        lambda tr: user.q.release(tr, task, delay=delay, failure=failure),
        lambda m, life: m.release(life, micro(delay) or 0, failure),
    )


def _defer(user: Verbs, task: Task) -> Made:
    delay = user.random.choice((0, 0.25, 3))
    return lambda tr: user.q.defer(tr, task, delay), lambda m, life: m.release(life, micro(delay) or 0)


def _give_back(user: Verbs, task: Task) -> Made:
    return lambda tr: user.q.give_back(tr, task), lambda m, life: m.release(life)


def _bury(user: Verbs, task: Task) -> Made:
    failure = user.random.choice(FAILURES)
    return lambda tr: user.q.bury(tr, task, failure=failure), lambda m, life: m.bury(life, failure)


def _touch(user: Verbs, task: Task) -> Made:
    if user.q.kind in ("fifo", "utube"):
        return _progress(user, task)
    span = user.random.choice((0.25, 2))
    return lambda tr: user.q.touch(tr, task, span), lambda m, life: _touched(m, life, micro(span))


def _touched(model: Model, life: Life, span: int | None) -> Task:
    for name in ("until", "expires", "ttr"):
        setattr(life, name, added(getattr(life, name), span))
    model.calls["touch"] += 1
    return life.shown()


def _progress(user: Verbs, task: Task) -> Made:
    fraction = user.random.choice((0.0, 0.5, 1.0))
    return lambda tr: user.q.progress(tr, task, fraction), lambda m, life: _told(m, life, fraction)


def _told(model: Model, life: Life, fraction: float) -> Task:
    life.fraction, life.told = fraction, model.now
    return life.shown()


def _renew(user: Verbs, task: Task) -> Made:
    def renew(tr: Any) -> Any:
        found = user.q.renew(tr, [task])
        if task.id not in found:
            return NotTaken(id=task.id)
        cancelled = task.id in found.cancelled
        return replace(task, until=found[task.id], cancel_asked=float(cancelled))

    return renew, lambda m, life: _renewed(m, life, task)


def _renewed(model: Model, life: Life, task: Task) -> Task:
    if life.until is not None:
        life.until = model.lease_end(life)
    return replace(task, until=seconds(life.until), cancel_asked=float(life.cancelled is not None))


def _step(user: Verbs, task: Task) -> Made:
    name, result = user.random.choice("xyz"), user.random.choice((None, "r", user.model.now))
    return (
        lambda tr: user.q.step(tr, task, name, (lambda *_: result)),
        lambda _, life: life.steps.setdefault(name, result),
    )


def _exhaust(user: Verbs, task: Task) -> Made:
    most = user.random.choice((1, 2, 3))
    return lambda tr: user.q.exhaust(tr, task, most), lambda m, life: _exhausted(m, life, most)


def _exhausted(model: Model, life: Life, most: int) -> bool:
    if life.failures - life.forgiven < most or life.cancelled is not None:
        return False
    lost = [n for n, failure in life.failed if n > life.forgiven and failure.outcome == "lease_lost"]
    life.failed = [
        (n, replace(failure, outcome="exhausted") if n in lost[-1:] else failure)
        for n, failure in life.failed
    ]
    model.put_aside(life)
    return True


LEASES: dict[str, Callable[[Verbs, Task], Made]] = {
    "ack": _ack,
    "delete": _delete,
    "release": _release,
    "defer": _defer,
    "give_back": _give_back,
    "bury": _bury,
    "touch": _touch,
    "progress": _progress,
    "renew": _renew,
    "step": _step,
    "exhaust": _exhaust,
}
