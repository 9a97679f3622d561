"""The waiting line: a staged request set that serves contention and waiting alike.

A call registers a request behind all others, conflict-free like an enqueue. The n-th request is entitled
to the n-th item: its *share*. Taking a share removes one request and one item, so every other request keeps
its share, and two takers never conflict. A request without a share sleeps on two watches: of its own key,
which is cleared when it is served, and of the request ahead, without which it may be the first. The first
request watches for items, and serves the sleepers behind it. No request depends on that: a killed client
owes nothing.

A look is one transaction in three steps: see (read), decide (line/decision.py) and apply (write). All reads
but those of the notice are snapshots. A decision that rests on stale ones is safe: the transaction adds a
read-conflict key for every request and every item of a pair *before* it touches them. (Without those keys
two transactions that saw different requests would deliver one item twice. FoundationDB drops a read conflict
on a key that the transaction has already written.) Every transaction is bounded by limits.SERVE_*.

Results are items that lie ready for a request until its owner collects them. Life tells whether the owner of
a request still lives, before the deadline of the request tells. In a directory the kernel knows at once that
a process is gone. The params of a request begin with the name of its process, except those of a session with
a name, which another process may go on with.

On a cluster, a request that waits renews itself often: a *sign of life*. A process notes when it first saw
each sign. One that stays the same for limits.SILENT_S means that the owner is *silent*: dead, or slow. No two
clocks are compared. A silent request has no share, and keeps its place until its deadline. Results that lie
ready for `limits.SILENT_S` have a silent owner: they go back.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum, auto
from itertools import islice
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.binding import bypass_storage_quota, is_gone
from fdbqueue.core.errors import QueueDropped
from fdbqueue.core.line.decision import (
    SLEPT,
    Decision,
    Delivery,
    Due,
    LineKeys,
    Look,
    Notice,
    Offer,
    Otherwise,
    Pair,
    Reason,
    Seen,
    Sleep,
    Source,
    Step,
    Take,
    Ticket,
    Tidied,
    deadline_of,
    decide,
    items_needed,
    notice_of,
    notice_value,
    passing,
    renewal_value,
    request_value,
    within,
)
from fdbqueue.core.seam import EXACT, Future, KeyValue, Range, ReadTransaction, Transaction

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


def request_lasts_us() -> int:
    """Time from the begin of a request, or its renewal, to its deadline."""
    return round(limits.REQUEST_DEADLINE_S * 1_000_000)


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
        """The results past their deadlines, and those whose owners have been silent for `silent_us`."""
        signs = {one.rid: SERVED for one in lying}
        since_us = {} if self._sightings is None else self._sightings.since_us(signs, now_us)
        return [
            one
            for one in lying
            if one.deadline_us < now_us or now_us - since_us.get(one.rid, now_us) > silent_us
        ]


SERVED = b""
"""That of a served request, which gives none: the time of its last one, or of its first sight, goes on."""


class Sightings:
    """The signs of life that a process has seen in one line."""

    def __init__(self) -> None:
        self._seen: dict[bytes, tuple[bytes | None, int]] = {}

    def since_us(self, signs: Mapping[bytes, bytes | None], now_us: int) -> Mapping[bytes, int]:
        """Note the signs by request, None for one without any yet. Return when each was first seen."""
        seen = {}
        for rid, sign in signs.items():
            last, first_us = self._seen.get(rid, (sign, now_us))
            seen[rid] = sign, first_us if sign in (last, SERVED) else now_us
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
) -> Callable[[], list[tuple[Ticket, int, int]]]:
    """Ask for the live ones of the first `limit` requests, in order, each with its first deadline and its
    present one, in microseconds.
    """
    rows, late = keys.requests, keys.all_renewals
    requests = tr.get_range(rows.start, rows.stop, limit=limit, streaming_mode=EXACT)
    renewals = tr.get_range(late.start, late.stop, limit=limit, streaming_mode=EXACT)

    def live() -> list[tuple[Ticket, int, int]]:
        renewed = {bytes(row.key)[len(late.start) :]: deadline_of(row.value) for row in renewals.to_list()}
        found = [_with_deadline(keys, row.key, row.value, renewed) for row in requests.to_list()]
        return [one for one in found if one[-1] > now_us]

    return live


def _with_deadline(
    keys: LineKeys, key: bytes, value: bytes, renewed: dict[bytes, int]
) -> tuple[Ticket, int, int]:
    ticket, first_us = keys.ticket_of(bytes(key), bytes(value))
    return ticket, first_us, max(first_us, renewed.get(ticket.stamp + ticket.rid, 0))


class Outcome(Enum):
    SERVED = auto()  # the request has left the line, with answers
    LEFT = auto()  # withdrawn: nothing was available for it
    GONE = auto()  # the request was removed as dead, or its results were cleared: register again
    AGAIN = auto()  # something was done for other requests: look again
    WAIT = auto()  # nothing to do until a watch fires
    PENDING = auto()  # as WAIT, but items lie there for requests ahead: serve those requests if they stay


class Turn(Struct, frozen=True):
    outcome: Outcome
    answers: Sequence[Any] = ()
    wrote: bool = True
    watches: Sequence[Future] = ()
    """The first one is a watch of this request."""
    crowd: int = 0
    """Number of requests in the line."""
    ahead: int = 0
    """Items that belonged to requests ahead."""
    due_us: int | None = None
    """Time of the next look if no watch fires before."""
    leads: bool = False
    """The request waits at the head, for items."""
    follows: bytes = b""
    """The params of the nearest live request ahead, as far as they are known."""
    renewed: bool = False
    """Its deadline has been moved."""
    is_watched: bool = False
    """Others tell by its signs of life if it is silent."""
    may_be_lost: bool = False
    """A power cut may undo the look: it has changed requests and leases only."""


class _Asked(Struct, frozen=True):
    """The first requests, the first items and the next due time, asked for in one round trip."""

    offers: Iterable[Offer]
    offers_max: int
    next_due_us: Callable[[], int | None]
    requests: Range
    signs: Range | None


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


class Line:
    def __init__(self, keys: LineKeys, source: Source) -> None:
        self.keys = keys
        self.source = source
        self.results = Results(keys, source)
        self.life = Life(keys)

    def register(self, tr: Transaction, rid: bytes, count: int, params: bytes, now_us: int) -> None:
        """Join the line at its end; the stamp of the commit completes the `Ticket`.

        Conflicts: another registration of `rid`, and its withdrawal: one that arrives late fails.
        """
        self.source.guard(tr)()
        bypass_storage_quota(tr)  # a take frees space: it must work on a full disk, too
        notice = self.keys.notice(rid)
        tr.add_read_conflict_key(notice)
        tr.add_write_conflict_key(notice)
        tr.set_versionstamped_key(
            self.keys.request_to_be(rid), request_value(count, now_us + request_lasts_us(), params)
        )

    def find(self, tr: Transaction, rid: bytes) -> Ticket:
        """The ticket of a request that has just been registered; without a stamp if it is not in the line.

        Reads the last requests up to its own version by snapshot: those of a backup that was restored into a
        database with lower versions stand behind.
        """
        requests = self.keys.requests_at(tr.get_read_version().wait())
        last = tr.snapshot.get_range(
            requests.start, requests.stop, limit=limits.BATCH_ITEMS_MAX, reverse=True
        )
        known = (self.keys.ticket_of(request.key, request.value)[0] for request in last)
        return next((ticket for ticket in known if ticket.rid == rid), Ticket(b"", rid, 0))

    def look(self, tr: Transaction, ticket: Ticket, look: Look) -> Turn:
        """Collect the results of `ticket`; else take its share; else tell the watches to wait for.

        Writes as the decision says; a request that waits writes nothing, or its renewal.
        Conflicts: collecting, with the return and the removal of the results; taking and serving, with every
        use of a paired request or item; leaving and renewing, with the removal of this request.
        Round trips: one; one more if the estimate of `look.ahead` was too low, or after tidying.
        """
        check = self.source.guard(tr)
        asked = None if look.reason is Reason.NOTICE else self._ask(tr, ticket, look)
        notice = tr.get(self.keys.notice(ticket.rid)).value  # asked for last: the rest is there when it is
        check()
        if notice is not None:
            return self._collect(tr, ticket, notice, look.wanted)
        seen = self._see(tr, ticket, asked or self._ask(tr, ticket, look), look)
        return Turn(Outcome.GONE, wrote=False) if seen is None else self._proceed(tr, seen, look)

    def pass_by(self, tr: Transaction, count: int, params: bytes, now_us: int) -> Turn:
        """Take up to `count` items that belong to no request, without a request.

        SERVED; LEFT, having written nothing, if nothing is available; else AGAIN: something was done for
        other requests, or the line is too long to tell.
        Reads the first requests, items and results by snapshot.
        Conflicts: every use of the same items.
        """
        look, mine = passing(Look(now_us, wanted=count)), Ticket(b"", b"", count, params)
        known = self._known((asked := self._ask(tr, mine, look)).requests)
        may_be_more = len(known) == limits.SERVE_MAX
        entries = known if may_be_more else [*known, (mine, now_us + request_lasts_us())]
        at = None if may_be_more else len(known)
        seen = self._seen(tr, mine, entries, at, look, self._silent(asked, known, look))
        return self._proceed(tr, self._with_items(tr, seen, asked, look), look)

    def withdraw(self, tr: Transaction, ticket: Ticket) -> Turn:
        """Leave the line for good, and give back the items that were delivered meanwhile.

        Conflicts: its service; without a stamp, its registration, which may still be under way.
        """
        check, asked = self.source.guard(tr), tr.get(self.keys.notice(ticket.rid))
        with suppress(QueueDropped):  # then the request has gone
            check()
        notice = asked.value
        if notice is not None:
            return self._collect(tr, ticket, notice, wanted=0)
        if not ticket.stamp:
            tr.clear(self.keys.notice(ticket.rid))  # a write, which a late registration meets
        elif tr.get(self.keys.request(ticket)).present():
            return self._leave(tr, ticket)
        return Turn(Outcome.LEFT, may_be_lost=self.source.hands_out_leases)

    def alive_and_dead(
        self, tr: Transaction, requests: Iterable[KeyValue], now_us: int
    ) -> tuple[list[Ticket], list[Ticket]]:
        """The tickets of `requests`: those of living callers, and those of dead ones."""
        known = [self.keys.ticket_of(request.key, request.value) for request in requests]
        living, dead = self.life.living(tr, known, now_us)
        return [ticket for ticket, _ in living], dead

    def drop_dead(self, tr: Transaction, dead: Sequence[Ticket]) -> None:
        """Remove requests of dead callers.

        Conflicts: their renewal, their removal, their service by another transaction.
        """
        self._protect(tr, dead, dead, ())
        for ticket in dead:
            self._clear_request(tr, ticket)

    def is_left(self, tr: Transaction, now_us: int) -> bool:
        """True if no call uses the line. Removes the requests of dead callers; items that lie ready for them
        go back, and may use the queue again.

        Reads requests and due times serialisably. Conflicts: every new one.
        """
        due, rows = self.results.ask_due(tr), self.keys.requests
        requests = tr.get_range(rows.start, rows.stop, limit=limits.SERVE_MAX)
        first_due = tr.get_range(self.keys.due.start, self.keys.due.stop, limit=1)
        if first_due.to_list():
            self.results.return_overdue(tr, self.results.overdue(due, now_us))
            return False
        living, dead = self.alive_and_dead(tr, requests, now_us)
        self.drop_dead(tr, dead)
        return not living and len(dead) < limits.SERVE_MAX

    # See: the reads of one look.

    def _ask(self, tr: Transaction, mine: Ticket, look: Look) -> _Asked:
        requests, offers_max = self.keys.requests, _offers_max()
        if look.reason not in SLEPT:
            offers_max = min(look.ahead + look.wanted + limits.OFFERS_TO_SPARE, offers_max)
            requests = self.keys.requests_upto(mine) if mine.stamp else requests
        return _Asked(
            self.source.available(tr, offers_max, look.now_us),
            offers_max,
            self.source.ask_next_due(tr),
            tr.snapshot.get_range(requests.start, requests.stop, limit=limits.SERVE_MAX),
            self.life.ask_signs(tr),
        )

    def _silent(self, asked: _Asked, known: Sequence[tuple[Ticket, int]], look: Look) -> Collection[bytes]:
        return self.life.silent(asked.signs, [ticket for ticket, _ in known], look.now_us, look.silent_us)

    def _see(self, tr: Transaction, mine: Ticket, asked: _Asked, look: Look) -> Seen | None:
        known = self._known(asked.requests)
        at = next((at for at, (ticket, _) in enumerate(known) if ticket.rid == mine.rid), None)
        seen = self._seen(tr, mine, known, at, look, self._silent(asked, known, look))
        if at is None:
            is_there, before = self._place_of(tr, mine)
            if not is_there:
                return None
            seen = replace(seen, before=before)
        return self._with_items(tr, seen, asked, look)

    def _seen(
        self,
        tr: Transaction,
        mine: Ticket,
        known: Sequence[tuple[Ticket, int]],
        at: int | None,
        look: Look,
        silent: Collection[bytes],
    ) -> Seen:
        """The requests in `known`, with their deadlines; number `at` is ours. No items yet."""
        ahead, behind = (known, ()) if at is None else (known[:at], known[at + 1 :])
        live_ahead, dead_ahead = self.life.living(tr, ahead, look.now_us)
        live_behind, dead_behind = self.life.living(tr, behind, look.now_us)
        live_ahead, live_behind = (
            [entry for entry in some if entry[0].rid not in silent] for some in (live_ahead, live_behind)
        )
        live = [*live_ahead, *(() if at is None else (known[at],)), *live_behind]
        idle_until_us = look.now_us - look.held_us + request_lasts_us()
        return Seen(
            mine,
            [ticket for ticket, _ in live],
            [*dead_ahead, *dead_behind],
            before=self.keys.request(live_ahead[-1][0]) if at is not None and live_ahead else None,
            place=None if at is None else len(live_ahead),
            idle=[place for place, (_, deadline_us) in enumerate(live_ahead) if deadline_us < idle_until_us],
            is_short=len(known) < limits.SERVE_MAX,
        )

    def _known(self, requests: Range) -> list[tuple[Ticket, int]]:
        return [self.keys.ticket_of(request.key, request.value) for request in requests.to_list()]

    def _place_of(self, tr: Transaction, ticket: Ticket) -> tuple[bool, bytes | None]:
        """True if `ticket` is in the line, and the key of the request ahead, if any."""
        upto = self.keys.requests_upto(ticket)
        found = tr.snapshot.get_range(upto.start, upto.stop, limit=2, reverse=True)
        keys = [request.key for request in found]
        return keys[:1] == [self.keys.request(ticket)], next(iter(keys[1:]), None)

    def _with_items(self, tr: Transaction, seen: Seen, asked: _Asked, look: Look) -> Seen:
        """`seen` with its items; asks for more if the estimate of `look.ahead` was too low."""
        needed = items_needed(seen, look)
        found = within(limits.SERVE_BYTES_MAX, islice(asked.offers, needed))
        if len(found) == asked.offers_max < min(needed, _offers_max()):
            more = self.source.available(tr, min(needed, _offers_max()), look.now_us)
            found = within(limits.SERVE_BYTES_MAX, islice(more, needed))
        return replace(seen, offers=found, next_due_us=asked.next_due_us())

    # Apply: the writes of one look.

    def _proceed(self, tr: Transaction, seen: Seen, look: Look) -> Turn:
        decision = decide(seen, look)
        if decision is Step.TIDY:
            seen = self._tidy(tr, seen, look)
            decision = decide(seen, look)
        return self._apply(tr, seen, look, decision)

    def _tidy(self, tr: Transaction, seen: Seen, look: Look) -> Seen:
        due, tidied = self.results.ask_due(tr), self.source.ask_tidy(tr, look.now_us)()
        overdue = self.life.overdue(self.results.lying(due), look.now_us, look.silent_us)
        if overdue:
            self.results.return_overdue(tr, overdue)
            return replace(seen, tidied=Tidied.RESULTS)
        if not tidied:
            return replace(seen, tidied=Tidied.NO_CHANGE)
        found = within(
            limits.SERVE_BYTES_MAX,
            islice(self.source.available(tr, _offers_max(), look.now_us), items_needed(seen, look)),
        )
        return replace(seen, offers=found, tidied=Tidied.ITEMS)

    def _apply(self, tr: Transaction, seen: Seen, look: Look, decision: Decision) -> Turn:
        if isinstance(decision, Take):
            return self._take(tr, seen, look, decision)
        if isinstance(decision, Sleep):
            return self._sleep(tr, seen, look, decision)
        if decision is Step.LEAVE:
            return self._leave(tr, seen.mine)
        if decision is Step.RENEW:
            self._renew(tr, seen.mine, look.now_us)
            is_watched = self._is_watched(seen)
            return Turn(
                Outcome.AGAIN, renewed=True, is_watched=is_watched, may_be_lost=self._may_be_lost(seen)
            )
        return Turn(Outcome.AGAIN)

    def _take(self, tr: Transaction, seen: Seen, look: Look, take: Take) -> Turn:
        leaving = [*take.dead, *(ticket for ticket, _ in take.pairs if ticket.stamp)]
        self._protect(tr, leaving, take.dead, take.pairs)
        for ticket in leaving:
            self._clear_request(tr, ticket)
        crowd, outcome = len(seen.live), Outcome.AGAIN
        answers: Sequence[Any] = ()
        may_be_lost = self._may_be_lost(seen)
        for ticket, offers in take.pairs:
            if ticket == seen.mine:
                answers, outcome = self.source.hand_over(tr, offers, ticket.params), Outcome.SERVED
                may_be_lost = may_be_lost and len(answers) == len(offers)  # none was buried
            else:
                deliveries = self.source.deliver(tr, offers, ticket.params)
                self.results.leave(tr, ticket, deliveries, Notice(look.now_us + request_lasts_us(), crowd))
        return Turn(outcome, answers, crowd=crowd, ahead=take.ahead, may_be_lost=may_be_lost)

    def _may_be_lost(self, seen: Seen) -> bool:
        """True if this look has not swept: all that it changes are requests and leases."""
        return self.source.hands_out_leases and seen.tidied in (Tidied.NOT_YET, Tidied.NO_CHANGE)

    def _protect(
        self, tr: Transaction, requests: Iterable[Ticket], dead: Iterable[Ticket], pairs: Sequence[Pair]
    ) -> None:
        """Before the first write: afterwards FoundationDB would drop these conflicts silently."""
        for ticket in dead:  # it was read by snapshot that they have not been renewed
            tr.add_read_conflict_key(self.keys.renewal(ticket))
        for ticket in requests:
            tr.add_read_conflict_key(self.keys.request(ticket))
        for _, offers in pairs:
            self.source.claim(tr, offers)

    def _sleep(self, tr: Transaction, seen: Seen, look: Look, sleep: Sleep) -> Turn:
        if look.reason is Reason.PASSING:  # no request, so nothing to watch: a later look may find its share
            return Turn(Outcome.AGAIN, wrote=False)
        if seen.before is None:
            return self._lead(tr, seen)
        outcome = Outcome.PENDING if sleep.pending else Outcome.WAIT
        return self._stay(tr, seen, seen.before, look, outcome)

    def _stay(self, tr: Transaction, seen: Seen, before: bytes, look: Look, outcome: Outcome) -> Turn:
        """Wait behind the request `before`, which may stay when ours is served.

        The transaction may write: each request that it watches changes once, so nothing else aborts it.
        """
        watches = [tr.watch(self.keys.request(seen.mine)), tr.watch(before)]
        renews = look.otherwise is Otherwise.RENEW
        if renews:
            self._renew(tr, seen.mine, look.now_us)
        leases = self.source.hands_out_leases
        return Turn(
            outcome,
            wrote=renews,
            watches=watches,
            follows=seen.follows,
            renewed=renews,
            is_watched=self._is_watched(seen),
            may_be_lost=leases,
        )

    def _is_watched(self, seen: Seen) -> bool:
        return self.life.is_watching and seen.is_short

    def _lead(self, tr: Transaction, seen: Seen) -> Turn:
        """Wait at the head, for an item, or for a passing call that serves.

        The transaction writes nothing: it watches the doorbell, so each put would abort it.
        """
        keys = (self.keys.request(seen.mine), *self.source.doorbells())
        watches = [tr.watch(key) for key in keys]
        return Turn(Outcome.WAIT, wrote=False, watches=watches, due_us=seen.next_due_us, leads=True)

    def _collect(self, tr: Transaction, ticket: Ticket, value: bytes, wanted: int) -> Turn:
        notice = self.results.sound(tr, ticket.rid, value)
        if notice is None:
            return Turn(Outcome.GONE)
        collected = self.results.collect(tr, ticket, notice, wanted)
        if collected is None:
            return Turn(Outcome.GONE, crowd=notice.crowd)
        may_be_lost = self.source.hands_out_leases and collected.is_whole
        return Turn(Outcome.SERVED, collected.values, crowd=notice.crowd, may_be_lost=may_be_lost)

    def _renew(self, tr: Transaction, ticket: Ticket, now_us: int) -> None:
        tr.add_read_conflict_key(self.keys.request(ticket))  # else a renewal may outlive its request
        tr.set(self.keys.renewal(ticket), renewal_value(now_us + request_lasts_us()))

    def _leave(self, tr: Transaction, ticket: Ticket) -> Turn:
        if not ticket.stamp:  # a call that passes by
            return Turn(Outcome.LEFT, wrote=False)
        tr.add_read_conflict_key(self.keys.request(ticket))
        self._clear_request(tr, ticket)
        return Turn(Outcome.LEFT, may_be_lost=self.source.hands_out_leases)

    def _clear_request(self, tr: Transaction, ticket: Ticket) -> None:
        tr.clear(self.keys.request(ticket))
        tr.clear(self.keys.renewal(ticket))


def _offers_max() -> int:
    """Items that one look reads at most. A request with a share behind them waits."""
    return 2 * limits.SERVE_MAX
