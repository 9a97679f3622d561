"""fdbqueue: a transactional queue layer on FoundationDB, and on one directory of a laptop.

A name is imported when it is first used: a program loads what it works with.
"""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import lazily

if TYPE_CHECKING:
    from fdbqueue.core import errors as errors
    from fdbqueue.core.codec import Codec, register_codec
    from fdbqueue.core.database import Database
    from fdbqueue.core.errors import *  # noqa: F403  # the names in errors.__all__
    from fdbqueue.core.line.waiting import WaitingCall
    from fdbqueue.core.logger import LogFields
    from fdbqueue.core.open import open as open
    from fdbqueue.core.page import Page
    from fdbqueue.core.partitions import Partition, PartitionState, Repartition
    from fdbqueue.core.rows import Flaw
    from fdbqueue.core.runtime import RealRuntime, Runtime
    from fdbqueue.core.seam import AnyDatabase, AnyTransaction, DatabaseOrTransaction, Subspace, Transaction
    from fdbqueue.core.sessions.session import Session
    from fdbqueue.core.task import (
        EndedTask,
        Explanation,
        Failure,
        HeldKey,
        Holder,
        HolderProcess,
        KeyHolder,
        LimitHolder,
        LongRun,
        ReachedLimit,
        Reason,
        Renewed,
        Task,
        TaskPlace,
        TaskState,
        WaitedFor,
        Why,
    )
    from fdbqueue.core.transactional import transactional
    from fdbqueue.core.unreadable import SetAside, Unreadable
    from fdbqueue.core.version import __version__
    from fdbqueue.fleet.functions import FunctionCall, TaskFunction, Tasks, current_task
    from fdbqueue.fleet.held import HeldTask
    from fdbqueue.fleet.options import Event, Hooks
    from fdbqueue.fleet.outcomes import Backoff, Bury, Done, Handoff, Retry, Snooze, Unavailable
    from fdbqueue.fleet.status import Presence, workers
    from fdbqueue.fleet.supervisor import Fleet, FleetStatus
    from fdbqueue.fleet.worker import Worker
    from fdbqueue.operate.checks import Check, Diagnosis, Severity
    from fdbqueue.operate.diagnosis import diagnose
    from fdbqueue.operate.figures import (
        Figures,
        GroupsFigures,
        KeyFigures,
        LimitFigures,
        QueueFigures,
        ScheduleFigures,
        TaskFigures,
    )
    from fdbqueue.operate.overview import Overview
    from fdbqueue.operate.verify.values import Finding, Verification
    from fdbqueue.operate.verify.verify import verify
    from fdbqueue.queues.elements.base import LockToken
    from fdbqueue.queues.elements.queue import ElementQueue, NullQueue, QueueSet, SimpleElementQueue
    from fdbqueue.queues.fair import FairConsumer, FairProducer, FairQueue, QueueBy
    from fdbqueue.queues.persistent import PersistentQueue, Proxy
    from fdbqueue.queues.recipe.queue import Queue, QueueConsumer, QueueProducer
    from fdbqueue.tasks.altering import Alteration
    from fdbqueue.tasks.dead_letters import DeadLetters
    from fdbqueue.tasks.firing import ScheduleStatus
    from fdbqueue.tasks.groups import Group, GroupProgress, Members, group, list_groups
    from fdbqueue.tasks.limits.limit import Limit
    from fdbqueue.tasks.limits.shown import LimitKey
    from fdbqueue.tasks.looking import KeyStatistics, list_queues, statistics
    from fdbqueue.tasks.options import register_kind
    from fdbqueue.tasks.queue import TaskConsumer, TaskProducer, TaskQueue
    from fdbqueue.tasks.redrive import DeadLetter, FailureClass, Redrive, RedriveState, RedriveStep
    from fdbqueue.tasks.schedules import Schedule, fire_due, list_schedules
    from fdbqueue.tasks.searching import FoundTasks
    from fdbqueue.tasks.selected import ChangedTasks
    from fdbqueue.tasks.times import Durations, Times

    # Not `open`: `from fdbqueue import *` would hide the builtin.
    __all__ = [
        "Alteration",
        "AnyDatabase",
        "AnyTransaction",
        "Backoff",
        "Bury",
        "ChangedTasks",
        "Check",
        "Codec",
        "Database",
        "DatabaseOrTransaction",
        "DeadLetter",
        "DeadLetters",
        "Diagnosis",
        "Done",
        "Durations",
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
        "FoundTasks",
        "FunctionCall",
        "Group",
        "GroupProgress",
        "GroupsFigures",
        "Handoff",
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
        "LongRun",
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
        "QueueBy",
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
        "TaskFunction",
        "TaskPlace",
        "TaskProducer",
        "TaskQueue",
        "TaskState",
        "Tasks",
        "Times",
        "Transaction",
        "Unavailable",
        "Unreadable",
        "Verification",
        "WaitedFor",
        "WaitingCall",
        "Why",
        "Worker",
        "__version__",
        "current_task",
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

_HOMES = {
    "core.codec": "Codec register_codec",
    "core.database": "Database",
    "core.line.waiting": "WaitingCall",
    "core.logger": "LogFields",
    "core.open": "open",
    "core.page": "Page",
    "core.partitions": "Partition PartitionState Repartition",
    "core.rows": "Flaw",
    "core.runtime": "RealRuntime Runtime",
    "core.seam": "AnyDatabase AnyTransaction DatabaseOrTransaction Subspace Transaction",
    "core.sessions.session": "Session",
    "core.task": "EndedTask Explanation Failure HeldKey Holder HolderProcess KeyHolder LimitHolder LongRun "
    "ReachedLimit Reason Renewed Task TaskPlace TaskState WaitedFor Why",
    "core.transactional": "transactional",
    "core.unreadable": "SetAside Unreadable",
    "core.version": "__version__",
    "fleet.functions": "FunctionCall TaskFunction Tasks current_task",
    "fleet.held": "HeldTask",
    "fleet.options": "Event Hooks",
    "fleet.outcomes": "Backoff Bury Done Handoff Retry Snooze Unavailable",
    "fleet.status": "Presence workers",
    "fleet.supervisor": "Fleet FleetStatus",
    "fleet.worker": "Worker",
    "operate.checks": "Check Diagnosis Severity",
    "operate.diagnosis": "diagnose",
    "tasks.times": "Durations Times",
    "operate.figures": "Figures GroupsFigures KeyFigures LimitFigures QueueFigures ScheduleFigures "
    "TaskFigures",
    "operate.overview": "Overview",
    "operate.verify.values": "Finding Verification",
    "operate.verify.verify": "verify",
    "queues.elements.base": "LockToken",
    "queues.elements.queue": "ElementQueue NullQueue QueueSet SimpleElementQueue",
    "queues.fair": "FairConsumer FairProducer FairQueue QueueBy",
    "queues.persistent": "PersistentQueue Proxy",
    "queues.recipe.queue": "Queue QueueConsumer QueueProducer",
    "tasks.altering": "Alteration",
    "tasks.dead_letters": "DeadLetters",
    "tasks.redrive": "DeadLetter FailureClass Redrive RedriveState RedriveStep",
    "tasks.groups": "Group GroupProgress Members group list_groups",
    "tasks.looking": "KeyStatistics list_queues statistics",
    "tasks.options": "register_kind",
    "tasks.limits.shown": "LimitKey",
    "tasks.limits.limit": "Limit",
    "tasks.queue": "TaskConsumer TaskProducer TaskQueue",
    "tasks.schedules": "Schedule fire_due list_schedules",
    "tasks.searching": "FoundTasks",
    "tasks.selected": "ChangedTasks",
    "tasks.firing": "ScheduleStatus",
}
if not TYPE_CHECKING:  # a checker would let any name pass
    __getattr__, __dir__ = lazily(__name__, _HOMES, all_of="core.errors")
