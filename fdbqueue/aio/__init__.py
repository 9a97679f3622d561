"""fdbqueue for asyncio: the classes and functions of fdbqueue, awaited (docs/asyncio.md).

Needs the extra `aio`: `pip install 'fdbqueue[aio]'`.
"""

from fdbqueue.core import lazy

with lazy.needs("aio", "greenlet"):
    from fdbqueue.aio.database import Database as Database
    from fdbqueue.aio.database import Transaction as Transaction
    from fdbqueue.aio.database import open as open
    from fdbqueue.aio.elements import ElementQueue as ElementQueue
    from fdbqueue.aio.elements import NullQueue as NullQueue
    from fdbqueue.aio.elements import PersistentQueue as PersistentQueue
    from fdbqueue.aio.elements import Proxy as Proxy
    from fdbqueue.aio.elements import QueueSet as QueueSet
    from fdbqueue.aio.elements import SimpleElementQueue as SimpleElementQueue
    from fdbqueue.aio.engines import Future as Future
    from fdbqueue.aio.functions import Group as Group
    from fdbqueue.aio.functions import Limit as Limit
    from fdbqueue.aio.functions import Members as Members
    from fdbqueue.aio.functions import Overview as Overview
    from fdbqueue.aio.functions import Schedule as Schedule
    from fdbqueue.aio.functions import diagnose as diagnose
    from fdbqueue.aio.functions import fire_due as fire_due
    from fdbqueue.aio.functions import group as group
    from fdbqueue.aio.functions import list_groups as list_groups
    from fdbqueue.aio.functions import list_queues as list_queues
    from fdbqueue.aio.functions import list_schedules as list_schedules
    from fdbqueue.aio.functions import statistics as statistics
    from fdbqueue.aio.functions import verify as verify
    from fdbqueue.aio.functions import workers as workers
    from fdbqueue.aio.queues import Consumption as Consumption
    from fdbqueue.aio.queues import DeadLetters as DeadLetters
    from fdbqueue.aio.queues import FairConsumer as FairConsumer
    from fdbqueue.aio.queues import FairProducer as FairProducer
    from fdbqueue.aio.queues import FairQueue as FairQueue
    from fdbqueue.aio.queues import Queue as Queue
    from fdbqueue.aio.queues import QueueConsumer as QueueConsumer
    from fdbqueue.aio.queues import QueueProducer as QueueProducer
    from fdbqueue.aio.queues import TaskConsumer as TaskConsumer
    from fdbqueue.aio.queues import TaskProducer as TaskProducer
    from fdbqueue.aio.queues import TaskQueue as TaskQueue
    from fdbqueue.aio.transactional import transactional as transactional
    from fdbqueue.aio.verbs import Session as Session
    from fdbqueue.aio.worker import Fleet as Fleet
    from fdbqueue.aio.worker import HeldTask as HeldTask
    from fdbqueue.aio.worker import Worker as Worker
    from fdbqueue.aio.worker import current_task as current_task
