"""What the calls given one database met: conflicts, retries, places in a line, wake-ups.

Whoever watches a fleet or runs a load test asks these of `Database.counters`. They are sums of one process
since it opened the database, and say nothing of queues or of calls: threads share transactions
(calls/combine.py), so a conflict is nobody's alone.
"""

from dataclasses import dataclass

NOT_COMMITTED = 1020
MAYBE_COMMITTED = frozenset({1021, 1039})


@dataclass
class Counters:
    """Counted without a lock on the way of every call: of two increments that meet, one may be missed."""

    conflicts: int = 0
    """Commits refused because somebody else had changed what they read (1020)."""
    retries: int = 0
    """Attempts that ended in any error of the engine, conflicts included, and were made again or given up."""
    unknown: int = 0
    """Commits whose result nobody told us (1021, 1039)."""
    requests: int = 0
    """Places taken in a line, each by the callers of one process together."""
    wake_ups: int = 0
    """Sleeps in a line that a watch ended, rather than the clock."""

    def note_error(self, code: int) -> None:
        """Count an attempt that ended in the engine's error `code`."""
        self.retries += 1
        self.conflicts += code == NOT_COMMITTED
        self.unknown += code in MAYBE_COMMITTED
