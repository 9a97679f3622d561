"""The page's examples print the output in their comments, and its table has every method."""

import queue
import re

import pytest

from fdbqueue import PersistentQueue, limits
from tests.page import examples_on, page, printed, promised

PAGE = page("docs/persistent-queue.md")


@pytest.mark.parametrize("example", examples_on(PAGE))
def test_an_example_prints_the_output_in_its_comments(example: str) -> None:
    assert printed(example) == promised(example) != []


def test_everything_public_is_on_the_page() -> None:
    ours = {name for name in dir(PersistentQueue) if not name.startswith("_")} - {"id", "name", "number"}
    assert {name for name in ours if not re.search(rf"`{name}\b", PAGE)} == set()
    theirs = {name for name in vars(queue.Queue) if not name.startswith("_")}
    assert {name for name in theirs if not re.search(rf"`{name}\b", PAGE)} == set()


def test_its_numbers_are_those_of_the_limits() -> None:
    assert f"after `ttr` seconds ({limits.SESSION_TTR_S:.0f})" in PAGE
    assert f"within {limits.SWEEP_EVERY_S} s" in PAGE
    assert f"At most {limits.BATCH_ITEMS_MAX:,} items" in PAGE
