"""The page's table names every method."""

import re

import fdbqueue
from tests.page import page

PAGE = page("docs/elements.md")


def test_every_method_is_on_the_page() -> None:
    members = vars(fdbqueue.ElementQueue.__bases__[0]) | vars(fdbqueue.ElementQueue)
    methods = {name for name in members if not name.startswith("_")}
    unnamed = methods - {"granularity", "id", "path", "store"}
    assert [name for name in sorted(unnamed) if not re.search(rf"\b{name}\b", PAGE)] == []
    for name in ("ElementQueue", "SimpleElementQueue", "QueueSet", "NullQueue"):
        assert f"`{name}" in PAGE
        assert hasattr(fdbqueue, name)
