"""The page's examples run, and its table names every method."""

import re

import fdbqueue
from tests.page import examples_on, page, printed

PAGE = page("docs/elements.md")


def test_the_examples_run() -> None:
    """One after the other, as one program."""
    examples = examples_on(PAGE)
    assert len(examples) == 3
    check = (
        "assert outbox.count(db) == 0\n"
        "assert bytes(db[b'delivered/order 1']) == b'yes'\n"
        "assert bytes(db[b'result']) == b'42'\n"
    )
    lines = printed("".join([*examples, check]))
    assert [line.split(" ", 1)[1] for line in lines] == ["hello", "good bye"]


def test_every_method_is_on_the_page() -> None:
    methods = {name for name in vars(fdbqueue.ElementQueue) if not name.startswith("_")}
    methods |= {name for name in vars(fdbqueue.ElementQueue.__bases__[0]) if not name.startswith("_")}
    unnamed = methods - {"granularity", "id", "path"}
    assert [name for name in sorted(unnamed) if not re.search(rf"\b{name}\b", PAGE)] == []
    for name in ("ElementQueue", "SimpleElementQueue", "QueueSet", "NullQueue"):
        assert f"`{name}" in PAGE
        assert hasattr(fdbqueue, name)
