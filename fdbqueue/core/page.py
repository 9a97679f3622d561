"""Pages: a listing gives its rows a page at a time, each page with the place where the next one begins."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol, TypeVar

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count
from fdbqueue.core.errors import InvalidArgument

T = TypeVar("T")


class Page(list[T]):
    """Rows in order. `next` is the `after=` of the page behind this one, None if there is none.

    A page may have fewer rows than asked for, even none, and a next one all the same.
    """

    __slots__ = ("next",)

    next: str | None

    def __init__(self, rows: Iterable[T] = (), next_place: str | None = None) -> None:
        super().__init__(rows)
        self.next = next_place


class HasNext(Protocol):
    @property
    def next(self) -> str | None: ...


P = TypeVar("P", bound=HasNext)
P_co = TypeVar("P_co", bound=HasNext, covariant=True)


class Listing(Protocol[P_co]):
    def __call__(self, *, after: str | None) -> P_co: ...


def every_page(listing: Listing[P]) -> Iterator[P]:
    """Read each page of a listing in turn, up to the last one."""
    page = listing(after=None)
    yield page
    while page.next is not None:
        page = listing(after=page.next)
        yield page


def every_row(listing: Listing[Page[T]]) -> Iterator[T]:
    """Read the rows of all pages of a listing, a page at a time."""
    return chain.from_iterable(every_page(listing))


def checked_limit(limit: Any) -> int:
    """The number of rows that a page may have. Raises InvalidArgument."""
    return min(checked_count("limit", limit), limits.BATCH_ITEMS_MAX)


def place_text(place: bytes) -> str:
    return place.hex()


def place_bytes(after: Any) -> bytes | None:
    if after is None:
        return None
    try:
        return bytes.fromhex(after)
    except (TypeError, ValueError):
        raise no_place(after) from None


def no_place(after: Any) -> InvalidArgument:
    return InvalidArgument(name="after", wanted="None, or the `next` of a page of this listing", got=after)


def within_bytes(sizes_bytes: Sequence[int]) -> int:
    """The number of rows of these sizes that fit into one page; at least one, unless there are none."""
    room_bytes = limits.BATCH_BYTES_MAX
    for count, size_bytes in enumerate(sizes_bytes):
        room_bytes -= size_bytes
        if room_bytes < 0:
            return max(count, 1)
    return len(sizes_bytes)
