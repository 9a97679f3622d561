"""`fdbqueue get`: an item leaves the queue when its line has been written, not before."""

from fdbqueue import limits
from fdbqueue.cli.exits import Refused
from fdbqueue.cli.output import LineWriter
from fdbqueue.cli.signals import Signals
from fdbqueue.cli.values import line_of
from fdbqueue.database import Database
from fdbqueue.recipe.holding import Holder


def get(database: Database, holder: Holder, out: LineWriter, signals: Signals, n: int, wait_s: float) -> int:
    """Write up to `n` items as lines, waiting up to `wait_s` seconds for them; how many it was."""
    monotonic = database.runtime.monotonic
    until, left = monotonic() + wait_s, n
    while left:
        # A reader that is gone, or slow, is noticed with empty hands.
        out.wait()
        held, shown = _show(holder, out, signals, left)
        left -= shown
        if not held:
            if monotonic() >= until:
                break
            holder.wait(until - monotonic())
    return n - left


def _show(holder: Holder, out: LineWriter, signals: Signals, n: int) -> tuple[int, int]:
    """Hold some items, and write them as long as there is room; how many of each."""
    shown = 0
    with signals.deferred():
        values = holder.hold(min(n, limits.SERVE_MAX))
        try:
            for value in values:
                if signals.arrived or not out.write(line_of(value)):
                    break
                shown += 1
        finally:
            in_time = not values or holder.settle(shown)
    if shown and not in_time:
        raise Refused(
            f"the last {shown} line(s) took too long: they are in the queue again, and will come twice"
        )
    return len(values), shown
