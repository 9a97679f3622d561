"""All pages of a listing: tests have short queues."""

from collections.abc import Iterator
from typing import Protocol, TypeVar

from fdbqueue.page import Page

T = TypeVar("T")


class Listing(Protocol[T]):
    def __call__(self, *, after: str | None) -> Page[T]: ...


def all_of(listing: Listing[T]) -> Iterator[T]:
    """Yield the entries of each page of `listing`."""
    page = listing(after=None)
    yield from page
    while page.next is not None:
        page = listing(after=page.next)
        yield from page
