"""Paging: the first rows of a listing, read page by page."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from fdbqueue.core.page import Page
from fdbqueue.operate.cli.exits import say

T = TypeVar("T")


def paged(read: Callable[[int, str | None], Page[T]], count: int, more: str) -> Iterator[T]:
    """Read at most `count` rows. If others may follow them, tell the sentence `more`.

    `read` takes a number of rows and the place after which they begin.
    """
    left, after = count, None
    while left:
        page = read(left, after)
        yield from page
        left, after = left - len(page), page.next
        if after is None:
            return
    say(f"{more}: -n N lists N")
