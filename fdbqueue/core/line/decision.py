"""Decisions of a request in a waiting line: pure functions over the values that one transaction has read.

Requests and items are both in order. The n-th item is the *share* of the n-th request. A request that is
awake takes its own share. For some reasons it also serves others: it hands out their shares while they sleep.
Pairs of requests and items come first, then the decision.
"""

from collections.abc import Collection, Iterable, Sequence
from enum import Enum, auto
from itertools import accumulate, islice
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.line.keys import Ticket


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
