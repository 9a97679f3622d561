"""The page's table has every method, and its numbers are those of the limits."""

import queue
import re

from fdbqueue import PersistentQueue
from fdbqueue.core import limits
from tests.page import page

PAGE = page("docs/persistent-queue.md")


def test_everything_public_is_on_the_page() -> None:
    ours = {name for name in dir(PersistentQueue) if not name.startswith("_")} - {"id", "name", "number"}
    assert {name for name in ours if not re.search(rf"`{name}\b", PAGE)} == set()
    theirs = {name for name in vars(queue.Queue) if not name.startswith("_")}
    assert {name for name in theirs if not re.search(rf"`{name}\b", PAGE)} == set()


def test_its_numbers_are_those_of_the_limits() -> None:
    assert f"after `ttr` seconds ({limits.SESSION_TTR_S:.0f})" in PAGE
    assert f"within {limits.SWEEP_EVERY_S} s" in PAGE
    assert f"At most {limits.BATCH_ITEMS_MAX:,} items" in PAGE
