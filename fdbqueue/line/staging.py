"""The waiting line: a staged request set that serves contention and waiting alike.

A call registers a request, conflict-free like an enqueue. The owner of the request at the head serves the
line: it pairs the first requests with the first available items in one transaction; everyone else sleeps on
watches of its own request, which is gone once it is served, and of the one before it, without which it may be
the head. In a crowd whoever is served first serves on, as it collects; nobody has to, and a server that is
killed owes nothing. What an item is, and how it is handed to a request, is the `Source`'s business: a recipe
queue moves the item, a task queue takes the lease in the requester's name.

Every function here works in one transaction and is bounded by limits.SERVE_*. Being head only saves work:
two servers at once are safe, because each adds a read-conflict key for every request and every item that it
pairs *before* it touches them. (Servers that saw different requests would otherwise deliver one item twice;
and FoundationDB drops a read conflict on a key that the transaction has already written.)
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import islice
from typing import Any, Protocol

from fdbqueue import limits
from fdbqueue.line.keys import (
    Due,
    LineKeys,
    Notice,
    Ticket,
    deadline_of,
    notice_of,
    notice_value,
    renewal_value,
    request_value,
)
from fdbqueue.seam import Future, Range, Transaction

DEADLINE_US = round(limits.REQUEST_DEADLINE_S * 1_000_000)


@dataclass(frozen=True)
class Offer:
    """Something available: its identity, what the source stores for it, and its payload's size."""

    id: bytes
    value: bytes
    size_bytes: int
    key: bytes = b""
    """Those of one key, if they have any, are handed out in their order only."""


@dataclass(frozen=True)
class Delivery:
    """Something handed to a request: its identity, and what the source left for the owner."""

    id: bytes
    value: bytes


