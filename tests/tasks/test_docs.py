"""The page's example runs, and its table of kinds is true."""

import re

from fdbqueue.tasks.kinds import kind_named
from tests.page import examples_on, page, printed

PAGE = page("docs/tasks.md")


def test_the_examples_run() -> None:
    """One after the other, as one program."""
    check = "\nassert bytes(db[b'sent/1']) == b'yes' and emails.statistics(db)['tasks']['total'] == 0"
    printed("".join([*examples_on(PAGE), check]))


def test_every_kind_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() >= {"fifo", "fifottl", "limfifottl"}
    for option in ("ttl", "ttr", "pri", "delay"):
        assert f"`{option}`" in rows["fifottl"]
        assert kind_named("fifottl").supports(option)
        assert not kind_named("fifo").supports(option)
