"""The waiting line: a staged request set that serves contention and waiting alike.

A call registers a request, conflict-free like an enqueue, behind all that are there. Requests and items, both
in order, say who is to get what: to each request falls the *share* of its place. Whoever is awake takes its
own share, in a transaction of its own; two of them use nothing in common, so they do not conflict, and a pair
that leaves both orders leaves all others where they were. Whoever finds no share sleeps on watches of its own
request, which is gone once it is served, and of the one before it, without which it may be the first; the
first watches for items, and serves those who sleep behind it. Nobody has to: a client that is killed owes
nothing. What an item is, and how it is handed to a request, is the `Source`'s business: a recipe queue moves
the item, a task queue takes the lease in the requester's name.

Every function here works in one transaction and is bounded by limits.SERVE_*. The places only save work:
any two are safe who think that an item is theirs, because each adds a read-conflict key for every request and
every item that it pairs *before* it touches them. (Those who saw different requests would otherwise deliver
one item twice; and FoundationDB drops a read conflict on a key that the transaction has already written.)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct

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
from fdbqueue.line.shares import Offer, Pair, Plan, at_most, free_of, pair, within
from fdbqueue.seam import Future, KeyValue, Range, Transaction

DEADLINE_US = round(limits.REQUEST_DEADLINE_S * 1_000_000)


class Delivery(Struct, frozen=True):
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

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Deliver `offers` and collect them in one stroke, for an owner that is here."""

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        """Make deliveries that nobody collected available again, in their old places."""


class Outcome(Enum):
    SERVED = auto()  # the request has left the line, with answers
    LEFT = auto()  # withdrawn: nothing was available for it
    GONE = auto()  # somebody took the request for dead, or its results were cleared: register again
    AGAIN = auto()  # something was done for others: look again
    WAIT = auto()  # nothing to do until a watch fires
    PENDING = auto()  # as WAIT, but something lies there for requests ahead: serve them if it stays


@dataclass(frozen=True)
class Look:
    """How the owner of a request looks at the line this time."""

    now_us: int
    serve: bool = False  # pair all that there is, although others may be about to
    check: bool = False  # no watch fired: unless first, take nothing, and tell whether anything is PENDING
    leave: bool = False  # withdraw if there is nothing
    renew: bool = False
    called: bool = False  # its request has been seen to change: ask for the notice only, it will be there
    slept: bool = False  # so have those behind it, most likely: serve them, too
    alone: bool = False  # take nothing but the own share: the last attempt met somebody
    held_us: int = field(default_factory=lambda: round(limits.SHARE_HELD_S * 1_000_000))
    """Who stands before it for longer is served, too."""
    tidy: bool = False  # see first to what has come due, and to the dead
    ahead: int = 0  # so many items will go to those before it, as far as anybody knows
    wanted: int = limits.SERVE_MAX  # how many items still have a caller


@dataclass(frozen=True)
class Turn:
    """What came of a look."""

    outcome: Outcome
    answers: Sequence[Any] = ()
    wrote: bool = True
    watches: Sequence[Future] = ()  # the first is of the own request
    crowd: int = 0  # how many stood in the line
    ahead: int = 0  # how many items were for those before it
    due_us: int | None = None  # when to look again although no watch fired
    leads: bool = False  # it waits at the head, for items
    renewed: bool = False  # its deadline has been moved


@dataclass(frozen=True)
class _Asked:
    """The first requests, what is available, and when something comes due, asked for in one round trip."""

    offers: Iterable[Offer]
    offers_max: int
    next_due_us: Callable[[], int | None]
    requests: Range

    def is_due(self, now_us: int) -> bool:
        due_us = self.next_due_us()
        return due_us is not None and due_us <= now_us


