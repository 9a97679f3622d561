"""Pages of documentation: their examples, which the tests run."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    return (ROOT / name).read_text()


def examples_on(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def printed(program: str, *, logs: bool = False) -> list[str]:
    """The lines that it prints, as a process of its own. It must end well, and complain only if it `logs`."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert logs or done.stderr == ""
    return done.stdout.splitlines()


def promised(example: str) -> list[str]:
    """What its own comments say that it prints."""
    return re.findall(r"^\s*print\(.*\)  # (.*)", example, re.MULTILINE)
