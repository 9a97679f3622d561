"""Takes: how the first available items of a queue reach a caller, in one transaction.

    take           in a transaction of the caller: the first items, whichever requests they belong to
    take_in_turn   given a database: the first items that belong to no request in the line

Every kind of queue takes like this; `Source` is all that differs. Reads that do not depend on each other are
asked for together: a take without contention costs one round trip, and one more if its items need it.
"""

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import call
from typing import Any

from msgspec import Struct

from fdbqueue.core import limits
from fdbqueue.core.errors import TooMuchToSweep
from fdbqueue.core.line.decision import NOTHING, Offer, Portion, portion_of
from fdbqueue.core.line.source import Ask, Swept
from fdbqueue.core.line.staging import Line, Outcome, Turn
from fdbqueue.core.seam import Range, Transaction

HandOut = Callable[[Transaction, Sequence[Offer], bytes], Sequence[Any]]
"""Claims offers for a take that passes params, as a request does. Returns the values that can be read."""


class Taken(Struct, frozen=True):
    values: Sequence[Any] = ()
    cut_short: bool = False
    """There may be more items, beyond the bounds of one transaction."""
    wrote: bool = False
    turn: Turn | None = None
    """The look at the line of a take that passed by it."""
    may_be_lost: bool = False
    """True if nothing but leases have begun and ended: a power cut may undo the take."""

    @property
    def is_open(self) -> bool:
        """True if it found no item, and cannot tell that there is none: another attempt may."""
        if self.values:
            return False
        return self.wrote or (self.turn is not None and self.turn.outcome is Outcome.AGAIN)


class Taker:
    def __init__(self, line: Line, asks: Sequence[Ask], hand_out: HandOut) -> None:
        """The replies to `asks` raise if the caller may not take anything."""
        self._line = line
        self._source = line.source
        self._activity = line.keys.activity
        self._asks = asks
        self._hand_out = hand_out

    def take(self, tr: Transaction, count: int, params: bytes, now_us: int, *, is_last: bool = True) -> Taken:
        """Take the first items, up to `count`, for the transaction of a caller.

        `is_last`: without an item, the answer is that there is none; otherwise another source is asked.
        Conflicts: every use of the same items; if it finds nothing, everything that makes an item available.
        Raises: the error of an item that this process cannot read, if there is no other item; TooMuchToSweep
        if that is not known after limits.TIDY_ROUNDS_MAX batches.
        """
        source, results = self._source, self._line.results
        checks = [ask(tr) for ask in self._asks]
        tidy, found, due = (
            source.ask_tidy(tr, now_us),
            source.available(tr, count, now_us),
            results.ask_due(tr),
        )
        for check in checks:
            check()
        tidied = tidy()
        # Tidying has changed the items that were asked for before it.
        portion, has_seen_all = portion_of(source.available(tr, count, now_us) if tidied else found), True
        if tidied and not portion.offers:
            portion, has_seen_all = self._tidied(tr, count, now_us)
        if not portion.offers:
            portion, has_returned_all = self._returned(tr, count, due, now_us)
            has_seen_all = has_seen_all and has_returned_all
        taken = self._take(tr, portion, tidied, count, params, now_us)
        if not taken.values and is_last:
            tr.add_read_conflict_range(source.ready.start, source.ready.stop)
            source.require_none_passed(tr)
            if (taken.cut_short or not has_seen_all) and not source.is_paused(tr):
                raise TooMuchToSweep(name=source.name)
        return taken

    def take_in_turn(self, tr: Transaction, count: int, params: bytes, now_us: int) -> Taken:
        """Take the first items, up to `count`, to which no request in the line is entitled.

        Reads: the first items, requests and due times by snapshot; serialisably the keys it changes.
        Conflicts: every use of the same items.
        """
        source, activity = self._source, self._activity
        checks = list(map(call, self._asks, repeat(tr)))
        tidy = source.ask_tidy(tr, now_us) if source.comes_due else None
        found = source.available(tr, count, now_us)
        first = tr.snapshot.get_range(activity.start, activity.stop, limit=1).to_list()
        for check in checks:
            check()
        tidied = Swept.NOTHING if tidy is None else tidy()
        portion = portion_of(source.available(tr, count, now_us) if tidied else found)
        if first and (self._line.keys.is_work(first[0].key, now_us) or not portion.offers):
            turn = self._line.pass_by(tr, count, params, now_us)
            may_be_lost = turn.may_be_lost and tidied is not Swept.MORE
            return Taken(turn.answers, bool(turn.answers), turn.wrote or bool(tidied), turn, may_be_lost)
        return self._take(tr, portion, tidied, count, params, now_us)

    def _tidied(self, tr: Transaction, count: int, now_us: int) -> tuple[Portion, bool]:
        """The first items after more items have come due. Expired ones may fill a batch. The second value is
        false if more may be due.
        """
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if not self._source.ask_tidy(tr, now_us)():
                return NOTHING, True
            portion = portion_of(self._source.available(tr, count, now_us))
            if portion.offers:
                return portion, True
        return NOTHING, False

    def _returned(self, tr: Transaction, count: int, due: Range, now_us: int) -> tuple[Portion, bool]:
        """The first items after overdue results have come back. All items of a batch may have gone since. The
        second value is false if more may be overdue.
        """
        results = self._line.results
        for _ in range(limits.TIDY_ROUNDS_MAX):
            overdue = results.overdue(due, now_us)
            if not overdue:
                return NOTHING, True
            results.return_overdue(tr, overdue)
            found, due = self._source.available(tr, count, now_us), results.ask_due(tr)
            portion = portion_of(found)
            if portion.offers:
                return portion, True
        return NOTHING, False

    def _take(
        self, tr: Transaction, portion: Portion, tidied: Swept, count: int, params: bytes, now_us: int
    ) -> Taken:
        """Take `portion`; if it is unreadable, what is behind, while one transaction can set all aside."""
        unreadable_bytes = 0
        wrote = bool(tidied) or bool(portion.offers)
        may_be_lost = self._source.hands_out_leases and tidied is not Swept.MORE
        for _ in range(limits.TIDY_ROUNDS_MAX):
            if not portion.offers:
                break
            values = self._hand_out(tr, portion.offers, params)
            # Without its value, an item could not be read, and was buried.
            may_be_lost = may_be_lost and len(values) == len(portion.offers)
            if values:
                # An expired or unreadable item has the place of another among the first `count`.
                is_dense = len(values) == count or (not tidied and len(values) == len(portion.offers))
                return Taken(values, portion.cut_short or not is_dense, wrote, None, may_be_lost)
            unreadable_bytes += _bytes_of(portion)
            portion = portion_of(self._source.available(tr, count, now_us))
            if unreadable_bytes + _bytes_of(portion) > limits.UNREADABLE_BYTES_MAX:
                break
        return Taken((), bool(portion.offers), wrote)


def _bytes_of(portion: Portion) -> int:
    return sum(offer.size_bytes for offer in portion.offers)
