"""Feature: an option of tasks or of queues, as hooks at the edges of the life cycle and in sweeps.

A feature is one file, which two tables here name. The life cycle (change.py, edges.py) knows no feature: it
calls hooks, and a task without any feature meets none of them. A hook changes nothing by default.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from fdbqueue.core.partitions.keys import SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.records.keys import Record, TaskKeys

if TYPE_CHECKING:
    from fdbqueue.tasks.limiting.state import Gate

OF_TASKS = {
    "result_ttl_us": "fdbqueue.tasks.results:Results",
    "unique": "fdbqueue.tasks.unique:UniqueKeys",
    "groups": "fdbqueue.tasks.members:Members",
    "steps": "fdbqueue.tasks.steps:Steps",
}
"""The features of tasks, by the field of `Extra` that a task with it has. Their hooks run in this order, and
before those of queues. Results come first: one that cannot be stored raises before anything is written.
"""
SWEPT = ("result_ttl_us", "unique")
"""Those with keys that come due: a process that sweeps a queue imports no other one."""
OF_QUEUES = {
    "limits": (("limits", "task_limits"), "fdbqueue.tasks.limited:Limited"),
    "retention": (("retain_s",), "fdbqueue.tasks.retaining:Retention"),
}
"""The features of queues. A queue has a feature if it was created with one of the options named here."""

ASKED = {
    "limits": "fdbqueue.tasks.limited:asked",
    "headers": "fdbqueue.tasks.records.extra:asked_headers",
    "result_ttl": "fdbqueue.tasks.results:asked",
    "group": "fdbqueue.tasks.members:asked",
}
"""By option of a put: the function that checks it, and makes fields of `Extra`."""

Encode = Callable[[], bytes]
"""Encodes the result of a task, if it was asked for. Raises PayloadUnsupported, PayloadTooLarge."""


class Site(NamedTuple):
    """One partition of a queue in a transaction."""

    tr: Transaction
    now_us: int
    root: RootKeys
    shared: SharedKeys
    """The keys that all partitions share."""
    keys: TaskKeys
    queue_id: int
    queue: str


class End(NamedTuple):
    """How tasks end."""

    outcome: str
    result: Encode | None = None
    """That of an ack; None for the result None."""


ACKED = "acked"
REMOVED = End("")
"""The end of tasks that a truncate removes: they have no outcome."""


class Feature:
    rows: ClassVar[type[Any] | None] = None
    """Its FeatureRows (rows.py); None for a feature without keys."""
    in_each_part = False
    """True if it has keys in each partition that come due; otherwise they are among those that all share."""

    def entered(self, site: Site, records: Sequence[Record], arrived: bool) -> None:
        """Tasks have been put. `arrived`: they come from another queue."""

    def withheld(self, site: Site, records: Sequence[Record]) -> Sequence[Record]:  # noqa: ARG002
        """The tasks that are cancelled in place of a take."""
        return ()

    def started(self, site: Site, records: Sequence[Record], gate: "Gate | None") -> Sequence[Record]:  # noqa: ARG002
        """One lease takes tasks. Return them as they are to be stored. `gate`: as in edges.take."""
        return records

    def moved(self, site: Site, olds: Sequence[Record], news: Sequence[Record]) -> Sequence[Record]:  # noqa: ARG002
        """Tasks change, most of them their state. Return `news` as they are to be stored."""
        return news

    def overwritten(self, site: Site, record: Record) -> None:
        """A later put replaces the work of a task that waits."""

    def carried(self, site: Site, record: Record) -> Callable[[TaskKeys], None]:  # noqa: ARG002
        """Ask for the keys of a task that joins another partition. The reply moves them there."""
        return lambda _: None

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:
        """Tasks end."""

    def cleared(self, site: Site) -> None:
        """A truncate removes all tasks. Of the keys of a partition, it clears those of `contents` itself."""

    def ask_due(self, site: Site) -> Callable[[], int | None]:  # noqa: ARG002
        """Ask, by snapshot, for the time at which `sweep` has something to do, in microseconds."""
        return lambda: None

    def sweep(self, site: Site) -> bool:  # noqa: ARG002
        """Remove one batch of keys that are over. True if there were any."""
        return False


def all_features() -> list[type[Feature]]:
    names = (*OF_TASKS.values(), *(made for _, made in OF_QUEUES.values()))
    return [resolve_name(name) for name in names]


@cache
def feature_of_tasks(field: str) -> Feature:
    found: Feature = resolve_name(OF_TASKS[field])()
    return found


@cache
def asking(option: str) -> Callable[[Any, Any], dict[str, Any]]:
    """The function of ASKED for an option."""
    found: Callable[[Any, Any], dict[str, Any]] = resolve_name(ASKED[option])
    return found


def features_of_queue(settings: Any, root: bytes, queue: int) -> dict[str, Any]:
    """The features that the queue was created with, by their names."""
    return {
        name: resolve_name(made)(settings, root, queue)
        for name, (options, made) in OF_QUEUES.items()
        if any(settings.of_feature(option) for option in options)
    }


def met_by(records: Iterable[Record], of_queue: Sequence[Feature]) -> Sequence[Feature]:
    """The features of these tasks, and behind them those of their queue."""
    found = set[str]()
    for record in records:
        if record.extra is not None:
            for field in OF_TASKS:
                if getattr(record.extra, field):
                    found.add(field)
    if not found:
        return of_queue
    return [*map(feature_of_tasks, filter(found.__contains__, OF_TASKS)), *of_queue]


def overriding(features: Iterable[Feature], hook: str) -> tuple[Feature, ...]:
    """The features with a hook of that name of their own."""
    return tuple(one for one in features if getattr(type(one), hook) is not getattr(Feature, hook))
