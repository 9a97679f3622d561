"""fdbqueue: a transactional queue layer on FoundationDB, and on one directory of a laptop."""

from fdbqueue import errors
from fdbqueue.aside import SetAside
from fdbqueue.codec import Codec, register_codec
from fdbqueue.database import Database
from fdbqueue.dead.letters import DeadLetters
from fdbqueue.dead.values import DeadLetter, FailureClass, Redrive, RedriveState, RedriveStep
from fdbqueue.diagnosis.check import Check, Diagnosis, Severity
from fdbqueue.diagnosis.examining import diagnose
from fdbqueue.elements.base import LockToken
from fdbqueue.elements.null import NullQueue
from fdbqueue.elements.queue import ElementQueue
from fdbqueue.elements.queue_set import QueueSet
from fdbqueue.elements.simple import SimpleElementQueue
from fdbqueue.errors import *  # noqa: F403  # the names in errors.__all__
from fdbqueue.explanation import Explanation, HeldKey, KeyHolder, Reason, TaskPlace, WaitedFor, Why
from fdbqueue.fair.grants import FairConsumer, FairProducer
from fdbqueue.fair.queue import FairQueue
from fdbqueue.fleet.backoff import Backoff
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.hooks import Event, Hooks
from fdbqueue.fleet.outcomes import Bury, Done, Retry, Snooze, Unavailable
from fdbqueue.fleet.presence import Presence, workers
from fdbqueue.fleet.supervisor import Fleet, FleetStatus
from fdbqueue.fleet.worker import Worker
from fdbqueue.groups.group import Group, Members, group, list_groups
from fdbqueue.groups.progress import GroupProgress
from fdbqueue.holder import Holder, HolderProcess
from fdbqueue.limiting.key_looks import LimitKey
from fdbqueue.log_fields import LogFields
from fdbqueue.open import open as open
from fdbqueue.overview.figures import (
    Figures,
    GroupsFigures,
    KeyFigures,
    LimitFigures,
    QueueFigures,
    ScheduleFigures,
    TaskFigures,
)
from fdbqueue.overview.overview import Overview
from fdbqueue.page import Page
from fdbqueue.parking.limit import Limit
from fdbqueue.partitions.looks import Partition, PartitionState, Repartition
from fdbqueue.persistent.proxy import Proxy
from fdbqueue.persistent.queue import PersistentQueue
from fdbqueue.reached import LimitHolder, ReachedLimit
from fdbqueue.recipe.grants import QueueConsumer, QueueProducer
from fdbqueue.recipe.queue import Queue
from fdbqueue.runtime import RealRuntime, Runtime
from fdbqueue.schedules.schedule import Schedule, fire_due, list_schedules
from fdbqueue.schedules.values import ScheduleStatus
from fdbqueue.seam import AnyDatabase, AnyTransaction, DatabaseOrTransaction, Transaction
from fdbqueue.sessions.session import Session
from fdbqueue.subspace import Subspace
from fdbqueue.task import EndedTask, Failure, Renewed, Task, TaskState
from fdbqueue.tasks.all_queues import list_queues, statistics
from fdbqueue.tasks.grants import TaskConsumer, TaskProducer
from fdbqueue.tasks.key_statistics import KeyStatistics
from fdbqueue.tasks.kinds import register_kind
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.transactional import transactional
from fdbqueue.unreadable import Unreadable
from fdbqueue.verification import Finding, Flaw, Verification
from fdbqueue.verifying.verify import verify
from fdbqueue.version import __version__

# Not `open`: `from fdbqueue import *` would hide the builtin.
__all__ = [
    "AnyDatabase",
    "AnyTransaction",
    "Backoff",
    "Bury",
    "Check",
    "Codec",
    "Database",
    "DatabaseOrTransaction",
    "DeadLetter",
    "DeadLetters",
    "Diagnosis",
    "Done",
    "ElementQueue",
    "EndedTask",
    "Event",
    "Explanation",
    "Failure",
    "FailureClass",
    "FairConsumer",
    "FairProducer",
    "FairQueue",
    "Figures",
    "Finding",
    "Flaw",
    "Fleet",
    "FleetStatus",
    "Group",
    "GroupProgress",
    "GroupsFigures",
    "HeldKey",
    "HeldTask",
    "Holder",
    "HolderProcess",
    "Hooks",
    "KeyFigures",
    "KeyHolder",
    "KeyStatistics",
    "Limit",
    "LimitFigures",
    "LimitHolder",
    "LimitKey",
    "LockToken",
    "LogFields",
    "Members",
    "NullQueue",
    "Overview",
    "Page",
    "Partition",
    "PartitionState",
    "PersistentQueue",
    "Presence",
    "Proxy",
    "Queue",
    "QueueConsumer",
    "QueueFigures",
    "QueueProducer",
    "QueueSet",
    "ReachedLimit",
    "RealRuntime",
    "Reason",
    "Redrive",
    "RedriveState",
    "RedriveStep",
    "Renewed",
    "Repartition",
    "Retry",
    "Runtime",
    "Schedule",
    "ScheduleFigures",
    "ScheduleStatus",
    "Session",
    "SetAside",
    "Severity",
    "SimpleElementQueue",
    "Snooze",
    "Subspace",
    "Task",
    "TaskConsumer",
    "TaskFigures",
    "TaskPlace",
    "TaskProducer",
    "TaskQueue",
    "TaskState",
    "Transaction",
    "Unavailable",
    "Unreadable",
    "Verification",
    "WaitedFor",
    "Why",
    "Worker",
    "__version__",
    "diagnose",
    "fire_due",
    "group",
    "list_groups",
    "list_queues",
    "list_schedules",
    "register_codec",
    "register_kind",
    "statistics",
    "transactional",
    "verify",
    "workers",
]
__all__ += errors.__all__
