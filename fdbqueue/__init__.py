"""fdbqueue: a transactional queue layer on FoundationDB, and on one directory of a laptop."""

from fdbqueue import errors
from fdbqueue.aside import SetAside as SetAside
from fdbqueue.codec import Codec as Codec
from fdbqueue.codec import register_codec as register_codec
from fdbqueue.database import Database as Database
from fdbqueue.elements.base import LockToken as LockToken
from fdbqueue.elements.null import NullQueue as NullQueue
from fdbqueue.elements.queue import ElementQueue as ElementQueue
from fdbqueue.elements.queue_set import QueueSet as QueueSet
from fdbqueue.elements.simple import SimpleElementQueue as SimpleElementQueue
from fdbqueue.errors import *  # noqa: F403  # the names in errors.__all__
from fdbqueue.fair.queue import FairQueue as FairQueue
from fdbqueue.fleet.backoff import Backoff as Backoff
from fdbqueue.fleet.held import HeldTask as HeldTask
from fdbqueue.fleet.hooks import Event as Event
from fdbqueue.fleet.hooks import Hooks as Hooks
from fdbqueue.fleet.outcomes import Bury as Bury
from fdbqueue.fleet.outcomes import Done as Done
from fdbqueue.fleet.outcomes import Retry as Retry
from fdbqueue.fleet.outcomes import Snooze as Snooze
from fdbqueue.fleet.outcomes import Unavailable as Unavailable
from fdbqueue.fleet.presence import Presence as Presence
from fdbqueue.fleet.presence import workers as workers
from fdbqueue.fleet.supervisor import Fleet as Fleet
from fdbqueue.fleet.supervisor import FleetStatus as FleetStatus
from fdbqueue.fleet.worker import Worker as Worker
from fdbqueue.open import open as open
from fdbqueue.page import Page as Page
from fdbqueue.persistent.proxy import Proxy as Proxy
from fdbqueue.persistent.queue import PersistentQueue as PersistentQueue
from fdbqueue.recipe.queue import Queue as Queue
from fdbqueue.runtime import RealRuntime as RealRuntime
from fdbqueue.runtime import Runtime as Runtime
from fdbqueue.seam import AnyDatabase as AnyDatabase
from fdbqueue.seam import AnyTransaction as AnyTransaction
from fdbqueue.seam import DatabaseOrTransaction as DatabaseOrTransaction
from fdbqueue.seam import Transaction as Transaction
from fdbqueue.sessions.session import Session as Session
from fdbqueue.subspace import Subspace as Subspace
from fdbqueue.task import Failure as Failure
from fdbqueue.task import Task as Task
from fdbqueue.task import TaskState as TaskState
from fdbqueue.tasks.all_queues import list_queues as list_queues
from fdbqueue.tasks.all_queues import statistics as statistics
from fdbqueue.tasks.key_statistics import KeyStatistics as KeyStatistics
from fdbqueue.tasks.kinds import register_kind as register_kind
from fdbqueue.tasks.queue import TaskQueue as TaskQueue
from fdbqueue.transactional import transactional as transactional
from fdbqueue.unreadable import Unreadable as Unreadable
from fdbqueue.version import __version__ as __version__

# Not `open`: `from fdbqueue import *` would hide the builtin.
__all__ = [
    "AnyDatabase",
    "AnyTransaction",
    "Backoff",
    "Bury",
    "Codec",
    "Database",
    "DatabaseOrTransaction",
    "Done",
    "ElementQueue",
    "Event",
    "Failure",
    "FairQueue",
    "Fleet",
    "FleetStatus",
    "HeldTask",
    "Hooks",
    "KeyStatistics",
    "LockToken",
    "NullQueue",
    "Page",
    "PersistentQueue",
    "Presence",
    "Proxy",
    "Queue",
    "QueueSet",
    "RealRuntime",
    "Retry",
    "Runtime",
    "Session",
    "SetAside",
    "SimpleElementQueue",
    "Snooze",
    "Subspace",
    "Task",
    "TaskQueue",
    "TaskState",
    "Transaction",
    "Unavailable",
    "Unreadable",
    "Worker",
    "__version__",
    "list_queues",
    "register_codec",
    "register_kind",
    "statistics",
    "transactional",
    "workers",
]
__all__ += errors.__all__