@dataclass(frozen=True)
class _Seen:
    """The first requests in the line, whoever looks among them unless it stands too far behind."""

    live: Sequence[Ticket]
    dead: Sequence[Ticket]
    before: bytes | None
    """The request in front of the own one, of somebody who lives: the dead do not go by themselves. (Of who
    stands too far behind to know, anybody's.)"""
    place: int | None
    """How many live ones are before it; None if that is not known."""
    idle: Sequence[int]
    """Those of them, by number, that have stood there for long: asleep, slow, or dead since."""

    @property
    def is_first(self) -> bool:
        """Whether nobody stands before it who lives, as far as can be seen: then it looks after the dead."""
        return self.place == 0 or not self.live

    def only_checks(self, how: Look) -> bool:
        """True if this look must not take anything.

        The requests ahead sleep, and a watch may be waking one of them now: a look that served it would
        conflict with it. Among 200 waiting requests one such look or more falls into each wake-up.
        """
        return how.check and not self.is_first

    def counts(self, mine: Ticket, how: Look) -> list[int]:
        """How many items each is to get: of the own callers some may have left."""
        counts = [ticket.count for ticket in self.live]
        if self.place is not None:
            counts[self.place] = min(how.wanted, mine.count)
        return counts

    def to_serve(self, how: Look) -> Sequence[int]:
        """Whose shares to hand out, by number: the own one, and those of who sleeps before or behind. Not of
        those before it who have just come: they are about to take them.
        """
        everybody = range(len(self.live))
        if self.only_checks(how):
            return ()
        if how.serve:
            return everybody
        if self.place is None:
            return ()
        if how.alone:
            return (self.place,)
        return [*self.idle, *(everybody[self.place :] if how.slept else (self.place,))]


