"""Task queues with leases: one life cycle, over any discipline. The page is docs/tasks.md.

The files named here are for few queues and few calls: their first use imports them.
"""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks import disciplines as disciplines
    from fdbqueue.tasks import dropping as dropping
    from fdbqueue.tasks import excusing as excusing
    from fdbqueue.tasks import explaining as explaining
    from fdbqueue.tasks import failures as failures
    from fdbqueue.tasks import in_all as in_all
    from fdbqueue.tasks import key_statistics as key_statistics
    from fdbqueue.tasks import limited as limited
    from fdbqueue.tasks import limiting as limiting
    from fdbqueue.tasks import listing as listing
    from fdbqueue.tasks import looking as looking
    from fdbqueue.tasks import parking as parking
    from fdbqueue.tasks import parted as parted
    from fdbqueue.tasks import progress as progress
    from fdbqueue.tasks import queue as queue
    from fdbqueue.tasks import records as records
    from fdbqueue.tasks import repartition as repartition
    from fdbqueue.tasks import results as results
    from fdbqueue.tasks import retaining as retaining
    from fdbqueue.tasks import room as room
    from fdbqueue.tasks import schedules as schedules
    from fdbqueue.tasks import steps as steps
    from fdbqueue.tasks import uncollected as uncollected
else:
    __getattr__ = files_of(__name__)
