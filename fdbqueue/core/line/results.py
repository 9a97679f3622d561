"""Results of a waiting line: items that lie ready for a request until its owner collects them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.line.keys import Due, LineKeys, Notice, Ticket, notice_of, notice_value
from fdbqueue.core.line.source import Delivery, Source
from fdbqueue.core.seam import Range, Transaction

NO_NOTICE = "what lay ready for a caller cannot be read"


class Collected(NamedTuple):
    """The values that a request has waited for."""

    values: Sequence[Any]
    is_whole: bool
    """False if a result has no value: it went back, or could not be read."""


class Results:
    def __init__(self, keys: LineKeys, source: Source) -> None:
        self._keys = keys
        self._source = source

    def leave(self, tr: Transaction, ticket: Ticket, deliveries: Sequence[Delivery], notice: Notice) -> None:
        """Lay `deliveries` ready for the owner of `ticket`, until the deadline in `notice`."""
        results = [(delivery.id, delivery.value) for delivery in deliveries]
        if sum(len(item_id) + len(value) for item_id, value in results) > limits.NOTICE_BYTES_MAX:
            for item_id, value in results:
                tr.set(self._keys.result(ticket.rid, item_id), value)
        else:
            notice = replace(notice, results=results)
        tr.set(self._keys.notice(ticket.rid), notice_value(notice))
        tr.set(self._keys.due_key(Due(notice.deadline_us, ticket.rid)), b"")

    def collect(self, tr: Transaction, ticket: Ticket, notice: Notice, wanted: int) -> Collected | None:
        """Values of at most `wanted` results; the others become available again. None without results.

        Reads results beside the notice serialisably. Conflicts: their return, their removal.
        """
        deliveries = self._delivered(tr, ticket.rid, notice)
        values = self._source.collect(tr, deliveries[:wanted])
        if deliveries[wanted:]:
            self._source.give_back(tr, deliveries[wanted:])
        self._clear(tr, ticket.rid, notice)
        tr.clear(self._keys.due_key(Due(notice.deadline_us, ticket.rid)))
        return Collected(values, len(values) == len(deliveries)) if deliveries else None

    def sound(self, tr: Transaction, rid: bytes, value: bytes) -> Notice | None:
        """The notice to `rid`. One that is damaged is set aside with the results beside it."""
        notice = notice_of(value)
        if notice is None:
            beside = self._keys.results(rid)
            rows = tr.get_range(beside.start, beside.stop, limit=limits.SERVE_MAX)
            values = [value, *(bytes(row.value) for row in rows)]
            self._source.aside.put(tr, self._keys.notice(rid), values, NO_NOTICE)
            tr.clear_range(beside.start, beside.stop)
            tr.clear(self._keys.notice(rid))
        return notice

    def ask_due(self, tr: Transaction) -> Range:
        """Ask, by snapshot, for the results that lie ready, in order of their deadlines."""
        due = self._keys.due
        return tr.snapshot.get_range(due.start, due.stop, limit=limits.RESULTS_RETURNED_MAX)

    def ask_first_due(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, for the time at which the first results are overdue, in microseconds."""
        due = self._keys.due
        first = tr.snapshot.get_range(due.start, due.stop, limit=1)
        return lambda: next((self._keys.due_of(entry.key).deadline_us + 1 for entry in first), None)

    def overdue(self, due: Range, now_us: int) -> list[Due]:
        """The entries of `due` past their deadlines: their owners have not collected them in time."""
        return [entry for entry in self.lying(due) if entry.deadline_us < now_us]

    def lying(self, due: Range) -> list[Due]:
        """The entries of `due`: results that no owner has collected yet."""
        return [self._keys.due_of(entry.key) for entry in due.to_list()]

    def return_overdue(self, tr: Transaction, overdue: Sequence[Due]) -> None:
        """Make the items of `overdue` results available again, in their old places: those of the first
        results, until they are limits.RETURNED_ITEMS_MAX or more. The other results stay overdue.

        Reads their notices and results serialisably, clears both. Conflicts: their collection.
        """
        returned = 0
        asked = [(entry, tr.get(self._keys.notice(entry.rid))) for entry in overdue]
        for entry, found in asked:
            if returned >= limits.RETURNED_ITEMS_MAX:
                break
            notice = None if found.value is None else self.sound(tr, entry.rid, found.value)
            if notice is not None and notice.deadline_us == entry.deadline_us:
                delivered = self._delivered(tr, entry.rid, notice)
                returned += len(delivered)
                self._source.give_back(tr, delivered)
                self._clear(tr, entry.rid, notice)
            tr.clear(self._keys.due_key(entry))

    def clear_all(self, tr: Transaction) -> None:
        """Forget all results. Blind: their owners, if alive, register again."""
        for column in (self._keys.due, self._keys.all_notices, self._keys.all_results):
            tr.clear_range(column.start, column.stop)

    def _delivered(self, tr: Transaction, rid: bytes, notice: Notice) -> list[Delivery]:
        """The results in the notice, or beside it."""
        if notice.results:
            return [Delivery(item_id, value) for item_id, value in notice.results]
        under = self._keys.results(rid)
        results = tr.get_range(under.start, under.stop, limit=limits.SERVE_MAX)
        return [Delivery(self._keys.item_id_of(result.key), result.value) for result in results]

    def _clear(self, tr: Transaction, rid: bytes, notice: Notice) -> None:
        if not notice.results:
            beside = self._keys.results(rid)
            tr.clear_range(beside.start, beside.stop)
        tr.clear(self._keys.notice(rid))