class Line:
    def __init__(self, keys: LineKeys, source: Source) -> None:
        self.keys = keys
        self.source = source

    def register(self, tr: Transaction, rid: bytes, count: int, params: bytes, now_us: int) -> None:
        """Join the line at its end; the stamp of the commit completes the `Ticket`.

        Reads whether the queue exists; writes the request; conflicts with nothing.
        """
        self.source.guard(tr)()
        tr.set_versionstamped_key(
            self.keys.request_to_be(rid), request_value(count, now_us + DEADLINE_US, params)
        )

    def find(self, tr: Transaction, rid: bytes) -> Ticket:
        """The place of a request that has just been registered; one without a stamp if it stands nowhere.

        Reads the last requests by snapshot.
        """
        requests = self.keys.requests
        last = tr.snapshot.get_range(
            requests.start, requests.stop, limit=limits.BATCH_ITEMS_MAX, reverse=True
        )
        known = (self.keys.ticket_of(request.key, request.value)[0] for request in last)
        return next((ticket for ticket in known if ticket.rid == rid), Ticket(b"", rid, 0))

    def look(self, tr: Transaction, ticket: Ticket, how: Look) -> Turn:
        """Collect what lies ready for `ticket`; else take its share of what is available; else say what to
        wait for.

        Reads the own notice serialisably, the own request where it relies on that, and what the source needs
        so; the rest by snapshot.
        Writes, and conflicts, as the turn it takes: collecting with whoever returns or clears the results,
        taking and serving with whoever uses a paired request or item, leaving and renewing with whoever
        removes this request; waiting writes nothing.
        """
        check = self.source.guard(tr)
        asked = None if how.called else self._ask(tr, ticket, how)
        notice = tr.get(self.keys.notice(ticket.rid)).value  # asked for last: the rest is there when it is
        check()
        if notice is not None:
            return self._collect(tr, ticket, notice_of(notice), how)
        asked = asked or self._ask(tr, ticket, how)
        seen = self._see(tr, ticket, asked, how)
        if seen is None:
            return Turn(Outcome.GONE, wrote=False)
        if how.renew and seen.before is None:
            return self._renew(tr, ticket, how.now_us)
        turn = self._take_part(tr, ticket, how, asked, seen)
        if turn is None and how.leave:
            return self._leave(tr, ticket)
        if turn is not None and turn.outcome not in (Outcome.WAIT, Outcome.PENDING):
            return turn
        if seen.before is not None:
            outcome = Outcome.WAIT if turn is None else turn.outcome
            return self._stay(tr, ticket, seen.before, how, outcome)
        return self._lead(tr, ticket, asked.next_due_us())

    def pass_by(self, tr: Transaction, count: int, params: bytes, how: Look) -> Turn:
        """Take what nobody in the line has a share in, for one who stands behind it without a request.

        SERVED; AGAIN, if something was done for others, or it cannot be said from here what is left; or LEFT,
        having written nothing, if nothing is.
        Reads the first requests, items and results by snapshot; writes what taking writes; conflicts with
        whoever uses the same items.
        """
        how, passing = replace(how, tidy=True), Ticket(b"", b"", count, params)
        asked = self._ask(tr, passing, how)
        seen = self._see_in_passing(tr, passing, asked, how)
        turn = self._take_part(tr, passing, how, asked, seen)
        if turn is None:
            return Turn(Outcome.LEFT, wrote=False)
        return replace(turn, outcome=Outcome.AGAIN) if turn.outcome is Outcome.WAIT else turn

    def withdraw(self, tr: Transaction, ticket: Ticket, now_us: int) -> None:
        """Leave the line for good, giving back what was delivered meanwhile.

        Reads the request, its notice and its results serialisably; conflicts with whoever serves it.
        """
        notice = tr.get(self.keys.notice(ticket.rid)).value
        if notice is not None:
            self._collect(tr, ticket, notice_of(notice), Look(now_us, wanted=0))
        elif tr.get(self.keys.request(ticket)).present():
            self._leave(tr, ticket)

    def alive_and_dead(
        self, tr: Transaction, requests: Iterable[KeyValue], now_us: int
    ) -> tuple[list[Ticket], list[Ticket]]:
        """The tickets of `requests`: those of living callers, and those of dead ones."""
        known = [self.keys.ticket_of(request.key, request.value) for request in requests]
        living, dead = self._living(tr, known, now_us)
        return [ticket for ticket, _ in living], dead

    def drop_dead(self, tr: Transaction, dead: Sequence[Ticket]) -> None:
        """Remove requests of dead callers.

        Conflicts: their renewal, their removal, their service by another transaction.
        """
        for ticket in dead:
            tr.add_read_conflict_key(self.keys.renewal(ticket))
        self._protect(tr, dead, ())
        for ticket in dead:
            self._clear_request(tr, ticket)

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
        asked = [(entry, tr.get(self.keys.notice(entry.rid))) for entry in overdue]
        for entry, found in asked:
            notice = None if found.value is None else notice_of(found.value)
            if notice is not None and notice.deadline_us == entry.deadline_us:
                self.source.give_back(tr, self._delivered(tr, entry.rid, notice))
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

    def _ask(self, tr: Transaction, mine: Ticket, how: Look) -> _Asked:
        requests, offers_max = self.keys.requests, _offers_max()
        if not how.slept and not how.serve:
            offers_max = min(how.ahead + how.wanted + limits.OFFERS_TO_SPARE, offers_max)
            requests = self.keys.requests_upto(mine) if mine.stamp else requests
        return _Asked(
            self.source.available(tr, offers_max),
            offers_max,
            self.source.ask_next_due(tr),
            tr.snapshot.get_range(requests.start, requests.stop, limit=limits.SERVE_MAX),
        )

    def _see(self, tr: Transaction, mine: Ticket, asked: _Asked, how: Look) -> _Seen | None:
        """Who stands in the line; None if `mine` does not."""
        known = self._known(asked.requests)
        at = next((at for at, (ticket, _) in enumerate(known) if ticket.rid == mine.rid), None)
        if at is None:
            stands, before = self._place_of(tr, mine)
            return self._seen(tr, known, None, how, before) if stands else None
        return self._seen(tr, known, at, how)

    def _see_in_passing(self, tr: Transaction, mine: Ticket, asked: _Asked, how: Look) -> _Seen:
        known = self._known(asked.requests)
        if len(known) == limits.SERVE_MAX:  # there may be more
            return self._seen(tr, known, None, how)
        return self._seen(tr, [*known, (mine, how.now_us + DEADLINE_US)], len(known), how)

    def _seen(
        self,
        tr: Transaction,
        known: Sequence[tuple[Ticket, int]],
        at: int | None,
        how: Look,
        before: bytes | None = None,
    ) -> _Seen:
        """`known`, with their deadlines, of which the own one is number `at`."""
        ahead, behind = (known, ()) if at is None else (known[:at], known[at + 1 :])
        live_ahead, dead_ahead = self._living(tr, ahead, how.now_us)
        live_behind, dead_behind = self._living(tr, behind, how.now_us)
        live = [*live_ahead, *(() if at is None else (known[at],)), *live_behind]
        if at is not None and live_ahead:
            before = self.keys.request(live_ahead[-1][0])
        long_ago_us = how.now_us - how.held_us + DEADLINE_US
        return _Seen(
            [ticket for ticket, _ in live],
            [*dead_ahead, *dead_behind],
            before,
            None if at is None else len(live_ahead),
            [number for number, (_, deadline_us) in enumerate(live_ahead) if deadline_us < long_ago_us],
        )

    def _known(self, requests: Range) -> list[tuple[Ticket, int]]:
        return [self.keys.ticket_of(request.key, request.value) for request in requests.to_list()]

    def _place_of(self, tr: Transaction, ticket: Ticket) -> tuple[bool, bytes | None]:
        """Whether `ticket` stands in the line, and behind which request, if any."""
        upto = self.keys.requests_upto(ticket)
        found = tr.snapshot.get_range(upto.start, upto.stop, limit=2, reverse=True)
        keys = [request.key for request in found]
        return keys[:1] == [self.keys.request(ticket)], next(iter(keys[1:]), None)

    def _delivered(self, tr: Transaction, rid: bytes, notice: Notice) -> list[Delivery]:
        """What lies in the notice, or beside it."""
        if notice.results:
            return [Delivery(item_id, value) for item_id, value in notice.results]
        under = self.keys.results(rid)
        results = tr.get_range(under.start, under.stop, limit=limits.SERVE_MAX)
        return [Delivery(self.keys.item_id_of(result.key), result.value) for result in results]

    def _collect(self, tr: Transaction, ticket: Ticket, notice: Notice, how: Look) -> Turn:
        deliveries = self._delivered(tr, ticket.rid, notice)
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

    def _stay(self, tr: Transaction, ticket: Ticket, before: bytes, how: Look, outcome: Outcome) -> Turn:
        """Wait behind the request `before`, which may stay when the own one is served; renew if it is time.

        The transaction may write: each request that it watches changes once, so nothing else aborts it.
        """
        watches = [tr.watch(self.keys.request(ticket)), tr.watch(before)]
        if how.renew:
            self._set_renewal(tr, ticket, how.now_us)
        return Turn(outcome, wrote=how.renew, watches=watches, renewed=how.renew)

    def _lead(self, tr: Transaction, ticket: Ticket, due_us: int | None) -> Turn:
        """Wait at the head, for an item, or for a passing call that serves.

        The transaction writes nothing: it watches the doorbell, so each put would abort it.
        """
        watches = [tr.watch(self.keys.request(ticket)), tr.watch(self.source.doorbell)]
        return Turn(Outcome.WAIT, wrote=False, watches=watches, due_us=due_us, leads=True)

    def _take_part(self, tr: Transaction, mine: Ticket, how: Look, asked: _Asked, seen: _Seen) -> Turn | None:
        """What taking and serving came to. None if there is nothing at all, and nothing was written; WAIT if
        what there is is for others, or may be: they have not taken it yet, and perhaps never will.
        """
        plan = self._plan(tr, mine, how, asked, seen)
        if seen.only_checks(how):
            return Turn(Outcome.PENDING if plan.any_available else Outcome.WAIT, wrote=False)
        tidies = how.serve or how.tidy or (seen.is_first and asked.is_due(how.now_us))
        if plan.pairs and not tidies:
            return self._act(tr, mine, plan, how, seen)
        if not (tidies or seen.is_first or how.leave):
            return Turn(Outcome.WAIT, wrote=False)
        due, tidied = self.ask_due(tr), self.source.tidy(tr)
        overdue = self.overdue(due, how.now_us)
        if overdue:
            self.return_overdue(tr, overdue)
            return Turn(Outcome.AGAIN)
        if tidied:
            everything = replace(
                asked, offers=self.source.available(tr, _offers_max()), offers_max=_offers_max()
            )
            plan = self._plan(tr, mine, how, everything, seen)
        if plan.pairs or self._to_drop(seen, how):
            return self._act(tr, mine, plan, how, seen)
        if tidied:
            return Turn(Outcome.AGAIN)
        return Turn(Outcome.WAIT, wrote=False) if plan.any_available else None

    def _plan(self, tr: Transaction, mine: Ticket, how: Look, asked: _Asked, seen: _Seen) -> Plan:
        """Who is to get what; asks for more if the guess of how many there must be was too low."""
        counts = seen.counts(mine, how)
        served = seen.to_serve(how)
        first, end = (served[0], served[-1] + 1) if served else (len(counts), len(counts))
        found = self._found(tr, asked, needed=sum(counts[:end]) if served else 1)
        before = pair(seen.live[:first], counts[:first], found)
        ahead = sum(len(offers) for _, offers in before)
        shares = pair(seen.live[first:end], counts[first:end], found[ahead:])
        chosen = free_of(found[:ahead], shares, [seen.live[number] for number in served])
        return Plan(at_most(limits.SERVE_MAX, chosen), sum(counts[: seen.place]), bool(found))

    def _found(self, tr: Transaction, asked: _Asked, needed: int) -> list[Offer]:
        found = within(limits.SERVE_BYTES_MAX, islice(asked.offers, needed))
        if len(found) == asked.offers_max < min(needed, _offers_max()):
            more = self.source.available(tr, min(needed, _offers_max()))
            return within(limits.SERVE_BYTES_MAX, islice(more, needed))
        return found

    def _living(
        self, tr: Transaction, requests: Sequence[tuple[Ticket, int]], now_us: int
    ) -> tuple[list[tuple[Ticket, int]], list[Ticket]]:
        """Requests whose owners live, with their deadlines, and those whose do not; a renewal is read only
        where it matters.
        """
        doubtful = {
            ticket: tr.snapshot.get(self.keys.renewal(ticket))
            for ticket, deadline in requests
            if deadline < now_us
        }
        dead = [ticket for ticket, renewal in doubtful.items() if not _renewed(renewal.value, now_us)]
        return [entry for entry in requests if entry[0] not in dead], dead

    def _act(self, tr: Transaction, mine: Ticket, plan: Plan, how: Look, seen: _Seen) -> Turn:
        leaving = [*self._to_drop(seen, how), *(ticket for ticket, _ in plan.pairs if ticket.stamp)]
        self._protect(tr, leaving, plan.pairs)
        for ticket in leaving:
            self._clear_request(tr, ticket)
        answers: Sequence[Any] = ()
        for ticket, offers in plan.pairs:
            if ticket == mine:
                answers = self.source.hand_over(tr, offers, ticket.params)
            else:
                deliveries = self.source.deliver(tr, offers, ticket.params)
                self.leave_results(tr, ticket, deliveries, Notice(how.now_us + DEADLINE_US, len(seen.live)))
        outcome = Outcome.SERVED if plan.has_own(mine) else Outcome.AGAIN
        return Turn(outcome, answers, crowd=len(seen.live), ahead=plan.ahead)

    def _to_drop(self, seen: _Seen, how: Look) -> Sequence[Ticket]:
        """The dead, unless another is nearer: all who take their shares would conflict over them."""
        return seen.dead if seen.is_first or how.serve or how.tidy else ()

    def _protect(self, tr: Transaction, requests: Iterable[Ticket], pairs: Sequence[Pair]) -> None:
        """Before the first write: afterwards FoundationDB would drop these conflicts silently."""
        for ticket in requests:
            tr.add_read_conflict_key(self.keys.request(ticket))
        for _, offers in pairs:
            self.source.claim(tr, offers)

    def _renew(self, tr: Transaction, ticket: Ticket, now_us: int) -> Turn:
        self._set_renewal(tr, ticket, now_us)
        return Turn(Outcome.AGAIN, renewed=True)

    def _set_renewal(self, tr: Transaction, ticket: Ticket, now_us: int) -> None:
        tr.add_read_conflict_key(self.keys.request(ticket))  # else a renewal may outlive its request
        tr.set(self.keys.renewal(ticket), renewal_value(now_us + DEADLINE_US))

    def _leave(self, tr: Transaction, ticket: Ticket) -> Turn:
        tr.add_read_conflict_key(self.keys.request(ticket))
        self._clear_request(tr, ticket)
        return Turn(Outcome.LEFT)

    def _clear_request(self, tr: Transaction, ticket: Ticket) -> None:
        tr.clear(self.keys.request(ticket))
        tr.clear(self.keys.renewal(ticket))


def _offers_max() -> int:
    """So many are looked at for one whose place is far back: behind it one waits."""
    return 2 * limits.SERVE_MAX


def _renewed(value: bytes | None, now_us: int) -> bool:
    return value is not None and deadline_of(value) >= now_us
