"""fdbqueue: a transactional queue layer on FoundationDB, and on one directory of a laptop."""

from fdbqueue.database import Database as Database
from fdbqueue.elements.base import LockToken as LockToken
from fdbqueue.elements.null import NullQueue as NullQueue
from fdbqueue.elements.queue import ElementQueue as ElementQueue
from fdbqueue.elements.queue_set import QueueSet as QueueSet
from fdbqueue.elements.simple import SimpleElementQueue as SimpleElementQueue
from fdbqueue.errors import FdbQueueError as FdbQueueError
from fdbqueue.fair_queue import FairQueue as FairQueue
from fdbqueue.open import open as open
from fdbqueue.persistent.proxy import Proxy as Proxy
from fdbqueue.persistent.queue import PersistentQueue as PersistentQueue
from fdbqueue.queue import Queue as Queue
from fdbqueue.runtime import RealRuntime as RealRuntime
from fdbqueue.runtime import Runtime as Runtime
from fdbqueue.session import Session as Session
from fdbqueue.task import Failure as Failure
from fdbqueue.task import Task as Task
from fdbqueue.task import TaskState as TaskState
from fdbqueue.tasks.key_statistics import KeyStatistics as KeyStatistics
from fdbqueue.tasks.kinds import register_kind as register_kind
from fdbqueue.tasks.queue import TaskQueue as TaskQueue
from fdbqueue.tasks.queue import list_queues as list_queues
from fdbqueue.tasks.queue import statistics as statistics
from fdbqueue.transactional import transactional as transactional
