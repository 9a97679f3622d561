"""Schedules, groups, limits, and the functions of the package that read a database, awaited."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from fdbqueue.aio.database import Transaction
from fdbqueue.aio.queues import Putting
from fdbqueue.aio.verbs import Face, Maker, awaited, constructor_of, place_of, plain, plain_each
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.fleet import status
from fdbqueue.operate import diagnosis
from fdbqueue.operate.overview import Overview as BlockingOverview
from fdbqueue.operate.verify import verify as verifying
from fdbqueue.tasks import groups, looking, schedules
from fdbqueue.tasks.groups import Group as BlockingGroup
from fdbqueue.tasks.limits.limit import Limit as BlockingLimit
from fdbqueue.tasks.schedules import Schedule as BlockingSchedule

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _, hub = place_of(None, args, kwargs)
        return await hub.call(partial(function, *map(plain, args), **plain_each(kwargs)))

    return call


list_groups = _awaited(groups.list_groups)
list_queues = _awaited(looking.list_queues)
statistics = _awaited(looking.statistics)
list_schedules = _awaited(schedules.list_schedules)
fire_due = _awaited(schedules.fire_due)
workers = _awaited(status.workers)
verify = _awaited(verifying.verify)
diagnose = _awaited(diagnosis.diagnose)


class Limit:
    """`fdbqueue.Limit`, awaited. Its verbs return the values of the blocking face."""

    __slots__ = ()

    set = staticmethod(_awaited(BlockingLimit.set))
    open = staticmethod(_awaited(BlockingLimit.open))
    list = staticmethod(_awaited(BlockingLimit.list))
    open_key = staticmethod(_awaited(BlockingLimit.open_key))
    keys = staticmethod(_awaited(BlockingLimit.keys))
    delete = staticmethod(_awaited(BlockingLimit.delete))


class Overview(Face[BlockingOverview]):
    """`fdbqueue.Overview`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingOverview)
    def __init__(self) -> None: ...

    figures = awaited(BlockingOverview.figures)


class Schedule(Face[BlockingSchedule]):
    """`fdbqueue.Schedule`, awaited."""

    __slots__ = ()

    create = Maker(BlockingSchedule.create)
    open = Maker(BlockingSchedule.open)

    @property
    def name(self) -> str:
        return self._blocking.name

    status = awaited(BlockingSchedule.status)
    next_times = awaited(BlockingSchedule.next_times)
    change = awaited(BlockingSchedule.change)
    pause = awaited(BlockingSchedule.pause)
    resume = awaited(BlockingSchedule.resume)
    run = awaited(BlockingSchedule.run)
    delete = awaited(BlockingSchedule.delete)


class Group(Face[BlockingGroup]):
    """`fdbqueue.Group`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingGroup)
    def __init__(self) -> None: ...

    create = Maker(BlockingGroup.create)
    open = Maker(BlockingGroup.open)

    @property
    def id(self) -> str:
        return self._blocking.id

    put = awaited(BlockingGroup.put)
    put_many = awaited(BlockingGroup.put_many)
    close = awaited(BlockingGroup.close)
    cancel = awaited(BlockingGroup.cancel)
    progress = awaited(BlockingGroup.progress)
    wait = awaited(BlockingGroup.wait)
    wait_for_progress = awaited(BlockingGroup.wait_for_progress)


class Members:
    """The puts of a group in one transaction; `group` makes it."""

    __slots__ = ("_tr", "group")

    def __init__(self, tr: Transaction, group: Group) -> None:
        self.group = group
        self._tr = tr

    @property
    def id(self) -> str:
        """That of the group."""
        return self.group.id

    async def put(self, queue: Putting[Any], data: Any, /, **options: Any) -> Task:
        """As `fdbqueue.Members.put`."""
        return await self.group.put(self._tr, queue, data, **options)  # type: ignore[arg-type]

    async def put_many(self, queue: Putting[Any], data: Iterable[Any], /, **options: Any) -> list[Task]:
        """As `fdbqueue.Members.put_many`."""
        return await self.group.put_many(self._tr, queue, data, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def group(
    tr: Transaction,
    *,
    then: Any = None,
    wait_for_buried: bool = True,
    retain_s: float = limits.GROUP_RETAIN_S,
    root: Any = DEFAULT_ROOT,
) -> AsyncIterator[Members]:
    """As `fdbqueue.group`: `async with group(tr) as g: await g.put(queue, data)`."""
    if not isinstance(tr, Transaction):
        raise InvalidArgument(name="tr", wanted="a transaction; for a database, use Group.create", got=tr)
    made = await Group.create(tr, then=then, wait_for_buried=wait_for_buried, retain_s=retain_s, root=root)
    yield Members(tr, made)
    await made.close(tr)
