"""Shares: who in a waiting line is to get what, requests and items both in order. Values; nothing is read."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, islice

from msgspec import Struct

from fdbqueue import limits
from fdbqueue.line.keys import Ticket


class Offer(Struct, frozen=True):
    """Something available: its identity, what the source stores for it, and its payload's size."""

    id: bytes
    value: bytes
    size_bytes: int
    key: bytes = b""
    """Those of one key, if they have any, are handed out in their order only."""


class Portion(Struct, frozen=True):
    """The first available items, as many as one transaction can take."""

    offers: Sequence[Offer] = ()
    cut_short: bool = False
    """The next item did not fit."""


NOTHING = Portion()
Pair = tuple[Ticket, Sequence[Offer]]


def within(bytes_max: int, offers: Iterable[Offer]) -> list[Offer]:
    """The first of `offers` whose stored values fit into `bytes_max`, and the very first in any case. Asks
    for no more of them than it needs.
    """
    found: list[Offer] = []
    total = 0
    for offer in offers:
        total += len(offer.value)
        if found and total > bytes_max:
            break
        found.append(offer)
    return found


def free_of(left: Iterable[Offer], shares: Sequence[Pair], served: Collection[Ticket]) -> list[Pair]:
    """The shares of those who are `served`, but for an item of a key of which an earlier one is `left` to
    others: of a key the second must not come before the first.
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
    """The first of `pairs`, as far as they have so few items; the very first in any case."""
    totals = accumulate(len(offers) for _, offers in pairs)
    fitting = sum(total <= count_max for total in totals)
    return list(pairs[: max(1, fitting)])


def pair(requests: Sequence[Ticket], counts: Sequence[int], offers: Sequence[Offer]) -> list[Pair]:
    """Offers to requests, both in order: as many as each asks for and one collection can carry."""
    pairs: list[Pair] = []
    rest = offers
    for ticket, count in zip(requests, counts, strict=True):
        portion = portion_of(islice(rest, count)).offers
        rest = rest[len(portion) :]
        if portion:
            pairs.append((ticket, portion))
    return pairs


def portion_of(offers: Iterable[Offer]) -> Portion:
    """The first of `offers` whose payloads one transaction can read. Asks for no more than it needs."""
    found: list[Offer] = []
    total = 0
    for offer in offers:
        total += offer.size_bytes
        if found and total > limits.BATCH_BYTES_MAX:
            return Portion(found, True)
        found.append(offer)
    return Portion(found) if found else NOTHING
