"""docs/loadtest.md names every user, shape and option."""

import dataclasses
import re
from pathlib import Path

from fdbqueue.core.observing import Counters
from loadtest import users
from loadtest.shapes import SHAPES

PAGE = (Path(__file__).parents[2] / "docs" / "loadtest.md").read_text()


def rows(heading):
    """The first cells of the table that begins with `heading`, without their backquotes."""
    table = re.search(rf"^\| {re.escape(heading)}.*\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)[1]
    return {re.match(r"\| `?(\w+)`?", line)[1] for line in table.splitlines()}


def test_every_user_is_explained():
    """And no other."""
    known = {
        name
        for name, found in vars(users).items()
        if isinstance(found, type) and issubclass(found, users.LibraryUser) and not found.abstract
    }
    assert rows("user ") == known


def test_every_shape_is_explained():
    """And no other."""
    assert rows("`--shape` ") == set(SHAPES)


def test_every_counter_is_explained():
    """And no other."""
    assert rows("|") == {field.name for field in dataclasses.fields(Counters)}
