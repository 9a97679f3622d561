"""Feature: an option of tasks or of queues, as hooks at the edges of the life cycle and in sweeps, and as a
stage of puts.

A feature is one file, which tables here name. The life cycle (change.py, edges.py) and the put (calls.py)
know no feature: a task without any feature meets no hook and no stage. A hook changes nothing by default.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from operator import attrgetter
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec import Struct

from fdbqueue.core.partitions import SharedKeys
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.stored.records import Extra, Record, TaskKeys

if TYPE_CHECKING:
    from fdbqueue.tasks.limits.state import Gate

OF_TASKS = {
    "result_ttl_us": "fdbqueue.tasks.results:Results",
    "unique": "fdbqueue.tasks.unique:UniqueKeys",
    "groups": "fdbqueue.tasks.group_members:Members",
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
    "chronicle": (("chronicle",), "fdbqueue.tasks.chronicle:Chronicle"),
    "charge": (("charge",), "fdbqueue.tasks.charging:Charging"),
}
"""The features of queues. A queue has a feature if it was created with one of the options named here."""

ASKED = {
    "limits": "fdbqueue.tasks.limited:asked",
    "headers": "fdbqueue.tasks.stored.records:asked_headers",
    "result_ttl": "fdbqueue.tasks.results:asked",
    "group": "fdbqueue.tasks.group_members:asked",
    "waits": "fdbqueue.tasks.group_members:asked_to_wait",
    "unique": "fdbqueue.tasks.unique:asked",
    "attempts": "fdbqueue.tasks.attempts:asked",
    "backoff": "fdbqueue.tasks.attempts:asked",
}
"""By option of a put: the function that checks it, and makes fields of `Extra` and perhaps the `wish` of the
draft, given all options, the kind and the settings of the queue.
"""

STAGES = {
    "groups": "fdbqueue.tasks.group_members:Joining",
    "waits": "fdbqueue.tasks.group_members:Joining",
    "unique": "fdbqueue.tasks.unique:UniquePuts",
}
"""The stages of a put, by the field of `Extra` that a draft for them has, in their order."""


SOUGHT = {
    "unique": "fdbqueue.tasks.unique:ByUnique",
    "group": "fdbqueue.tasks.group_members:ByGroup",
}
"""The filters of tasks by a feature, by their names, those that fewer tasks match first."""


class NoRoom(Struct, frozen=True):
    """The answer of a put that does not fit: the size of the queue."""

    size: int
    more_due: bool
    """True if more tasks may have expired than one transaction sweeps: the next attempt may find room."""
    buried: int = 0


Answers = list[Any] | NoRoom
"""Of a put, an answer for each draft, in order: its task, the error of its caller, or None if the put is
postponed to a later transaction. NoRoom for a full queue.
"""
Go = Callable[[Sequence[Any]], Callable[[], Answers]]
"""Asks for the reads of the stages behind, given drafts. The reply is their answers."""

Encode = Callable[[], bytes]
"""Encodes the result of a task, if it was asked for. Raises PayloadUnsupported, PayloadTooLarge."""


_extra = attrgetter("extra")


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
    parts: int
    """Partitions from this number on hold nothing."""


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

    def left(self, site: Site, records: Sequence[Record]) -> Sequence[Record]:  # noqa: ARG002
        """Tasks go to another queue. Return them as they are deleted here."""
        return records

    def fitted(self, extra: Extra, settings: Any) -> Extra:  # noqa: ARG002
        """The extra parts that a task takes along to a queue with these settings."""
        return extra

    def cleared(self, site: Site) -> None:
        """A truncate removes all tasks. Of the keys of a partition, it clears those of `contents` itself."""

    def ask_due(self, site: Site) -> Callable[[], int | None]:  # noqa: ARG002
        """Ask, by snapshot, for the time at which `sweep` has something to do, in microseconds."""
        return lambda: None

    def sweep(self, site: Site) -> bool:  # noqa: ARG002
        """Remove one batch of keys that are over. True if there were any."""
        return False


class Stage:
    """The part of a feature in a put. It is one object for all queues."""

    goes_alone = False
    """True if a caller shares no transaction with others: its put may be refused, and theirs not."""

    def size_bytes(self, drafts: Sequence[Any]) -> int:  # noqa: ARG002
        """The bytes that these drafts write beside their payloads, task keys and records."""
        return 0

    def put(self, put: Any, go: Go, drafts: Sequence[Any]) -> Answers:  # noqa: ARG002
        """Put drafts in the transaction of `put`, which is a puts.Put."""
        return go(drafts)()


class Filter(ABC):
    """A filter of tasks by a feature, with an index in the order of their ids."""

    @abstractmethod
    def __init__(self, value: Any) -> None:
        """Raises: InvalidArgument."""

    @abstractmethod
    def ids(self, change: Any, after: bytes, most: int) -> list[bytes]:
        """The first ids in the index behind the id `after`. Reads: by snapshot."""

    @abstractmethod
    def matches(self, record: Record, state: str, now_us: int) -> bool:
        """`state`: that of the task now."""


def filters_among(where: Mapping[str, Any]) -> list[Filter]:
    """Raises: InvalidArgument."""
    return [resolve_name(made)(where[name]) for name, made in SOUGHT.items() if name in where]


def all_features() -> list[type[Feature]]:
    names = (*OF_TASKS.values(), *(made for _, made in OF_QUEUES.values()))
    return [resolve_name(name) for name in names]


@cache
def feature_of_tasks(field: str) -> Feature:
    found: Feature = resolve_name(OF_TASKS[field])()
    return found


@cache
def asking(option: str) -> Callable[[Mapping[str, Any], Any, Any], dict[str, Any]]:
    """The function of ASKED for an option."""
    found: Callable[[Mapping[str, Any], Any, Any], dict[str, Any]] = resolve_name(ASKED[option])
    return found


def stages_of(drafts: Iterable[Any]) -> tuple[Stage, ...]:
    extras, found = [*filter(None, map(_extra, drafts))], dict[str, None]()
    for field, name in STAGES.items():
        if any(map(attrgetter(field), extras)):
            found[name] = None
    return tuple(map(_stage, found))


@cache
def _stage(name: str) -> Stage:
    found: Stage = resolve_name(name)()
    return found


def features_of_queue(settings: Any, root: bytes, queue: int) -> dict[str, Any]:
    """The features that the queue was created with, by their names."""
    return {
        name: resolve_name(made)(settings, root, queue)
        for name, (options, made) in OF_QUEUES.items()
        if any(settings.of_feature(option) for option in options)
    }


def features_taken_back(
    settings: Any, root: bytes, queue: int, alterable: Collection[str]
) -> Iterator[Feature]:
    """The features that the queue may have had, by options that may change. Their keys may be there."""
    for options, made in OF_QUEUES.values():
        if set(options) <= set(alterable) and not any(settings.of_feature(option) for option in options):
            yield resolve_name(made)(settings, root, queue)


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
