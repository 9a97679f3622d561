"""The page's table of kinds is true."""

import re

from fdbqueue.tasks.kinds import kind_named
from tests.page import page

PAGE = page("docs/tasks.md")


def test_every_kind_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() >= {"fifo", "fifottl", "limfifottl"}
    for option in ("ttl", "ttr", "pri", "delay"):
        assert f"`{option}`" in rows["fifottl"]
        assert kind_named("fifottl").supports(option)
        assert not kind_named("fifo").supports(option)
