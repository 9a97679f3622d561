"""fdbqueue: a transactional queue layer on FoundationDB, and on one directory of a laptop."""

from fdbqueue.database import Database as Database
from fdbqueue.errors import FdbQueueError as FdbQueueError
from fdbqueue.open import open as open
from fdbqueue.queue import Queue as Queue
from fdbqueue.runtime import RealRuntime as RealRuntime
from fdbqueue.runtime import Runtime as Runtime
from fdbqueue.transactional import transactional as transactional
