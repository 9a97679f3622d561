"""Decisions of a request in a waiting line; the keys of the line, and its interface to the queue below.

The decisions are pure functions over the values that one transaction has read. Requests and items are both in
order. The n-th item is the *share* of the n-th request. A request that is awake takes its own share. For some
reasons it also serves others: it hands out their shares while they sleep. Pairs of requests and items come
first, then the decision.

This is also the only file that builds or parses the keys of line L, a subspace of the queue that it serves.
`RID` is the random name of a request. The comment of a column has its value, and behind the semicolon its
readers.

The stamp is the versionstamp of the commit that wrote the request. So no request is ever inserted before
another, and a transaction that sees its own request sees all requests ahead of it. In a database with lower
versions, the requests of a restored backup stand behind all new ones. Their callers are gone, and the first
live request removes them.

Requests and due results are neighbours, so one read with limit 1 tells whether there is any of both. Below a
column number come plain bytes, and numbers in eight bytes, big-endian. The tuple layer would add a third to
the cost of a contended take, which packs and parses some forty keys.

`Source` is the interface between a waiting line and the queue that it serves.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import Enum, IntEnum, auto
from itertools import accumulate, islice
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.columns import Table, number, sized
from fdbqueue.core.seam import Transaction
from fdbqueue.core.unreadable import Aside

STAMP_BYTES = 10
STAMP, RID, DEADLINE = sized(STAMP_BYTES), sized(limits.RANDOM_SUFFIX_BYTES), number(8)

L = Table()
REQUEST = L.column(
    0, STAMP, RID
)  # count, deadline_us, params; each look; its owner's watch, and that behind it
DUE = L.column(1, DEADLINE, RID)  # empty; looks that tidy, takes that find nothing
NOTICE = L.column(2, RID)  # deadline_us, crowd, and small results; its owner, the return of overdue results
RESULT = L.column(3, RID, sized(1, limits.KEY_BYTES_MAX))  # item-id: value of a Delivery; as the notice
RENEWAL = L.column(4, STAMP, RID)  # deadline_us; looks of requests behind, past the deadline

_NUMBER = struct.Struct(">Q")
_REQUEST = struct.Struct(">IQ")
_NOTICE = struct.Struct(">QI")
_OFFSET = struct.Struct("<I")
_RESULT_SIZES = struct.Struct(">HI")


class Ticket(Struct, frozen=True):
    stamp: bytes
    """The versionstamp of its registration; empty for a take without a request."""
    rid: bytes
    """Its random name."""
    count: int
    """Items that it waits for."""
    params: bytes = b""
    """Data for the source, such as a session."""


class Notice(Struct, frozen=True):
    """Tells the owner of a request that it is served."""

    deadline_us: int
    crowd: int
    """Number of requests in the line at that time."""
    results: Sequence[tuple[bytes, bytes]] = ()
    """Ids and values of the items; empty if they have keys of their own."""


class Due(Struct, frozen=True):
    """The results of the request `rid` wait for its owner until `deadline_us`."""

    deadline_us: int
    rid: bytes
    damaged: bytes = b""
    """The key, if it cannot be parsed: it is due at once, and belongs to no request."""


class LineKeys:
    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self._request, self.requests = REQUEST.start(prefix), REQUEST.all(prefix)
        self._due, self.due = DUE.start(prefix), DUE.all(prefix)
        self.activity = slice(self.requests.start, self.due.stop)
        self.notice, self.all_notices = NOTICE.key(prefix), NOTICE.all(prefix)
        self.result, self.all_results = RESULT.key(prefix), RESULT.all(prefix)
        self.results, self.item_id_of = RESULT.of(prefix, b"\xff"), RESULT.last(prefix)
        self._renewal, self.rid_of_renewal = RENEWAL.start(prefix), RENEWAL.last(prefix)
        self.all_renewals = slice(self._renewal, self._renewal + b"\xff" * (STAMP_BYTES + 1))
        self.parts_of, self.has_shape = L.parts_of(prefix), L.has_shape(prefix)

    def request(self, ticket: Ticket) -> bytes:
        return self._request + ticket.stamp + ticket.rid

    def request_to_be(self, rid: bytes) -> bytes:
        """The key of a new request, for `set_versionstamped_key`: the commit fills in the stamp."""
        return self._request + bytes(STAMP_BYTES) + rid + _OFFSET.pack(len(self._request))

    def renewal(self, ticket: Ticket) -> bytes:
        return self._renewal + ticket.stamp + ticket.rid

    def requests_upto(self, ticket: Ticket) -> slice:
        """The request of `ticket` and all requests ahead of it."""
        return slice(self._request, self.request(ticket) + b"\x00")

    def requests_at(self, version: int) -> slice:
        """All requests with stamps of at most this version."""
        return slice(self._request, self._request + _NUMBER.pack(version + 1))

    def due_key(self, due: Due) -> bytes:
        return due.damaged or self._due + _NUMBER.pack(due.deadline_us) + due.rid

    def is_work(self, activity_key: bytes, now_us: int) -> bool:
        """True if the first key in `activity` is a request or an overdue result: a take must pass by."""
        return activity_key < self.requests.stop or self.due_of(activity_key).deadline_us < now_us

    def due_of(self, key: bytes) -> Due:
        start = len(self._due)
        if len(key) < start + _NUMBER.size:
            return Due(0, b"", bytes(key))
        return Due(_NUMBER.unpack_from(key, start)[0], key[start + _NUMBER.size :])

    def ticket_of(self, key: bytes, value: bytes) -> tuple[Ticket, int]:
        """The ticket of a request, and its first deadline in microseconds."""
        # A damaged request counts as a dead one for no items: the first request behind it removes it.
        count, deadline_us = _REQUEST.unpack_from(value) if len(value) >= _REQUEST.size else (0, 0)
        rid_at = len(self._request) + STAMP_BYTES
        ticket = Ticket(key[len(self._request) : rid_at], key[rid_at:], count, value[_REQUEST.size :])
        return ticket, deadline_us


def request_value(count: int, deadline_us: int, params: bytes) -> bytes:
    return _REQUEST.pack(count, deadline_us) + params


def renewal_value(deadline_us: int) -> bytes:
    return _NUMBER.pack(deadline_us)


def notice_value(notice: Notice) -> bytes:
    parts = [_NOTICE.pack(notice.deadline_us, notice.crowd)]
    for item_id, value in notice.results:
        parts += (_RESULT_SIZES.pack(len(item_id), len(value)), item_id, value)
    return b"".join(parts)


def deadline_of(renewal: bytes) -> int:
    """The deadline in a renewal, in microseconds; 0 if it is damaged: then its request counts as dead."""
    deadline_us: int = _NUMBER.unpack(renewal)[0] if len(renewal) == _NUMBER.size else 0
    return deadline_us


def notice_of(value: bytes) -> Notice | None:
    try:
        deadline_us, crowd = _NOTICE.unpack_from(value)
        results = list(_results_in(value))
    except struct.error:
        return None
    return Notice(deadline_us, crowd, results)


def _results_in(notice: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = _NOTICE.size
    while at < len(notice):
        id_bytes, value_bytes = _RESULT_SIZES.unpack_from(notice, at)
        id_at = at + _RESULT_SIZES.size
        value_at = id_at + id_bytes
        at = value_at + value_bytes
        if at > len(notice):
            raise struct.error("it is cut")
        yield notice[id_at:value_at], notice[value_at:at]


class Offer(Struct, frozen=True):
    id: bytes
    value: bytes
    """The value that the source stores for it."""
    size_bytes: int
    """Bytes of its payload, wherever that is stored."""
    key: bytes = b""
    """Its task key, if any. Items of one task key are handed out in their order only."""
    gate: Any = None
    """The gate of limits that has let it through, with the numbers that it has read."""
    item: Any = None
    """What `value` says, decoded, for a source that needs it."""


class Portion(Struct, frozen=True):
    """The first available items, as many as one transaction can take."""

    offers: Sequence[Offer] = ()
    cut_short: bool = False
    """The next item did not fit."""


NOTHING = Portion()
Pair = tuple[Ticket, Sequence[Offer]]


def within(bytes_max: int, offers: Iterable[Offer]) -> list[Offer]:
    """The first offers, up to `bytes_max` of stored values, or one; reads no more than it needs."""
    found: list[Offer] = []
    total = 0
    for offer in offers:
        total += len(offer.value)
        if found and total > bytes_max:
            break
        found.append(offer)
    return found


def free_of(left: Iterable[Offer], shares: Sequence[Pair], served: Collection[Ticket]) -> list[Pair]:
    """The pairs of `served` requests, except where an earlier item of the same task key is left to another
    request: each task key stays in order.
    """
    keys_left = _keys_of(left)
    free: list[Pair] = []
    for ticket, offers in shares:
        keys = _keys_of(offers)
        if ticket not in served or keys & keys_left:
            keys_left |= keys
        else:
            free.append((ticket, offers))
    return free


def _keys_of(offers: Iterable[Offer]) -> set[bytes]:
    return {offer.key for offer in offers if offer.key}


def at_most(count_max: int, pairs: Sequence[Pair]) -> list[Pair]:
    """The first pairs, at most `count_max` items together, but at least one pair."""
    totals = accumulate(len(offers) for _, offers in pairs)
    fitting = sum(total <= count_max for total in totals)
    return list(pairs[: max(1, fitting)])


def pair(requests: Sequence[Ticket], counts: Sequence[int], offers: Sequence[Offer]) -> list[Pair]:
    """Pair both in order: request n gets `counts[n]` offers, and none more than one transaction can read."""
    pairs: list[Pair] = []
    rest = offers
    for ticket, count in zip(requests, counts, strict=True):
        portion = portion_of(islice(rest, count)).offers
        rest = rest[len(portion) :]
        if portion:
            pairs.append((ticket, portion))
    return pairs


def portion_of(offers: Iterable[Offer]) -> Portion:
    """The first offers, at most limits.BATCH_BYTES_MAX of payload and limits.BATCH_RECORDS_BYTES_MAX of
    stored values, but at least one offer. Reads no more of `offers` than it needs.

    A task key counts limits.OFFERED_KEY_COPIES times more: it is in several keys of the database, too.
    """
    found: list[Offer] = []
    total = stored = 0
    for offer in offers:
        total += offer.size_bytes
        stored += len(offer.value) + limits.OFFERED_KEY_COPIES * len(offer.key)
        if found and (total > limits.BATCH_BYTES_MAX or stored > limits.BATCH_RECORDS_BYTES_MAX):
            return Portion(found, True)
        found.append(offer)
    return Portion(found) if found else NOTHING


class Reason(Enum):
    """The reason for a look at the line. It decides which shares the request may take or hand out."""

    ARRIVAL = auto()
    """It has not slept yet: it takes its own share."""
    SIGNAL = auto()
    """A watch has woken it: it takes its own share, and serves the requests behind it, as they sleep, too."""
    NOTICE = auto()
    """Its own request has changed: it reads its notice before anything else. Without a notice: as SIGNAL."""
    RENEWAL = auto()
    """No watch fired. It takes nothing while live requests are ahead: a watch may be waking them now."""
    NEGLECT = auto()
    """Requests ahead have left their shares untouched: it serves every request in the line."""
    CONFLICT = auto()
    """Its last attempt met another transaction: it takes its own share and serves no request behind it."""
    PASSING = auto()
    """It has no request. It takes the share of a request at the end of the line."""


SLEPT = frozenset({Reason.SIGNAL, Reason.NOTICE, Reason.RENEWAL, Reason.NEGLECT})
"""Reasons that come after a sleep: requests behind this one sleep, too, and may be served."""


class Otherwise(Enum):
    """The step of a request for which there is no share."""

    SLEEP = auto()
    RENEW = auto()
    """Sleep, and move the deadline of the request."""
    LEAVE = auto()
    """Withdraw the request if nothing is available: its caller does not wait."""


class Look(Struct, frozen=True):
    now_us: int
    reason: Reason = Reason.ARRIVAL
    otherwise: Otherwise = Otherwise.SLEEP
    wanted: int = limits.SERVE_MAX
    """Items that still have a caller."""
    ahead: int = 0
    """Items that belong to requests ahead, estimated by the last look."""
    held_us: int = field(default_factory=lambda: round(limits.SHARE_HELD_S * 1_000_000))
    """A request ahead that is older than this is idle: it sleeps, is slow or is dead, and is served."""
    silent_us: int = field(default_factory=lambda: round(limits.SILENT_S * 1_000_000))
    """A request without a new sign of life for this time is silent."""
    tidies: bool = False
    """Overdue results, due items and dead requests come first."""


class Tidied(Enum):
    """The effect of tidying in this transaction: overdue results and due items become available."""

    NOT_YET = auto()
    NO_CHANGE = auto()
    ITEMS = auto()
    """Due items have become available."""
    RESULTS = auto()
    """Overdue results have become available; they have not been read again."""


class Seen(Struct, frozen=True):
    """The first requests in the line and the first available items, as one transaction has read them."""

    mine: Ticket
    live: Sequence[Ticket]
    dead: Sequence[Ticket]
    before: bytes | None
    """Key of the nearest live request ahead of ours; None if there is none. A dead request is passed over,
    because its owner never clears it. If ours is behind all requests that were read: key of the request
    directly ahead, live or dead."""
    place: int | None
    """Number of live requests ahead of ours; None if ours is not among the requests that were read."""
    idle: Sequence[int]
    """Places of the idle requests ahead."""
    is_short: bool = True
    """All requests of the line have been read, and there is room for more."""
    offers: Sequence[Offer] = ()
    next_due_us: int | None = None
    tidied: Tidied = Tidied.NOT_YET

    @property
    def is_first(self) -> bool:
        """True if no live request ahead has been seen: then ours removes the dead ones."""
        return self.place == 0 or not self.live

    @property
    def follows(self) -> bytes:
        """The params of the nearest live request ahead; empty if there is none, or if it was not read."""
        return self.live[self.place - 1].params if self.place else b""

    def counts(self, wanted: int) -> list[int]:
        """Numbers of items for each live request; for ours at most `wanted`."""
        counts = [ticket.count for ticket in self.live]
        if self.place is not None:
            counts[self.place] = min(wanted, self.mine.count)
        return counts


class Take(Struct, frozen=True):
    pairs: Sequence[Pair]
    dead: Sequence[Ticket]
    ahead: int
    """Items that belong to requests ahead."""


class Sleep(Struct, frozen=True):
    """Wait for a watch. It is `pending` if items lie there for requests ahead."""

    pending: bool = False


class Step(Enum):
    TIDY = auto()
    """Tidy, and decide again."""
    RENEW = auto()
    """Move the deadline of the request, and nothing else."""
    AGAIN = auto()
    """Commit, and look again: tidying has changed the queue."""
    LEAVE = auto()


Decision = Take | Sleep | Step


def decide(seen: Seen, look: Look) -> Decision:
    """The next step of the request `seen.mine`."""
    if look.otherwise is Otherwise.RENEW and seen.before is None:
        return Step.RENEW
    if _only_checks(seen, look):
        return Sleep(pending=bool(seen.offers))
    take = _take(seen, look)
    if seen.tidied is Tidied.NOT_YET and _is_to_tidy(seen, look, take):
        return Step.TIDY
    if seen.tidied is not Tidied.RESULTS and (take.pairs or take.dead):
        return take
    if seen.tidied in (Tidied.ITEMS, Tidied.RESULTS):
        return Step.AGAIN
    # Items that belong to requests ahead may come back: "nothing" is true only without any.
    return Step.LEAVE if look.otherwise is Otherwise.LEAVE and not seen.offers else Sleep()


def items_needed(seen: Seen, look: Look) -> int:
    """Number of items that the decision depends on: up to the last served share, and at least one."""
    served = _served(seen, look)
    return sum(seen.counts(look.wanted)[: served[-1] + 1]) if served else 1


def _take(seen: Seen, look: Look) -> Take:
    counts, served = seen.counts(look.wanted), _served(seen, look)
    first, end = (served[0], served[-1] + 1) if served else (len(counts), len(counts))
    left = sum(len(offers) for _, offers in pair(seen.live[:first], counts[:first], seen.offers))
    shares = pair(seen.live[first:end], counts[first:end], seen.offers[left:])
    free = free_of(seen.offers[:left], shares, [seen.live[place] for place in served])
    # Requests that take their own shares would conflict over the dead ones: the first removes those.
    dead = seen.dead if seen.is_first or _tidies_first(look) else ()
    return Take(at_most(limits.SERVE_MAX, free), dead, sum(counts[: seen.place]))


def _served(seen: Seen, look: Look) -> Sequence[int]:
    """Places of the requests that get their shares in this look, in order.

    Requests ahead that are not idle are about to take their own shares.
    """
    places = range(len(seen.live))
    if _only_checks(seen, look):
        return ()
    if look.reason is Reason.NEGLECT:
        return places
    if seen.place is None:
        return ()
    if look.reason is Reason.CONFLICT:
        return (seen.place,)
    return [*seen.idle, *(places[seen.place :] if look.reason in SLEPT else (seen.place,))]


def _only_checks(seen: Seen, look: Look) -> bool:
    """True if this look must not take anything.

    The requests ahead sleep, and a watch may be waking one of them now: a look that served it would conflict
    with it. Among 200 waiting requests one such look or more falls into each wake-up.
    """
    return look.reason is Reason.RENEWAL and not seen.is_first


def _is_to_tidy(seen: Seen, look: Look, take: Take) -> bool:
    is_due = seen.next_due_us is not None and seen.next_due_us <= look.now_us
    if _tidies_first(look) or (seen.is_first and is_due):
        return True
    return not take.pairs and (seen.is_first or look.otherwise is Otherwise.LEAVE)


def _tidies_first(look: Look) -> bool:
    return look.tidies or look.reason is Reason.NEGLECT


def passing(look: Look) -> Look:
    """The look of a call without a request: it tidies, and does not sleep."""
    return replace(look, reason=Reason.PASSING, otherwise=Otherwise.LEAVE, tidies=True)


Ask = Callable[[Transaction], Callable[[], None]]
"""Asks whether a take may go on; the reply raises if not."""


class Swept(IntEnum):
    """The effect of a sweep. It is true if the sweep wrote anything."""

    NOTHING = 0
    LEASES = 1
    """Leases have ended, and their tasks are ready. A power cut may undo that: another sweep repeats it."""
    MORE = 2
    """Tasks have come due, have expired, or have been mended, too."""


class Delivery(Struct, frozen=True):
    """An item that has been handed to a request: its identity, and the value that its owner collects."""

    id: bytes
    value: bytes


class Source(Protocol):
    """The items of one queue.

    A recipe queue moves an item to its request. A task queue takes the lease for the request's session.
    """

    name: str
    aside: Aside
    """The place for damaged values of the queue."""

    ready: slice
    """Keys of the available items. An answer of nothing relies on them in a transaction of the caller."""
    hands_out_leases: bool
    """True if an item stays in the queue until its holder ends it: then a power cut may undo a delivery."""
    comes_due: bool
    """False if `ask_tidy` never has anything to do."""

    def guard(self, tr: Transaction) -> Callable[[], None]:
        """Ask whether the queue exists; the reply raises if it does not."""

    def doorbells(self) -> Sequence[bytes]:
        """Keys of which one changes whenever an item may have become available."""

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:
        """Ask, by snapshot, for items that have come due. The reply makes a batch of them available."""

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, for the time at which the next item comes due; the reply is in microseconds."""

    def available(self, tr: Transaction, limit: int, now_us: int) -> Iterable[Offer]:
        """Ask, by snapshot, for the first `limit` available items. The iteration waits for the reply."""

    def claim(self, tr: Transaction, offers: Sequence[Offer]) -> None:
        """Add a read-conflict key for each key that the delivery of `offers` will change."""

    def deliver(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Delivery]:
        """Move `offers` from the available items to a request with `params`."""

    def collect(self, tr: Transaction, deliveries: Sequence[Delivery]) -> list[Any]:
        """Values for the owner of `deliveries`, which leave the queue for good."""

    def hand_over(self, tr: Transaction, offers: Sequence[Offer], params: bytes) -> list[Any]:
        """Deliver and collect `offers` in one step, for an owner that runs this transaction."""

    def give_back(self, tr: Transaction, deliveries: Sequence[Delivery]) -> None:
        """Make uncollected deliveries available again, in their old places."""

    def require_none_passed(self, tr: Transaction) -> None:
        """Raise the error of the first available item that this process cannot read."""

    def is_paused(self, tr: Transaction) -> bool:
        """True if takes get nothing, whatever is there."""


class Untimed:
    """Base of a source without timers and leases: its items never come due, and leave as they are taken."""

    hands_out_leases = comes_due = False
    limit_bells: Sequence[bytes] = ()
    """Doorbells of the limits of the queue: it has none."""

    def ask_gate(self, tr: Transaction, now_us: int) -> None:
        """None: it has no limits."""

    def rely_on_limits(self, tr: Transaction) -> None:
        """Nothing: it has no limits."""

    def ask_tidy(self, tr: Transaction, now_us: int) -> Callable[[], Swept]:  # noqa: ARG002  # the line's interface
        return lambda: Swept.NOTHING

    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]:  # noqa: ARG002  # the line's interface
        return lambda: None

    def is_paused(self, tr: Transaction) -> bool:  # noqa: ARG002  # the line's interface
        return False
