"""`fdbqueue get`: an item leaves the queue when its line has been read, not before.

A pipe takes dozens of lines before its reader sees the first, and keeps them when the reader leaves. So the
next line is written when the last one has been read, and held items that were not read go back.
"""

from collections.abc import Callable

from fdbqueue import limits
from fdbqueue.cli.exits import Refused
from fdbqueue.cli.output import LineWriter
from fdbqueue.cli.values import line_of
from fdbqueue.database import Database
from fdbqueue.recipe.holding import Holder
from fdbqueue.signals import Signals

# A batch is held for a slow reader at most this long: held items are out of reach of other readers, and come
# back by themselves after limits.REQUEST_DEADLINE_S.
HELD_S = 0.5


def get(database: Database, holder: Holder, out: LineWriter, signals: Signals, n: int, wait_s: float) -> int:
    """Write up to `n` items as lines, waiting up to `wait_s` seconds for them; how many it was."""
    monotonic = database.runtime.monotonic
    until, left, most = monotonic() + wait_s, n, limits.SERVE_MAX
    while left:
        # Wait here, with nothing held, for a slow reader.
        out.is_drained(None)
        out.wait()
        held, shown = _show(holder, out, signals, min(left, most), monotonic)
        left -= shown
        # A slow reader's items are moved out of the queue and back once for each that it reads: hold few.
        most = min(limits.SERVE_MAX, 2 * max(shown, 1))
        if not held:
            patience_s = until - monotonic()
            if patience_s <= 0:
                break
            holder.wait(patience_s)
    return n - left


def _show(
    holder: Holder, out: LineWriter, signals: Signals, n: int, monotonic: Callable[[], float]
) -> tuple[int, int]:
    """Hold some items, and write each when the one before it has been read; how many of each."""
    shown = 0
    with signals.deferred():
        values = holder.hold(n)
        until_s = monotonic() + HELD_S
        try:
            for value in values:
                if signals.arrived or not out.write(line_of(value)):
                    break
                drained = out.is_drained(until_s - monotonic())  # ReaderGone: this line was not read
                shown += 1
                if not drained:
                    break
        finally:
            in_time = not values or holder.settle(shown)
    if shown and not in_time:
        raise Refused(
            f"the last {shown} line(s) took too long: they are in the queue again, and will come twice"
        )
    return len(values), shown
