"""docs/workers.md: its examples print what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_prints_what_it_says(example):
    said = re.findall(r"^print\(.*\)  # (.*)", example, re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == said != []


def test_what_it_names_exists():
    """Every class and error that the page names is in the package."""
    import fdbqueue
    from fdbqueue import errors

    named = set(re.findall(r"`([A-Z]\w+)[`(]", PAGE)) - {"SystemExit"}
    assert {name for name in named if not hasattr(fdbqueue, name) and not hasattr(errors, name)} == set()
