"""The examples work as described."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_crawler_fetches_every_page_once_one_per_host() -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "crawler.py"], capture_output=True, text=True, check=False, timeout=100
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["12 pages, each {1} times, at most 1 at a time"] * 3
