"""Overtaking: takers of one queue take side by side, each some items behind the first one.

Two takers that read the first item at the same time both want it. One of them loses, and takes again; many
stand in the line, which costs two or three commits a take. The tasks of a fleet run at the same time anyway,
so within some number of tasks the order of their starts means nothing. A take with `overtake=N` leaves at
most N earlier items behind, besides the shares of requests in the line. With 0, the default, it is strict.

    no race lost           the first items
    a race lost            items behind a random number of others: up to 16, and each time up to twice as many
    after half a second    a strict take, which also returns the shares of dead requests; then half as many
    eight races in a row   a request in the line, with a share in order, as of any other request

So no item lies at the head for long, and none is left for a less urgent one. Calls of several threads that
combine leave as few items as the strictest of them. Kinds with task keys or task limits, and bags, know no
`overtake`: there, takers part by other means.
"""

from collections.abc import Iterable, Sequence
from itertools import islice, takewhile

from fdbqueue.core import limits
from fdbqueue.core.line.decision import Offer
from fdbqueue.core.line.staging import Line
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Transaction


def chosen(
    tr: Transaction,
    line: Line,
    found: Iterable[Offer],
    left: int,
    count: int,
    now_us: int,
    is_work: bool,
) -> Sequence[Offer]:
    """The offers for a take that leaves `left` items and, if `is_work`, the shares of all requests. Empty
    also if there are more requests than it reads: a strict take passes by.

    Round trips: one for the requests, and one for the items behind their shares.
    """
    if not is_work:
        return behind(found, left, count)
    rows = tr.snapshot.get_range(line.keys.requests.start, line.keys.requests.stop, limit=limits.SERVE_MAX)
    asked = [line.keys.ticket_of(row.key, row.value)[0].count for row in rows]
    if len(asked) == limits.SERVE_MAX:
        return ()
    offers = line.source.available(tr, sum(asked) + left + count, now_us)
    return behind(islice(offers, sum(asked), None), left, count)


def behind(offers: Iterable[Offer], left: int, count: int) -> Sequence[Offer]:
    """`count` offers behind the first `left`. Of too few, or too large ones, it leaves fewer, as `left`
    decides; and none of a more urgent priority than those behind.
    """
    found: list[Offer] = []
    room_bytes = limits.OVERTAKEN_BYTES_MAX
    for offer in offers:
        found.append(offer)
        room_bytes -= len(offer.value)
        if room_bytes < 0 and len(found) >= count:
            break
    equals = list(takewhile(lambda offer: _pri(offer) == _pri(found[0]), found))
    start = left if len(equals) >= left + count else left % (max(0, len(equals) - count) + 1)
    return found[start : start + count]


def _pri(offer: Offer) -> int:
    return getattr(offer.item, "pri", 0)  # items of a queue without priorities have none


class Overtaking:
    """How far behind the first item the takes of one process and session begin."""

    def __init__(self, runtime: Runtime) -> None:
        self._random = runtime.random
        self.left = 0
        self._far = 0
        """The largest number of items that the last lost race may leave behind."""
        self._losses = 0
        """The number of races lost in a row."""

    def left_by(self, overtakes: Iterable[int], anew: bool) -> int | None:
        """The number of items that a take for callers with these `overtakes` leaves; None if it is strict.

        `anew`: this take is strict, and those behind it begin there if it wins.
        """
        if anew:
            self.left, self._far = 0, self._far // 2
            return None
        most = min(overtakes, default=0)
        return min(self.left, most) if most else None

    def lost(self, overtake: int) -> bool:
        """Another taker was faster. Two that begin at random places seldom meet again.

        True after so many lost races in a row that the line is cheaper.
        """
        self._far = min(overtake, max(limits.OVERTAKE_FIRST, 2 * self._far))
        self.left = int(self._random() * (self._far + 1))
        self._losses = (self._losses + 1) % limits.OVERTAKING_ATTEMPTS_MAX
        return not self._losses

    def won(self) -> None:
        self._losses = 0
