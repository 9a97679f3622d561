"""Task queues with leases: one life cycle, over any discipline. The page is docs/tasks.md.

The files named here are for few queues and few calls: their first use imports them.
"""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks import acks as acks
    from fdbqueue.tasks import altering as altering
    from fdbqueue.tasks import attempts as attempts
    from fdbqueue.tasks import capacity as capacity
    from fdbqueue.tasks import creating as creating
    from fdbqueue.tasks import detached as detached
    from fdbqueue.tasks import explaining as explaining
    from fdbqueue.tasks import failures as failures
    from fdbqueue.tasks import filling as filling
    from fdbqueue.tasks import handing as handing
    from fdbqueue.tasks import limited as limited
    from fdbqueue.tasks import limits as limits
    from fdbqueue.tasks import looking as looking
    from fdbqueue.tasks import parted as parted
    from fdbqueue.tasks import queue as queue
    from fdbqueue.tasks import repartition as repartition
    from fdbqueue.tasks import results as results
    from fdbqueue.tasks import retaining as retaining
    from fdbqueue.tasks import rows as rows
    from fdbqueue.tasks import searching as searching
    from fdbqueue.tasks import selected as selected
    from fdbqueue.tasks import steps as steps
    from fdbqueue.tasks import stored as stored
    from fdbqueue.tasks import verbs as verbs
else:
    __getattr__ = files_of(__name__)
