"""Overtaking: takers of one queue take side by side, each some items behind the first one.

Two takers that read the first item at the same time both want it. One of them loses, and takes again; many
stand in the line, which costs two or three commits a take. The tasks of a fleet run at the same time anyway,
so within some number of tasks the order of their starts means nothing. A take with `overtake=N` leaves at
most N earlier items behind, besides the shares of requests in the line. With 0, the default, it is strict.

    no race lost      the first items
    a race lost       items behind a random number of others: up to twice as far as before, and 16 more
    a take            one item less: each taker comes back to the first items
    after half a second   a strict take, which also returns the shares of dead requests
    eight races lost  a request in the line, with a share in order, as of any other request

So no item lies at the head for long. Calls of several threads that combine leave as few items as the
strictest of them. Kinds with task keys or task limits, and bags, know no `overtake`: there, takers part by
other means.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from fdbqueue.core import limits
from fdbqueue.core.line.decision import Offer
from fdbqueue.core.line.staging import Line
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Transaction


def passed_by(
    tr: Transaction,
    line: Line,
    found: Iterable[Offer],
    left: int,
    count: int,
    now_us: int,
    is_work: bool,
) -> Sequence[Offer]:
    """The offers for a take that leaves `left` items and, if `is_work`, the shares of all requests.

    Round trips: one for the requests, and one for the items behind their shares.
    """
    if not is_work:
        return behind(found, left, count)
    rows = tr.snapshot.get_range(line.keys.requests.start, line.keys.requests.stop, limit=limits.SERVE_MAX)
    shares = sum(line.keys.ticket_of(row.key, row.value)[0].count for row in rows)
    return behind(islice(line.source.available(tr, shares + left + count, now_us), shares, None), left, count)


def behind(offers: Iterable[Offer], left: int, count: int) -> Sequence[Offer]:
    """`count` offers behind the first `left`. Of too few offers, it leaves some, as `left` decides."""
    found = list(offers)
    start = left if len(found) >= left + count else left % (max(0, len(found) - count) + 1)
    return found[start : start + count]


class Overtaking:
    """How far behind the first item the takes of one process and session begin."""

    def __init__(self, runtime: Runtime) -> None:
        self._random = runtime.random
        self._left = 0
        self._losses = 0
        """The number of races lost in a row."""

    def left_by(self, overtakes: Iterable[int]) -> int | None:
        """The number of items that a take for callers with these `overtakes` leaves; None if it is strict."""
        most = min(overtakes, default=0)
        return min(self._left, most) if most else None

    def lost(self, overtake: int) -> None:
        """Another taker was faster. Two that begin at random places seldom meet again."""
        self._losses += 1
        far = min(overtake, 2 * self._left + limits.OVERTAKE_FIRST)
        self._left = int(self._random() * (far + 1))

    def won(self) -> None:
        self._losses = 0
        self._left = max(0, self._left - 1)

    @property
    def gives_up(self) -> bool:
        """True after so many lost races that the line is cheaper."""
        return self._losses >= limits.OVERTAKING_ATTEMPTS_MAX
