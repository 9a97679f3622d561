"""The subjects of a soak: a file for each kind of queue."""

from collections.abc import Callable, Mapping

from fdbqueue.database import Database
from fdbqueue.testing.soak.setup import Setup
from fdbqueue.testing.soak.subject import Subject
from fdbqueue.testing.soak.subjects.elements import Elements
from fdbqueue.testing.soak.subjects.fair import Tenants
from fdbqueue.testing.soak.subjects.groups import Groups
from fdbqueue.testing.soak.subjects.items import Items
from fdbqueue.testing.soak.subjects.keyed import FairTasks, Keyed, Partitions
from fdbqueue.testing.soak.subjects.leases import Bags, Leases, Priorities
from fdbqueue.testing.soak.subjects.limited import Rates, Slots
from fdbqueue.testing.soak.subjects.persistent import Persistent
from fdbqueue.testing.soak.subjects.schedules import Schedules

_ALL = (
    Items,
    Leases,
    Priorities,
    Bags,
    Keyed,
    FairTasks,
    Partitions,
    Tenants,
    Elements,
    Persistent,
    Schedules,
    Groups,
    Slots,
    Rates,
)
SUBJECTS: Mapping[str, Callable[[Setup], Subject]] = {subject.name: subject for subject in _ALL}


def opened(db: Database, setup: Setup) -> list[Subject]:
    """The subjects of a soak, with handles on this database."""
    subjects = [SUBJECTS[name](setup) for name in setup.subjects]
    for subject in subjects:
        subject.open(db)
    return subjects
