"""Counters of the calls given one database: commits, conflicts, retries, requests in lines, wake-ups.

`Database.counters` has them, for monitoring and load tests. They are sums of one process since it opened
the database. There are none per queue or call, because threads share transactions (calls/combine.py).
"""

from dataclasses import dataclass

from fdbqueue import observing

NOT_COMMITTED = 1020
MAYBE_COMMITTED = frozenset({1021, 1039})


@dataclass
class Counters:
    """Every call counts, without a lock: of two increments at the same moment, one may be lost."""

    conflicts: int = 0
    """Commits refused because another transaction had changed a key that they read (1020)."""
    retries: int = 0
    """Transactions that ended in an error of the engine, conflicts included, and were retried or given up."""
    unknown: int = 0
    """Commits with an unknown result (1021, 1039)."""
    requests: int = 0
    """Requests registered in a line, each by the callers of one process together."""
    wake_ups: int = 0
    """Sleeps in a line that a watch has ended, not the clock."""
    commits: int = 0
    """Transactions that have committed, also those that wrote nothing."""

    def note_error(self, code: int) -> None:
        """Count an attempt that ended in the engine's error `code`."""
        self.retries += 1
        self.conflicts += code == NOT_COMMITTED
        self.unknown += code in MAYBE_COMMITTED
        if observing.observers:
            observing.tell_failed(code)
