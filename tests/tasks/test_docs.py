"""The page's example runs, and what it says of the kinds is true."""

import re
import subprocess
import sys
from pathlib import Path

from fdbqueue.tasks.kinds import kind_named

PAGE = (Path(__file__).parents[2] / "docs" / "tasks.md").read_text()


def test_the_examples_run() -> None:
    """One after the other, as one program."""
    example = "".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    check = "\nassert bytes(db[b'sent/1']) == b'yes' and emails.statistics(db)['tasks']['total'] == 0"
    done = subprocess.run(
        [sys.executable, "-c", example + check], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_kind_has_its_row() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() >= {"fifo", "fifottl", "limfifottl"}
    for option in ("ttl", "ttr", "pri", "delay"):
        assert f"`{option}`" in rows["fifottl"]
        assert kind_named("fifottl").supports(option)
        assert not kind_named("fifo").supports(option)
