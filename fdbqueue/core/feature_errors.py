"""The public errors of single features; errors.py has them, too, and the rules for all."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fdbqueue.core.error_root import REFUSED, FdbQueueError, public_errors

# Element queues, imports and exports.


class QueueError(FdbQueueError):
    """The element queue refused the call."""


class InvalidSchema(QueueError, ValueError):
    """invalid schema: {reason}"""


class UnknownSchema(QueueError):
    """unknown schema: open the element queue with a schema to add and to get."""


class InvalidElement(QueueError, ValueError):
    """{reason}"""


class InvalidElementName(QueueError, ValueError):
    """invalid element name: {name}"""


class NoNameAtThatTime(QueueError):
    """The clock says {seconds:.0f} s since 1970: names of elements exist from 1970 to 2106 only. Set the clock, then add again. Nothing was added."""


class UnreadableElement(QueueError, ValueError):
    """{reason}: element {name} was added with another schema. It stays where it is."""


class DamagedElement(UnreadableElement):
    """The element {name} of the queue {queue!r} is damaged ({reason}): it is set aside when it is got or dequeued, and `fdbqueue aside` lists it."""


class QueueLockError(QueueError):
    """couldn't lock element: {name}: {reason}"""

    reason: str


class CannotLock(QueueError, OSError):
    """cannot lock {name}: {reason}"""


class ElementNotLocked(QueueError, FileNotFoundError):
    """cannot {action} {name}: not locked{reason}"""


class LockLost(ElementNotLocked):
    """cannot {action} {name}: this lock was broken, and the element has another lock now. Nothing was changed."""


class ElementNotFound(QueueError, FileNotFoundError):
    """cannot {action} {name}: there is no such element"""


class QueueInSet(QueueError):
    """queue already in the set: {path}"""


class NotADirectoryQueue(FdbQueueError, ValueError):
    """{path} is no directory queue: it has neither a directory "temporary" nor directories of eight hexadecimal digits."""


class DirectoryQueueInUse(FdbQueueError):
    """Another process imports or exports {path}: wait until it has ended."""


class OriginUnusable(FdbQueueError, ValueError):
    """{path} cannot be imported: {reason}"""


class OriginChanged(FdbQueueError):
    """{label} was imported into this queue before, but its last imported item is not there any more: it is another queue of the same name, or was changed. Nothing was changed. --source NAME imports all of it under another name."""


class ImportOvertaken(FdbQueueError):
    """Another process imports {label} into the same queue: wait until it has ended."""


class ExportUnusable(FdbQueueError, ValueError):
    """{path} cannot be used as an export: {reason}"""


class ExportInUse(FdbQueueError, exit_code=REFUSED):
    """Another process writes the export {path}: wait until it has ended."""


class ExportRefused(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} is not exported: {reason}"""


class ImportUnfinished(FdbQueueError):
    """The queue {name!r} is not whole yet: run `fdbqueue import file` with its export again, or drop the queue."""


# Schedules.


class ScheduleNotFound(FdbQueueError, LookupError):
    """There is no schedule named {name!r}."""

    name: str


class ScheduleExists(FdbQueueError, exit_code=REFUSED):
    """A schedule named {name!r} exists already: change it, delete it, or create with if_exists="keep" or if_exists="change"."""


class ScheduleUnfit(FdbQueueError, ValueError, exit_code=REFUSED):
    """The schedule {name!r} does not fit the queue {queue!r}: {reason}. Change the schedule."""


class ScheduleUnreadable(FdbQueueError, ValueError):
    """The schedule {name!r} cannot be read ({reason}): a newer release wrote it, or it is damaged. Delete and create it again, or use that release."""


# Stored data.


class PayloadUnreadable(FdbQueueError, ValueError):
    """Codec {codec!r} cannot read a stored payload ({reason}): the payload is damaged, or was put with another codec."""


class RecordUnreadable(FdbQueueError, ValueError):
    """The value of {key} in the queue {name!r} cannot be read ({reason}). Takes and sweeps set it aside: `fdbqueue aside` lists, exports and removes it."""


class DefinitionUnreadable(FdbQueueError, ValueError):
    """The definition of the queue {name!r} cannot be read ({reason}): a newer release wrote it, or it is damaged. Nothing was changed."""


class LimitUnreadable(FdbQueueError, ValueError):
    """The limit {name!r} cannot be read ({reason}), and limits nothing: set it anew, with Limit.set() or `fdbqueue limit set`."""

    name: str


class LayoutNewer(DefinitionUnreadable):
    """The queue {name!r} has key layout {layout}, and this release of fdbqueue knows layouts up to {known}: use a newer release. Nothing was changed."""

    name: str
    layout: int


class QueueExists(FdbQueueError, exit_code=REFUSED):
    """A queue named {name!r} exists already, {compared}.{cure}"""

    name: str
    kind: str
    options: Mapping[str, Any]
    differing: Mapping[str, tuple[Any, Any]]
    cure: str


# Frameworks that use fdbqueue.


class UnknownBrokerUrl(FdbQueueError, ValueError):
    """{url!r} names no database: use "fdbqueue+embedded:///PATH", also with "?durability=soon" or "?durability=process", "fdbqueue+fdb:///CLUSTER_FILE", or "fdbqueue+fdb://" for the default cluster file."""


class ClusterForked(FdbQueueError, RuntimeError):
    """This process was forked from one that had opened a cluster, and FoundationDB's client library does not survive a fork ({url}): open the cluster after the fork, or start the process afresh, as a worker of Celery does with worker_pool_start_method = "spawn"."""

    heals = False


class PoolRefused(FdbQueueError, RuntimeError):
    """The {pool} pool of Celery cannot be used with fdbqueue, as leases are renewed in threads: use the pools prefork, threads or solo."""


if not TYPE_CHECKING:  # as in errors.py
    __all__ = public_errors(globals())
