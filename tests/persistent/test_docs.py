"""The page's examples print what they say, and its table tells of every method there is."""

import queue
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fdbqueue import PersistentQueue, limits

PAGE = (Path(__file__).parents[2] / "docs" / "persistent-queue.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_says(example: str) -> None:
    said = re.findall(r"print\(.*\)  # (.*)", example)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == said != []


def test_everything_public_is_on_the_page() -> None:
    ours = {name for name in dir(PersistentQueue) if not name.startswith("_")} - {"id", "name", "number"}
    assert {name for name in ours if not re.search(rf"`{name}\b", PAGE)} == set()
    theirs = {name for name in vars(queue.Queue) if not name.startswith("_")}
    assert {name for name in theirs if not re.search(rf"`{name}\b", PAGE)} == set()


def test_its_numbers_are_those_of_the_limits() -> None:
    assert f"after `ttr` seconds ({limits.SESSION_TTR_S:.0f})" in PAGE
    assert f"within {limits.SWEEP_EVERY_S} s" in PAGE
    assert f"At most {limits.BATCH_ITEMS_MAX:,} items" in PAGE
