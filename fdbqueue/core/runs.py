"""Runs: the ends of the tasks that one fleet has taken, counted in a row of that fleet's run.

A run is named by the id of its supervisor's session. The token of a lease ends in the run that the lease
counts for. So each transaction that ends a lease knows the row without a read: the ack, the burial, and a
sweep in any process. It adds to the row blindly. A lease without a run costs nothing.

The row is cleared with the supervisor's session. A later add makes the row anew. The sessions of the run's
workers outlast their last lease, so the last of them to end clears that row.
"""

from collections.abc import Callable

from fdbqueue.core import limits
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import Transaction

ENDS = ("done", "failed", "buried", "lost", "snoozed", "cancelled")
"""The counters of a row, in their order. New ones go to the end."""


def run_of(token: bytes) -> bytes:
    """The run that a lease counts for. Its token is limits.RANDOM_SUFFIX_BYTES random bytes, and the run."""
    return token[limits.RANDOM_SUFFIX_BYTES :]


def is_alive(tr: Transaction, keys: RootKeys, run: bytes) -> bool:
    """True if the run has not ended. Reads its session. Conflicts: its end."""
    return bool(run) and tr.get(keys.session(run)).present()


def ask_counted(tr: Transaction, keys: RootKeys, session: bytes, run: bytes) -> Callable[[], bool]:
    """Ask whether the end of a lease of `session` may still count for `run`: without a member and a
    supervisor, the row is gone, and a count would make it for ever.

    A line may deliver a task to a session that ends. No caller receives it, and its lease ends by time.
    Conflicts: the end of both.
    """
    asked = (tr.get(keys.membership(session)), tr.get(keys.session(run)))
    return lambda: any(key.present() for key in asked)


def leave_run(tr: Transaction, keys: RootKeys, membership: bytes, run: bytes | None) -> None:
    """Clear the membership of a session that has ended, and the row of a run that has ended too."""
    if run is None:
        return
    tr.clear(membership)
    if not is_alive(tr, keys, run):
        tr.clear(keys.run(run))
