"""The page's examples run, and its table names what there is."""

import re
import subprocess
import sys
from pathlib import Path

import fdbqueue

PAGE = (Path(__file__).parents[2] / "docs" / "elements.md").read_text()


def test_the_examples_run() -> None:
    """One after the other, as one program."""
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    check = (
        "assert outbox.count(db) == 0\n"
        "assert bytes(db[b'delivered/order 1']) == b'yes'\n"
        "assert bytes(db[b'result']) == b'42'\n"
    )
    program = "".join([*examples, check])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(" ", 1)[1] for line in done.stdout.splitlines()] == ["hello", "good bye"]


def test_every_method_is_on_the_page() -> None:
    methods = {name for name in vars(fdbqueue.ElementQueue) if not name.startswith("_")}
    methods |= {name for name in vars(fdbqueue.ElementQueue.__bases__[0]) if not name.startswith("_")}
    unnamed = methods - {"granularity", "id", "path"}
    assert [name for name in sorted(unnamed) if not re.search(rf"\b{name}\b", PAGE)] == []
    for name in ("ElementQueue", "SimpleElementQueue", "QueueSet", "NullQueue"):
        assert f"`{name}" in PAGE
        assert hasattr(fdbqueue, name)
