"""The functions of the package that read a database, awaited."""

from collections.abc import Callable, Coroutine
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

from fdbqueue.aio.verbs import Face, awaited, constructor_of, place_of, plain, plain_each
from fdbqueue.fleet import presence
from fdbqueue.operate.diagnosis import examining
from fdbqueue.operate.overview.overview import Overview as BlockingOverview
from fdbqueue.operate.verify import verify as verifying
from fdbqueue.tasks import all_queues
from fdbqueue.tasks.groups import group as groups
from fdbqueue.tasks.parking.limit import Limit as BlockingLimit
from fdbqueue.tasks.schedules import schedule

P = ParamSpec("P")
R = TypeVar("R")


def _awaited(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> R:
        _, hub = place_of(None, args, kwargs)
        return await hub.call(partial(function, *map(plain, args), **plain_each(kwargs)))

    return call


list_groups = _awaited(groups.list_groups)
list_queues = _awaited(all_queues.list_queues)
statistics = _awaited(all_queues.statistics)
list_schedules = _awaited(schedule.list_schedules)
fire_due = _awaited(schedule.fire_due)
workers = _awaited(presence.workers)
verify = _awaited(verifying.verify)
diagnose = _awaited(examining.diagnose)


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
