"""The page's table of kinds is true."""

import re

from fdbqueue.core import limits
from fdbqueue.tasks.options import kind_named
from tests.page import page

PAGE = page("docs/tasks.md")


def test_every_kind_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() >= {"fifo", "fifottl", "limfifottl"}
    for option in ("ttl", "ttr", "pri", "delay"):
        assert f"`{option}`" in rows["fifottl"]
        assert kind_named("fifottl").supports(option)
        assert not kind_named("fifo").supports(option)


def test_the_bounds_of_a_task_and_of_a_batch_are_on_the_page() -> None:
    numbers = re.search(r"^## Numbers\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
    assert numbers is not None
    bounds = (limits.PAYLOAD_BYTES_MAX, limits.TASK_KEY_BYTES_MAX, limits.HEADERS_BYTES_MAX)
    for bound in (*bounds, limits.BATCH_ITEMS_MAX, limits.BATCH_BYTES_MAX, limits.PUT_BYTES_MAX):
        assert f"{bound:,}" in numbers[1]
    assert limits.SPAN_MAX_S == 100 * 365 * 86_400
    assert "a hundred years (`limits.SPAN_MAX_S`)" in numbers[1]
