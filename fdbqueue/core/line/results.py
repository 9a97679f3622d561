"""Results of a waiting line: items that lie ready for a request until its owner collects them.

Life: whether the owner of a request still lives, before the deadline of the request tells.

In a directory the kernel knows at once that a process is gone. The params of a request begin with the name of
its process, except those of a session with a name, which another process may go on with.

On a cluster, a request that waits renews itself often: a *sign of life*. A process notes when it first saw
each sign. One that stays the same for limits.SILENT_S means that the owner is *silent*: dead, or slow. No two
clocks are compared. A silent request has no share, and keeps its place until its deadline. Results that lie
ready for `limits.SILENT_S` have a silent owner: they go back.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.binding import is_gone
from fdbqueue.core.line.keys import Due, LineKeys, Notice, Ticket, deadline_of, notice_of, notice_value
from fdbqueue.core.line.source import Delivery, Source
from fdbqueue.core.seam import EXACT, Range, ReadTransaction, Transaction

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


DEADLINE_US = round(limits.REQUEST_DEADLINE_S * 1_000_000)


class Life:
    """The living, the dead and the silent requests of one line, as this process sees them."""

    def __init__(self, keys: LineKeys) -> None:
        self._keys = keys
        self._sightings: Sightings | None = None

    def watch(self) -> None:
        """Watch for signs of life from now on: the kernel does not know the processes."""
        self._sightings = self._sightings or Sightings()

    @property
    def is_watching(self) -> bool:
        return self._sightings is not None

    def living(
        self, tr: Transaction, requests: Sequence[tuple[Ticket, int]], now_us: int
    ) -> tuple[list[tuple[Ticket, int]], list[Ticket]]:
        """Requests of living owners, with their deadlines, and requests of dead ones."""
        gone = [ticket for ticket, _ in requests if is_owner_gone(tr, ticket)]
        doubtful = {
            ticket: tr.snapshot.get(self._keys.renewal(ticket))
            for ticket, deadline in requests
            if deadline < now_us and ticket not in gone
        }
        late = [ticket for ticket, renewal in doubtful.items() if not _renewed(renewal.value, now_us)]
        dead = [*gone, *late]
        return [entry for entry in requests if entry[0] not in dead], dead

    def ask_signs(self, tr: Transaction) -> Range | None:
        """Ask, by snapshot, for the signs of the first requests."""
        if self._sightings is None:
            return None
        signs = self._keys.all_renewals
        return tr.snapshot.get_range(signs.start, signs.stop, limit=limits.SERVE_MAX)

    def silent(
        self, signs: Range | None, requests: Sequence[Ticket], now_us: int, silent_us: int
    ) -> Collection[bytes]:
        """The names of the silent ones among the first `requests`. In a long line they give no signs."""
        if self._sightings is None or signs is None or len(requests) >= limits.SERVE_MAX:
            return ()
        given = {self._keys.rid_of_renewal(row.key): bytes(row.value) for row in signs.to_list()}
        since_us = self._sightings.since_us({one.rid: given.get(one.rid) for one in requests}, now_us)
        return {rid for rid, at_us in since_us.items() if now_us - at_us > silent_us}

    def overdue(self, lying: Sequence[Due], now_us: int, silent_us: int) -> list[Due]:
        """The results past their deadlines, and those that this process has seen for `silent_us`."""
        signs = {one.rid: b"" for one in lying}
        since_us = {} if self._sightings is None else self._sightings.since_us(signs, now_us)
        return [
            one
            for one in lying
            if one.deadline_us < now_us or now_us - since_us.get(one.rid, now_us) > silent_us
        ]


class Sightings:
    """The signs of life that a process has seen in one line. That of a served request is empty."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[bytes | None, int]] = {}

    def since_us(self, signs: Mapping[bytes, bytes | None], now_us: int) -> Mapping[bytes, int]:
        """Note the signs by request, None for one without any yet. Return when each was first seen."""
        seen = {}
        for rid, sign in signs.items():
            last, first_us = self._seen.get(rid, (sign, now_us))
            seen[rid] = sign, first_us if last == sign else now_us
        # A look that reads a part of the line does not begin anew with the others.
        earlier = self._seen if len(self._seen) <= 2 * limits.SERVE_MAX else {}
        self._seen = {**earlier, **seen}
        return {rid: first_us for rid, (_, first_us) in seen.items()}


def is_owner_gone(tr: Transaction, ticket: Ticket) -> bool:
    """True if the kernel knows that the process of a request is gone."""
    return bool(is_gone(tr.db, ticket.params))


def _renewed(value: bytes | None, now_us: int) -> bool:
    return value is not None and deadline_of(value) >= now_us


def ask_waiting(tr: ReadTransaction, keys: LineKeys, now_us: int, limit: int) -> Callable[[], int]:
    """Ask for the number of live requests, among the first `limit`."""
    found = ask_live(tr, keys, now_us, limit)
    return lambda: len(found())


def ask_live(
    tr: ReadTransaction, keys: LineKeys, now_us: int, limit: int
) -> Callable[[], list[tuple[Ticket, int]]]:
    """Ask for the live ones of the first `limit` requests, in order, with their deadlines in microseconds."""
    rows, late = keys.requests, keys.all_renewals
    requests = tr.get_range(rows.start, rows.stop, limit=limit, streaming_mode=EXACT)
    renewals = tr.get_range(late.start, late.stop, limit=limit, streaming_mode=EXACT)

    def live() -> list[tuple[Ticket, int]]:
        renewed = {bytes(row.key)[len(late.start) :]: deadline_of(row.value) for row in renewals.to_list()}
        found = [_with_deadline(keys, row.key, row.value, renewed) for row in requests.to_list()]
        return [(ticket, deadline_us) for ticket, deadline_us in found if deadline_us > now_us]

    return live


def _with_deadline(keys: LineKeys, key: bytes, value: bytes, renewed: dict[bytes, int]) -> tuple[Ticket, int]:
    ticket, deadline_us = keys.ticket_of(bytes(key), bytes(value))
    return ticket, max(deadline_us, renewed.get(ticket.stamp + ticket.rid, 0))
