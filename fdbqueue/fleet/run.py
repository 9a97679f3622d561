"""Run: reads the exact counts of one fleet, from the row of its run (fdbqueue/runs.py)."""

from typing import Any

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.fleet.outcomes import troubles
from fdbqueue.fleet.status import Tally
from fdbqueue.logger import logger
from fdbqueue.records.statistics import unpacked
from fdbqueue.root_keys import RootKeys
from fdbqueue.runs import ENDS
from fdbqueue.sessions.session import Session

_log = logger("fdbqueue.fleet")


class Run:
    """A session of the supervisor, as a context manager. Its end removes the row of the run."""

    def __init__(self, database: Database, root: Any) -> None:
        self._database = database
        self._keys = RootKeys(root)
        self._session = Session(database, ttr=limits.RUN_TTR_S, root=root)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._session.end_within(limits.CLOSE_TIMEOUT_S)
        except troubles() as error:
            _log.warning(
                "the counts of this run stay in the database for %.0f s: %s", limits.RUN_TTR_S, error
            )

    @property
    def id(self) -> bytes:
        return self._session.id

    def tally(self, timeout_s: float) -> Tally | None:
        """Return the exact counts; None if the session of the supervisor was lost, and the row with it.

        Raises the engine's error if the database does not answer in time. Round trips: 1.
        """
        value = run(self._database, self._read, timeout_s=timeout_s)
        return None if self._session.lost else Tally(**unpacked(ENDS, value))

    def _read(self, tr: Any) -> bytes | None:
        alive, row = tr.snapshot.get(self._keys.session(self.id)), tr.snapshot.get(self._keys.run(self.id))
        self._session.lost |= not alive.present()
        value: bytes | None = row.value
        return value
