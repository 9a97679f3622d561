"""Telling: counts the attempts of a worker by outcome, and tells hooks, observers and the log of each."""

from fdbqueue import log_fields, observing
from fdbqueue.database import Database
from fdbqueue.fleet.held import Hold
from fdbqueue.fleet.hooks import Event, Hooks
from fdbqueue.fleet.settling import Settled
from fdbqueue.fleet.status import Tally
from fdbqueue.observing import GIVEN_BACK, Attempt, Watch

_TALLIED = {
    "succeeded": "done",
    "retried": "failed",
    "snoozed": "snoozed",
    "buried": "buried",
    "cancelled": "cancelled",
    "lease_lost": "lost",
}


class Telling:
    def __init__(self, database: Database, hooks: Hooks) -> None:
        self._runtime = database.runtime
        self._troubles = database.troubles
        self._hooks = hooks
        self._lock = database.runtime.lock()
        self.tally = Tally()

    def began(self, hold: Hold) -> None:
        """The handler of `hold` is about to be called, by this thread."""
        if observing.observers:
            hold.watch = Watch(Attempt(hold.task.queue, hold.task))
        self._hooks.tell(Event("started", hold.task), self._troubles)

    def ended(self, hold: Hold, settled: Settled, error: BaseException | None = None) -> None:
        """The attempt has its outcome. Any thread may call this."""
        counted = {_TALLIED[settled.name]: 1}
        with self._lock:
            self.tally = self.tally + Tally(**counted)
        seconds = 0.0 if hold.began_at is None else self._runtime.monotonic() - hold.began_at
        with log_fields.about(hold.task.queue, hold.task):
            if hold.watch is not None:
                hold.watch.end(settled.name, seconds, error)
            event = Event(settled.name, hold.task, seconds, error, settled.delay_s)
            self._hooks.tell(event, self._troubles)

    def given_back(self, hold: Hold) -> None:
        """The worker gives the task back while its handler runs: the attempt has no outcome of its own."""
        if hold.watch is not None and hold.began_at is not None:
            hold.watch.end(GIVEN_BACK, self._runtime.monotonic() - hold.began_at, None)

    def left(self, hold: Hold) -> None:
        """The thread that called `began` goes on with something else."""
        if hold.watch is not None:
            hold.watch.left()
