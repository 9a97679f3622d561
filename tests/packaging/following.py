"""Follows docs/quickstart.md as a reader does: saves its files, and types its commands."""

import re
from pathlib import Path

from tests.packaging.building import ran
from tests.packaging.environment import Environment
from tests.page import page

FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'\bfile="([^"]+)"')


def chapters(name: str) -> dict[str, str]:
    """Return the text of each chapter of a page by its title."""
    _, *parts = re.split(r"^## ", page(name), flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def follow(chapter: str, environment: Environment, place: Path) -> None:
    """Run the commands of a chapter in `place`, and compare the output with its blocks of text."""
    blocks = [block for block in FENCE.findall(chapter) if "norun=" not in block[1]]
    for _, options, body in blocks:
        if file := FILE.search(options):
            (place / file[1]).write_text(body)
    commands = "".join(body for language, _, body in blocks if language == "sh")
    printed = ran("bash", "-euo", "pipefail", "-c", commands, cwd=place, env=environment.variables())
    promised = "".join(body for language, _, body in blocks if language == "text")
    assert printed == promised or not promised
