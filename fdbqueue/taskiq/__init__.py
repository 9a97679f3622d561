"""A broker, a result backend and a schedule source for Taskiq (docs/taskiq.md).

Needs the extra `taskiq`: `pip install fdbqueue[taskiq]`.
"""

from fdbqueue import extras

with extras.needs("taskiq", "taskiq", "greenlet"):
    from fdbqueue.taskiq.broker import FdbQueueBroker as FdbQueueBroker
    from fdbqueue.taskiq.results import FdbQueueResults as FdbQueueResults
    from fdbqueue.taskiq.schedules import FdbQueueScheduleSource as FdbQueueScheduleSource