class Source(Protocol):
    """What a line hands out."""

    doorbell: bytes
    """A key that changes whenever something may have become available."""

    def guard(self, tr: Transaction) -> Callable[[], None]:
        """Ask whether the queue still exists; the reply raises if it does not."""

    def tidy(self, tr: Transaction) -> bool:
        """Make available, a batch at a time, what has come due; whether anything was written."""

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, when something comes due on its own; the reply is in microseconds."""

    def available(self, tr: Transaction, limit: int) -> Iterable[Offer]:
        """Ask, by snapshot, for the first available things; iterating waits."""

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        """Add a read-conflict key for everything that delivering `offers` will touch."""

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:
        """Take `offers` out of what is available, for a request with `params`."""

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        """What the owner gets for its deliveries, which leave the queue for good."""

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        """Make deliveries that nobody collected available again, in their old places."""


class Outcome(Enum):
    SERVED = auto()  # the request has left the line, with answers
    LEFT = auto()  # withdrawn: nothing was available for it
    GONE = auto()  # somebody took the request for dead, or its results were cleared: register again
    AGAIN = auto()  # something was done for others: look again
    WAIT = auto()  # nothing to do until a watch fires


@dataclass(frozen=True)
class Look:
    """How the owner of a request looks at the line this time."""

    now_us: int
    serve: bool = False  # pair what there is, although somebody else may be serving
    leave: bool = False  # withdraw if there is nothing
    renew: bool = False
    leads: bool = False  # it stood at the head the last time: ask at once for what a server needs
    called: bool = False  # its request has been seen to change: ask for the notice only, it will be there
    relay: bool = True  # serve on the way, if the notice says so
    crowded: bool = False  # whom it serves is to serve on, however few there are
    tried: Collection[bytes] = ()  # the items that this call's last attempt paired, in vain
    wanted: int = limits.SERVE_MAX  # how many items still have a caller


@dataclass(frozen=True)
class Turn:
    """What came of a look."""

    outcome: Outcome
    answers: Sequence[Any] = ()
    wrote: bool = True
    watches: Sequence[Future] = ()  # the first is of the own request
    leads: bool = False  # waits at the head of the line
    paired: Collection[bytes] = ()
    crowd: int = 0  # how many requests were served together
    due_us: int | None = None  # when to look again although no watch fired


@dataclass(frozen=True)
class _Work:
    """What a server asks for, in one round trip: the first requests, what is available, what lies ready."""

    requests: Range
    offers: Iterable[Offer]
    due: Range


class Line:
    def __init__(self, keys: LineKeys, source: Source) -> None:
        self.keys = keys
        self.source = source

    def register(
        self, tr: Transaction, rid: bytes, count: int, params: bytes, now_us: int
    ) -> tuple[Ticket, Future, bool]:
        """Join the line behind the last request; the place, a watch that fires when it is served, and whether
        nobody stood there.

        (A watch of the request before it would be a serialisable read of that: each serving would abort all
        who are about to come.)
        Reads the last request by snapshot; writes the own one; conflicts with nothing.
        """
        check, requests = self.source.guard(tr), self.keys.requests
        last = tr.snapshot.get_range(requests.start, requests.stop, limit=1, reverse=True).to_list()
        check()
        ticket = Ticket(self.keys.index_of_request(last[0].key) + 1 if last else 0, rid, count, params)
        tr.set(self.keys.request(ticket), request_value(ticket, now_us + DEADLINE_US))
        return ticket, tr.watch(self.keys.request(ticket)), not last

    def look(self, tr: Transaction, ticket: Ticket, how: Look) -> Turn:
        """Collect what lies ready for `ticket`; else serve, if that is its turn; else say what to wait for.

        Reads the own notice serialisably, the own request where it relies on that, and what the source needs
        so; the rest by snapshot.
        Writes, and conflicts, as the turn it takes: collecting with whoever returns or clears the results,
        serving with whoever uses a paired request or item, leaving and renewing with whoever removes this
        request; waiting writes nothing.
        """
        check = self.source.guard(tr)
        asked = tr.get(self.keys.notice(ticket.rid))
        place = None if how.called else self._ask_place(tr, ticket)
        work = self._ask_work(tr) if (how.leads or how.serve) and not how.called else None
        notice = asked.value
        check()
        if notice is not None:
            return self._collect_and_relay(tr, ticket, notice_of(notice), how)
        stands, before = self._place_in(self._ask_place(tr, ticket) if place is None else place, ticket)
        if not stands:
            return Turn(Outcome.GONE, wrote=False)
        if how.renew:
            return self._renew(tr, ticket, how.now_us)
        if before is not None and not how.serve:
            return self._stay(tr, ticket, before)
        served = self._serve(tr, ticket, how, work or self._ask_work(tr), registered=True)
        if served is not None:
            return served
        if how.leave:
            return self._leave(tr, ticket)
        return self._stay(tr, ticket, before) if before is not None else self._lead(tr, ticket)

    def pass_by(self, tr: Transaction, count: int, params: bytes, how: Look) -> Turn:
        """Serve the line, and take what is left for one who stands behind it without a request.

        SERVED; AGAIN, if only others were served; or LEFT, having written nothing, if there was nothing.
        Reads the first requests, items and results by snapshot; writes what serving writes; conflicts with
        whoever uses one of them.
        """
        passing = Ticket(-1, b"", count, params)
        served = self._serve(tr, passing, how, self._ask_work(tr), registered=False)
        return served or Turn(Outcome.LEFT, wrote=False)

    def withdraw(self, tr: Transaction, ticket: Ticket, now_us: int) -> None:
        """Leave the line for good, giving back what was delivered meanwhile.

        Reads the request, its notice and its results serialisably; conflicts with whoever serves it.
        """
        notice = tr.get(self.keys.notice(ticket.rid)).value
        if notice is not None:
            self._collect(tr, ticket, notice_of(notice), Look(now_us, wanted=0))
        elif tr.get(self.keys.request(ticket)).present():
            self._leave(tr, ticket)

    def anyone_alive(self, tr: Transaction, requests: Range, now_us: int) -> bool:
        """Whether one of `requests` has an owner who lives."""
        known = [self.keys.ticket_of(request.key, request.value) for request in requests]
        return bool(self._living(tr, known, now_us)[0])

    def ask_due(self, tr: Transaction) -> Range:
        """Ask, by snapshot, for the results that lie ready, in order of their deadlines."""
        due = self.keys.due
        return tr.snapshot.get_range(due.start, due.stop, limit=limits.RESULTS_RETURNED_MAX)

    def overdue(self, due: Range, now_us: int) -> list[Due]:
        """Those of `due` that nobody has collected in time."""
        waiting = (self.keys.due_of(entry.key) for entry in due.to_list())
        return [entry for entry in waiting if entry.deadline_us < now_us]

    def return_overdue(self, tr: Transaction, overdue: Sequence[Due]) -> None:
        """Make the items of `overdue` results available again, in their old places.

        Reads their notices and results serialisably, clears both; conflicts with their collection.
        """
        asked = [
            (entry, tr.get(self.keys.notice(entry.rid)), self._ask_results(tr, entry.rid))
            for entry in overdue
        ]
        for entry, found, results in asked:
            notice = None if found.value is None else notice_of(found.value)
            if notice is not None and notice.deadline_us == entry.deadline_us:
                self.source.give_back(tr, _inside(notice) or self._beside(results))
                self._clear_results(tr, entry.rid, notice)
            tr.clear(self.keys.due_key(entry))

    def leave_results(
        self, tr: Transaction, ticket: Ticket, deliveries: Sequence[Delivery], notice: Notice
    ) -> None:
        """Lay `deliveries` ready for the owner of `ticket`, until the deadline in `notice`."""
        results = [(delivery.id, delivery.value) for delivery in deliveries]
        if sum(len(item_id) + len(value) for item_id, value in results) > limits.NOTICE_BYTES_MAX:
            for item_id, value in results:
                tr.set(self.keys.result(ticket.rid, item_id), value)
        else:
            notice = replace(notice, results=results)
        tr.set(self.keys.notice(ticket.rid), notice_value(notice))
        tr.set(self.keys.due_key(Due(notice.deadline_us, ticket.rid)), b"")

    def clear_results(self, tr: Transaction) -> None:
        """Forget everything that lies ready. Blind: their owners, if alive, register again."""
        for column in (self.keys.due, self.keys.all_notices, self.keys.all_results):
            tr.clear_range(column.start, column.stop)

    # One look, step by step.

    def _ask_place(self, tr: Transaction, ticket: Ticket) -> Range:
        """Ask for the own request and the one before it."""
        upto = self.keys.requests_upto(ticket)
        return tr.snapshot.get_range(upto.start, upto.stop, limit=2, reverse=True)

    def _place_in(self, found: Range, ticket: Ticket) -> tuple[bool, bytes | None]:
        """Whether `ticket` stands in the line, and behind which request, if any."""
        keys = [request.key for request in found]
        stands = keys[:1] == [self.keys.request(ticket)]
        return stands, next(iter(keys[1:]), None)

    def _ask_work(self, tr: Transaction) -> _Work:
        requests = self.keys.requests
        return _Work(
            tr.snapshot.get_range(requests.start, requests.stop, limit=limits.SERVE_MAX),
            self.source.available(tr, 2 * limits.SERVE_MAX),
            self.ask_due(tr),
        )

    def _ask_results(self, tr: Transaction, rid: bytes) -> Range:
        results = self.keys.results(rid)
        return tr.get_range(results.start, results.stop, limit=limits.SERVE_MAX)

    def _beside(self, results: Range) -> list[Delivery]:
        return [Delivery(self.keys.item_id_of(result.key), result.value) for result in results.to_list()]

    def _collect_and_relay(self, tr: Transaction, ticket: Ticket, notice: Notice, how: Look) -> Turn:
        """Whoever is served first serves, as it leaves, those who have come since: its server has not
        seen them, and nobody else would come to them before their patience ends.
        """
        turn = self._collect(tr, ticket, notice, how)
        if how.relay and notice.relay:
            # Asked for only now: collecting may give items back, and change tasks that it does not get.
            self._serve(tr, ticket, how, self._ask_work(tr), registered=True)
        return turn

    def _collect(self, tr: Transaction, ticket: Ticket, notice: Notice, how: Look) -> Turn:
        deliveries = _inside(notice) or self._beside(self._ask_results(tr, ticket.rid))
        answers = self.source.collect(tr, deliveries[: how.wanted])
        if deliveries[how.wanted :]:
            self.source.give_back(tr, deliveries[how.wanted :])
        self._clear_results(tr, ticket.rid, notice)
        tr.clear(self.keys.due_key(Due(notice.deadline_us, ticket.rid)))
        return Turn(Outcome.SERVED if deliveries else Outcome.GONE, answers, crowd=notice.crowd)

    def _clear_results(self, tr: Transaction, rid: bytes, notice: Notice) -> None:
        if not notice.results:
            beside = self.keys.results(rid)
            tr.clear_range(beside.start, beside.stop)
        tr.clear(self.keys.notice(rid))

    # The watches are of a transaction that wrote nothing: it saw what they wait to see changed.

    def _stay(self, tr: Transaction, ticket: Ticket, before: bytes) -> Turn:
        """Wait behind the request `before`.

        It may be one that a server in flight does not see, having come to its place after that one's read:
        so one's own is watched as well.
        """
        watches = [tr.watch(self.keys.request(ticket)), tr.watch(before)]
        return Turn(Outcome.WAIT, wrote=False, watches=watches)

    def _lead(self, tr: Transaction, ticket: Ticket) -> Turn:
        """Wait at the head: for something to hand out, or for one who passes by and serves."""
        due_us = self.source.ask_next_due(tr)()
        watches = [tr.watch(self.keys.request(ticket)), tr.watch(self.source.doorbell)]
        return Turn(Outcome.WAIT, wrote=False, watches=watches, leads=True, due_us=due_us)

    def _serve(self, tr: Transaction, mine: Ticket, how: Look, work: _Work, registered: bool) -> Turn | None:
        """What serving came to; None if there was nothing to do, and nothing was written."""
        tidied = self.source.tidy(tr)
        offers = self.source.available(tr, 2 * limits.SERVE_MAX) if tidied else work.offers
        overdue = self.overdue(work.due, how.now_us)
        if overdue:
            self.return_overdue(tr, overdue)
            return Turn(Outcome.AGAIN)
        live, dead = self._living(
            tr, [self.keys.ticket_of(r.key, r.value) for r in work.requests.to_list()], how.now_us
        )
        if not registered and len(live) + len(dead) < limits.SERVE_MAX:  # else there may be more before it
            live.append(mine)
        pairs = self._pair(mine, live, offers, how)
        if not pairs and not dead:
            return Turn(Outcome.AGAIN) if tidied else None
        leaving = [*dead, *(ticket for ticket, _ in pairs if registered or ticket != mine)]
        return self._act(tr, mine, pairs, leaving, how)

    def _living(
        self, tr: Transaction, requests: Sequence[tuple[Ticket, int]], now_us: int
    ) -> tuple[list[Ticket], list[Ticket]]:
        """Requests whose owners live, and those whose do not; a renewal is read only where it matters."""
        doubtful = {
            ticket: tr.snapshot.get(self.keys.renewal(ticket))
            for ticket, deadline in requests
            if deadline < now_us
        }
        dead = [ticket for ticket, renewal in doubtful.items() if not _renewed(renewal.value, now_us)]
        return [ticket for ticket, _ in requests if ticket not in dead], dead

    def _pair(self, mine: Ticket, live: Sequence[Ticket], offers: Iterable[Offer], how: Look) -> list["Pair"]:
        counts = [min(how.wanted, mine.count) if ticket == mine else ticket.count for ticket in live]
        needed = min(sum(counts), limits.SERVE_MAX)
        found = list(within(limits.SERVE_BYTES_MAX, islice(offers, needed + len(how.tried))))
        lost = len(set(how.tried).difference(offer.id for offer in found))
        return pair(live, counts, passing_over(lost, found, needed))

    def _act(
        self,
        tr: Transaction,
        mine: Ticket,
        pairs: Sequence["Pair"],
        leaving: Sequence[Ticket],
        how: Look,
    ) -> Turn:
        self._protect(tr, leaving, pairs)
        for ticket in leaving:
            self._clear_request(tr, ticket)
        own: list[Delivery] = []
        relay = how.crowded or len(pairs) >= limits.CROWD_MIN
        for ticket, offers in pairs:
            deliveries = self.source.deliver(tr, offers, ticket.params)
            if ticket == mine:
                own = deliveries
            else:
                notice = Notice(how.now_us + DEADLINE_US, len(pairs), relay)
                self.leave_results(tr, ticket, deliveries, notice)
                relay = False
        return Turn(
            Outcome.SERVED if own else Outcome.AGAIN,
            self.source.collect(tr, own),
            paired=[offer.id for _, offers in pairs for offer in offers],
            crowd=len(pairs),
        )

    def _protect(self, tr: Transaction, requests: Iterable[Ticket], pairs: Sequence["Pair"]) -> None:
        """Before the first write: afterwards FoundationDB would drop these conflicts silently."""
        for ticket in requests:
            tr.add_read_conflict_key(self.keys.request(ticket))
        for _, offers in pairs:
            self.source.claim(tr, offers)

    def _renew(self, tr: Transaction, ticket: Ticket, now_us: int) -> Turn:
        tr.add_read_conflict_key(self.keys.request(ticket))  # else a renewal may outlive its request
        tr.set(self.keys.renewal(ticket), renewal_value(now_us + DEADLINE_US))
        return Turn(Outcome.AGAIN)

    def _leave(self, tr: Transaction, ticket: Ticket) -> Turn:
        tr.add_read_conflict_key(self.keys.request(ticket))
        self._clear_request(tr, ticket)
        return Turn(Outcome.LEFT)

    def _clear_request(self, tr: Transaction, ticket: Ticket) -> None:
        tr.clear(self.keys.request(ticket))
        tr.clear(self.keys.renewal(ticket))


Pair = tuple[Ticket, Sequence[Offer]]


def _inside(notice: Notice) -> list[Delivery]:
    return [Delivery(item_id, value) for item_id, value in notice.results]


def _renewed(value: bytes | None, now_us: int) -> bool:
    return value is not None and deadline_of(value) >= now_us


def within(bytes_max: int, offers: Iterable[Offer]) -> Iterator[Offer]:
    """The first of `offers` whose stored values fit into `bytes_max`, and the very first in any case."""
    total = 0
    for offer in offers:
        total += len(offer.value)
        if total > bytes_max and total != len(offer.value):
            return
        yield offer


def passing_over(lost: int, offers: Sequence[Offer], needed: int) -> Sequence[Offer]:
    """`needed` offers, leaving the contended head to those who won it last time: up to `lost` of the first.

    Never so many that somebody goes without, because an answer of "nothing" must be true; and of a key all or
    none, because what comes after its head must not come before it.
    """
    for start in range(lost, 0, -1):
        left = {offer.key for offer in offers[:start] if offer.key}
        rest = [offer for offer in offers[start:] if offer.key not in left]
        if len(rest) >= needed:
            return rest[:needed]
    return offers[:needed]


def pair(requests: Sequence[Ticket], counts: Sequence[int], offers: Sequence[Offer]) -> list[Pair]:
    """Offers to requests, both in order: as many as each asks for and one collection can carry."""
    pairs: list[Pair] = []
    rest = offers
    for ticket, count in zip(requests, counts, strict=True):
        portion = portion_of(rest, count)
        rest = rest[len(portion) :]
        if portion:
            pairs.append((ticket, portion))
    return pairs


def portion_of(offers: Sequence[Offer], count: int) -> Sequence[Offer]:
    """The first `count` offers, fewer if their payloads (split ones count in full) are a lot to read."""
    total = 0
    for number, offer in enumerate(offers[:count]):
        total += offer.size_bytes
        if number and total > limits.BATCH_BYTES_MAX:
            return offers[:number]
    return offers[:count]
