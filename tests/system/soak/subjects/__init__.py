"""The subjects of a soak: a file for each kind of queue."""

from collections.abc import Callable, Mapping

from fdbqueue.core.database import Database
from tests.system.soak.client import Setup, Subject
from tests.system.soak.subjects.items import Elements, Items, Persistent, Tenants
from tests.system.soak.subjects.outcomes import Batched, Handed
from tests.system.soak.subjects.tasks import (
    Altered,
    Bags,
    FairTasks,
    Groups,
    Keyed,
    Leases,
    Partitions,
    Priorities,
    Rates,
    Schedules,
    Slots,
)

_ALL = (
    Items,
    Leases,
    Priorities,
    Bags,
    Keyed,
    FairTasks,
    Partitions,
    Altered,
    Batched,
    Handed,
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
