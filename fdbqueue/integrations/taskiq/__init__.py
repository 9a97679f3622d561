"""A broker, a result backend and a schedule source for Taskiq (docs/taskiq.md).

Needs the extra `taskiq`: `pip install fdbqueue[taskiq]`.
"""

from fdbqueue.core import lazy

with lazy.needs("taskiq", "taskiq", "greenlet"):
    from fdbqueue.integrations.taskiq.broker import FdbQueueBroker as FdbQueueBroker
    from fdbqueue.integrations.taskiq.broker import FdbQueueScheduleSource as FdbQueueScheduleSource
    from fdbqueue.integrations.taskiq.results import FdbQueueResults as FdbQueueResults
