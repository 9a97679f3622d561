"""The page's examples print their promises."""

import pytest

from tests.page import examples_on, page, printed, promised


@pytest.mark.parametrize("example", examples_on(page("docs/payloads.md")))
def test_an_example_prints_its_promises(example: str) -> None:
    assert printed(example) == promised(example)
