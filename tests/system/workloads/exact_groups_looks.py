"""The looks of the workload `exact_groups`, after all sweeps."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.groups.group import list_groups
from fdbqueue.tasks.groups.waiting import GroupProgress
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import Caller, caught, require_equal
from tests.system.workloads.exact_groups_model import Books, Then
from tests.system.workloads.exact_times import seconds

See = Callable[[Callable[[Any], Any]], Any]


def require_all(
    caller: Caller, queues: tuple[TaskQueue, TaskQueue], then: TaskQueue, books: Books, names: tuple[str, str]
) -> None:
    """Compare all looks with the model. `queues`: the one under limits, and the other one.

    Raises: AssertionError.
    """
    see: See = partial(run, caller.client.db)
    _require_groups(see(list_groups), books)
    for group in books.groups.values():
        assert group.then is not None  # each group of this workload has one
        peek = partial(_peek, then, group.then.id)
        _require_then(see(partial(caught, peek)), group.id, group.then, books)
    _require_limits(see, books, names)
    for (is_apart, q), state in product(enumerate(queues), "rt!~"):
        found = [task.id for task in see(partial(q.tasks, state=state, limit=100))]
        there = [one for one in books.members.values() if one.is_apart == bool(is_apart)]
        wanted = [one.id for one in there if one.state == state]
        require_equal(f"tasks {state} of {q.name}", sorted(found), sorted(wanted))
    if ready := books.ready():
        explained = see(lambda tr: queues[0].explain(tr, ready[-1].id))
        _require_reached(explained.reached, books, names)


def _peek(then: TaskQueue, id_: str, tr: Any) -> Task:
    return then.peek(tr, id_)


def _require_groups(found: list[GroupProgress], books: Books) -> None:
    """The groups that are there, with all their counts."""
    require_equal("groups", sorted(one.id for one in found), sorted(books.groups))
    for one in found:
        group = books.groups[one.id]
        buried = sum(of.group is group and of.state == "!" for of in books.members.values())
        counts = (one.total, one.done, one.failed, one.left, one.buried, one.open, one.cancelled, one.ended)
        is_open = group.is_open and not group.cancelled
        wanted = (group.total, group.done, group.failed, group.left, buried, is_open)
        require_equal(f"the group {one.id}", counts, (*wanted, group.cancelled, seconds(group.ended)))


def _require_then(found: Any, group: str, then: Then, books: Books) -> None:
    """The task of `then` waits, or is ready with a ttl from the end of the group on, or is buried, or has
    gone.
    """
    if then.id not in books.thens:
        assert isinstance(found, TaskNotFound), f"the task of the group {group}: {found}"
        return
    assert isinstance(found, Task), f"the task of the group {group}: {found!r}"
    told = (found.state, found.waits_for)
    require_equal("then", told, (TaskState(then.state), group if then.waits else None))
    if then.state == "r":
        require_equal("the ttl of then", found.expires, seconds(then.expires))


def _require_limits(see: See, books: Books, names: tuple[str, str]) -> None:
    slots, starts = (see(partial(Limit.open, name=name)) for name in names)
    used, now = len(books.started()), books.now
    require_equal(
        "slots", (slots.slots, slots.used, slots.free), (books.slots, used, max(0, books.slots - used))
    )
    holders = sorted(holder.task for holder in slots.holders)
    require_equal("holders", holders, sorted(one.id for one in books.started()))
    tokens = (books.tokens.free(now), seconds(books.tokens.next(now)))
    require_equal("tokens", (starts.free, starts.next), tokens)


def _require_reached(found: Any, books: Books, names: tuple[str, str]) -> None:
    free = (max(0, books.slots - len(books.started())), books.tokens.free(books.now))
    wanted = [name for name, few in zip(names, free, strict=True) if not few]
    require_equal("limits that are reached", sorted(one.name for one in found), wanted)
