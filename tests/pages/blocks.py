"""The code blocks and pictures of the pages, as a Markdown parser finds them, and the use of each block.

A page is followed from top to bottom, in an empty directory. The first words of a fence say its use:

- `python`: a program of its own, in a process that has to end well; `python continues`: it goes on;
- `sh`: the next commands of the page's one terminal, in bash with `set -euo pipefail`;
- `python file="emails.py"`: the content of that file, for later blocks; any language may have it;
- `python source="examples/outbox.py"`: a piece of that file; all pieces of a page together are the file;
- `json`, `toml`, `yaml`: read by a parser;
- `sh norun="needs a cluster"`: not run, for that reason; any language may have it;
- `text`: the output of the block before it, in the same section; `...` stands for any text.

Without such an output, a program prints the comments behind its calls of `print`, and nothing else. An
indented block, an unknown language and an unknown option are errors.
"""

import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
RUN = ("python", "sh")
READ: dict[str, Callable[[str], object]] = {
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
OPTIONS = {"norun", "continues", "file", "source"}


class PageError(AssertionError):
    """A block that breaks its promise; the message has its file and line."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    info: str
    text: str
    section: int

    @property
    def language(self) -> str:
        return self.info.split(" ")[0]

    @property
    def options(self) -> dict[str, str]:
        words = (word.partition("=") for word in shlex.split(self.info)[1:])
        return {name: value for name, _, value in words}

    def error(self, reason: str) -> PageError:
        return PageError(f"{self.page}:{self.line}: {reason}")


@dataclass(frozen=True)
class Picture:
    page: str
    line: int
    alternative: str


def pages(root: Path = ROOT) -> list[str]:
    """Return the names of all pages below `root`."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(path.relative_to(root).as_posix() for path in found)


def _tokens(text: str) -> Iterator[tuple[int, Token]]:
    """Yield each token with its line."""
    line = 0
    for token in MarkdownIt().enable("table").parse(text):
        line = token.map[0] + 1 if token.map else line
        yield line, token
        yield from ((line, child) for child in token.children or [])


def blocks_of(page: str, text: str) -> list[Block]:
    found, section = [], 0
    for line, token in _tokens(text):
        section += token.type == "heading_open"
        if token.type in ("fence", "code_block"):
            info = token.info.strip() if token.type == "fence" else "indented"
            found.append(Block(page, line, info, token.content, section))
    return found


def pictures_of(page: str, text: str) -> list[Picture]:
    return [
        Picture(page, line, alternative)
        for line, token in _tokens(text)
        for alternative in _alternatives(token)
    ]


def _alternatives(token: Token) -> list[str]:
    if token.type == "image":
        return [token.content]
    if token.type not in ("html_block", "html_inline"):
        return []
    tags = re.findall(r"<img\b[^>]*>", token.content)
    return [found[1] if (found := re.search(r'\balt="([^"]*)"', tag)) else "" for tag in tags]


def require_use(block: Block) -> None:
    """Raises PageError for a block with neither a run nor a reason."""
    if block.language == "indented":
        raise block.error("an indented block; make it a fence")
    if unknown := block.options.keys() - OPTIONS:
        raise block.error(f"unknown options: {sorted(unknown)}")
    if "norun" in block.options:
        if not block.options["norun"]:
            raise block.error('norun without a reason; write norun="the reason"')
    elif block.language not in (*RUN, *READ, "text"):
        raise block.error(f'nothing runs {block.language!r}; say python, sh, text, or norun="the reason"')
