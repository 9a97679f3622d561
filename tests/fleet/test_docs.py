"""docs/workers.md: its examples print the promised lines."""

import re

import pytest

from tests.page import examples_on, page, printed, promised

PAGE = page("docs/workers.md")


@pytest.mark.parametrize("example", examples_on(PAGE))
def test_an_example_prints_the_output_in_its_comments(example):
    assert printed(example, logs=True) == promised(example) != []


def test_each_class_on_the_page_is_exported():
    """Classes and errors alike."""
    import fdbqueue
    from fdbqueue import errors

    named = set(re.findall(r"`([A-Z]\w+)[`(]", PAGE)) - {"SystemExit", "FDB_NETWORK_OPTION_KNOB"}
    assert {name for name in named if not hasattr(fdbqueue, name) and not hasattr(errors, name)} == set()
