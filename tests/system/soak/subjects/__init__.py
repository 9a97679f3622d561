"""The subjects of a soak: a file for each kind of queue."""

from collections.abc import Callable, Mapping

from fdbqueue.core.database import Database
from tests.system.soak.setup import Setup
from tests.system.soak.subject import Subject
from tests.system.soak.subjects.elements import Elements
from tests.system.soak.subjects.fair import Tenants
from tests.system.soak.subjects.groups import Groups
from tests.system.soak.subjects.items import Items
from tests.system.soak.subjects.keyed import FairTasks, Keyed, Partitions
from tests.system.soak.subjects.leases import Bags, Leases, Priorities
from tests.system.soak.subjects.limited import Rates, Slots
from tests.system.soak.subjects.persistent import Persistent
from tests.system.soak.subjects.schedules import Schedules

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
