"""QueueCollector: the queues of a database in a registry of prometheus-client."""

from collections.abc import Iterable
from typing import Any

from prometheus_client.core import Metric

from fdbqueue import limits
from fdbqueue.database import as_database, engine_errors, run
from fdbqueue.errors import FdbQueueError
from fdbqueue.logger import logger
from fdbqueue.metrics.families import families, up
from fdbqueue.overview.figures import Figures
from fdbqueue.overview.overview import Overview
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.seam import AnyDatabase

_log = logger("fdbqueue.metrics")


class QueueCollector:
    """A collector of prometheus-client with the figures of the queues with these names, or of all queues.

    Each scrape is one look at the database, of one round trip, or two after a queue was created. The numbers
    count for all processes, so one process of a deployment collects them. If the database does not answer,
    `fdbqueue_up` is 0, and the other families are missing.
    """

    def __init__(self, db: AnyDatabase, *names: str, keys: int = 10, root: Any = DEFAULT_ROOT) -> None:
        """`keys` is the number of busiest task keys that are told of a queue with task keys.

        Raises: InvalidArgument, WrongType, NotADatabase.
        """
        self._database = as_database(db)
        self._overview = Overview(*names, keys=keys, root=root)

    def describe(self) -> Iterable[Metric]:
        """The families without samples: a registry asks for their names when the collector is registered."""
        return list(families(Figures(0.0, (), 0), 0.0))

    def collect(self) -> Iterable[Metric]:
        """The families, from one snapshot.

        Reads: as Overview.figures, within limits.LOOK_TIMEOUT_S.
        Conflicts: none.
        """
        database = self._database
        began = database.runtime.monotonic()
        try:
            found = run(database, self._overview.figures, timeout_s=limits.LOOK_TIMEOUT_S)
        except failures() as error:
            database.troubles.met(_log, "the queues could not be looked at", error)
            return [up(False)]
        return list(families(found, database.runtime.monotonic() - began))


def failures() -> tuple[type[Exception], ...]:
    """The errors of a database that does not answer, is closed or was replaced."""
    return (FdbQueueError, OSError, *engine_errors())
