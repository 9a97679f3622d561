"""The classes of dirq, by its names, over a database: a program of dirq changes its imports only."""

from fdbqueue.integrations.dirq.queue import Queue as Queue
from fdbqueue.integrations.dirq.queue import QueueError as QueueError
from fdbqueue.integrations.dirq.queue import QueueLockError as QueueLockError
from fdbqueue.integrations.dirq.queue import QueueNull as QueueNull
from fdbqueue.integrations.dirq.queue import QueueSet as QueueSet
from fdbqueue.integrations.dirq.queue import QueueSimple as QueueSimple
