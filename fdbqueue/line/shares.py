"""Shares: pairs of requests and items, both in order. Pure functions over values."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, islice
from typing import Any

from msgspec import Struct

from fdbqueue import limits
from fdbqueue.line.keys import Ticket


class Offer(Struct, frozen=True):
    """An available item."""

    id: bytes
    value: bytes
    """The value that the source stores for it."""
    size_bytes: int
    """Bytes of its payload, wherever that is stored."""
    key: bytes = b""
    """Its task key, if any. Items of one task key are handed out in their order only."""
    gate: Any = None
    """The gate of limits that has let it through, with the numbers that it has read."""


class Portion(Struct, frozen=True):
    """The first available items, as many as one transaction can take."""

    offers: Sequence[Offer] = ()
    cut_short: bool = False
    """The next item did not fit."""


NOTHING = Portion()
Pair = tuple[Ticket, Sequence[Offer]]


def within(bytes_max: int, offers: Iterable[Offer]) -> list[Offer]:
    """The first offers, at most `bytes_max` of stored values, but at least one offer. Reads no more of
    `offers` than it needs.
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
    """Pair requests with offers, both in order. Request n gets at most `counts[n]` offers, and no more than
    one transaction can read.
    """
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
