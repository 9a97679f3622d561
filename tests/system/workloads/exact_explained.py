"""The right explanation of a task, for the workload `exact`, in which no call waits and no worker runs."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fdbqueue.core.explanation import Explanation, TaskPlace, Why
from fdbqueue.core.task import Task
from tests.system.workloads.exact_calls import require_equal
from tests.system.workloads.exact_life import Life
from tests.system.workloads.exact_model import Model

KEYED = ("utube", "utubettl", "fair")


def as_seen(answer: Any, swept: bool) -> Any:
    """A task as a look shows it. Before a sweep, a lease that is over counts as no failure, and a task has a
    unique key that another one has taken.
    """
    if swept or not isinstance(answer, Task):
        return answer
    return replace(answer, failures=0, orphaned=0, unique=None)


def require_explained(model: Model, life: Life, found: Explanation, swept: bool) -> None:
    """Raises: AssertionError."""
    what = f"explain {life.id}"
    require_equal(f"{what}, the task", as_seen(found.task, swept), as_seen(life.shown(), swept))
    require_equal(f"{what}, its holder", found.holder and found.holder.session, life.session)
    told = (found.paused, found.now, found.waiting, found.workers, found.capacity)
    require_equal(what, told, (model.paused, model.now / 1_000_000, 0, 0, model.options.get("capacity")))
    if swept:
        last = life.failed[-1][1] if life.failed else None
        require_equal(f"{what}, the last failure", found.last_failure, last)
        require_equal(f"{what}, the number of tasks", found.tasks, len(model.lives))
        require_equal(
            f"{what}, reasons", tuple(one.why for one in found.reasons), (*reasons(model, life, found),)
        )
        if not model.is_parted:
            _require_place(model, life, found, what)


def _require_place(model: Model, life: Life, found: Explanation, what: str) -> None:
    assert found.swept, f"{what}: not swept, after a sweep"
    assert (found.place is None) == (life.state in "t~"), f"{what}: its place is {found.place}"
    if found.place is not None:
        require_equal(f"{what}, its place", found.place, _place(model, life, found.place))
    busy = [other.id for other in model.in_state("t") if other.key == life.key] if life.state == "r" else []
    if "utube" in model.kind:
        require_equal(
            f"{what}, holders of its key", sorted(one.task for one in found.key_holders), sorted(busy)
        )


def _place(model: Model, life: Life, told: TaskPlace) -> TaskPlace:
    before = [other for other in model.in_state(life.state) if other.place < life.place]
    if life.state == "!":
        return TaskPlace(ahead=len(before))
    if model.kind == "bag":
        return TaskPlace(ahead=len(model.in_state("r")) - 1, in_any_order=True)
    if model.kind not in KEYED:
        return TaskPlace(ahead=len(before))
    in_key = sum(other.key == life.key for other in before)
    taken = sum(other.key == life.key for other in model.in_state("t"))
    is_open = model.kind == "fair" or taken < model.options.get("key_concurrency", 1)
    rounds = (told.round, told.current_round)
    return TaskPlace(told.ahead, in_key, True, is_open, *rounds)


def reasons(model: Model, life: Life, found: Explanation) -> Iterator[Why]:
    if model.paused:
        yield Why.PAUSED
    if life.state == "r":
        place = found.place or TaskPlace()
        yield from (Why.KEY_HELD,) if found.held is not None else ()
        yield from (Why.KEY_BUSY,) if not place.key_is_open else ()
        yield from (Why.KEY_BEHIND,) if place.ahead_in_key else ()
        far = (place.round or 0) > (place.current_round or 0) + 1
        yield from (Why.BEHIND,) if place.ahead or far else ()
        yield Why.NO_WORKER
    else:
        held = Why.HOLDER_ENDED if life.session in model.overdue else Why.TAKEN
        taken = held if life.cancelled is None else Why.CANCELLED
        waits = Why.DELAYED if life.waits is None else Why.WAITING
        yield {"!": Why.BURIED, "~": waits, "t": taken}[life.state]
