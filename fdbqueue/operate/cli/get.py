"""`fdbqueue get`: an item leaves the queue when its line has been read, not before.

A pipe accepts dozens of lines before its reader reads the first, and drops them if the reader ends. So each
line is written after the one before it was read, and held items that were not read go back to the queue.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.signals import Signals
from fdbqueue.core.visible import counted
from fdbqueue.operate.cli.exits import Refused
from fdbqueue.operate.cli.output import LineWriter
from fdbqueue.operate.cli.values import line_of

if TYPE_CHECKING:
    from fdbqueue.queues.recipe.holding import Holder

# Longest time for which a batch is held for a slow reader. Other readers cannot get held items, which go back
# by themselves after limits.REQUEST_DEADLINE_S.
HELD_S = 0.5


Line = Callable[[Any], bytes]
"""Makes the line of an item."""


def get(
    database: Database,
    holder: "Holder",
    out: LineWriter,
    signals: Signals,
    n: int,
    wait_s: float,
    line: Line = line_of,
) -> int:
    """Write up to `n` items as lines, waiting up to `wait_s` for them. Return the number of items."""
    monotonic = database.runtime.monotonic
    until, left, most = monotonic() + wait_s, n, limits.SERVE_MAX
    while left:
        # Wait for a slow reader here, where no item is held.
        out.is_drained(None)
        out.wait()
        held, shown = _show(holder, out, signals, min(left, most), monotonic, line)
        left -= shown
        # For each line that a slow reader reads, all held items are moved out and back: hold few of them.
        most = min(limits.SERVE_MAX, 2 * max(shown, 1))
        if not held:
            patience_s = until - monotonic()
            if patience_s <= 0:
                break
            holder.wait(patience_s)
    return n - left


def _show(
    holder: "Holder", out: LineWriter, signals: Signals, n: int, monotonic: Callable[[], float], line: Line
) -> tuple[int, int]:
    """Hold up to `n` items, and write each line when the reader has read the one before.

    Stops after HELD_S seconds. Returns the numbers of items held and lines written.
    """
    shown = 0
    with signals.deferred():
        values = holder.hold(n)
        until_s = monotonic() + HELD_S
        try:
            for value in values:
                if signals.arrived or not out.write(line(value)):
                    break
                drained = out.is_drained(until_s - monotonic())  # raises ReaderGone if this line was not read
                shown += 1
                if not drained:
                    break
        finally:
            in_time = not values or holder.settle(shown)
    if shown and not in_time:
        raise Refused(
            f"the reader took too long, so {counted(shown, 'item')} came back into the queue, to come twice"
        )
    return len(values), shown
