"""Write the reference part of docs/cli.md: the text that each command prints with --help.

python docs/cli_reference.py            rewrite it
python docs/cli_reference.py --check    status 1 if the page differs from the help texts
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from fdbqueue.operate.cli.commands import cli

PAGE = Path(__file__).parent / "cli.md"
BEGIN = "<!-- From here on: python docs/cli_reference.py -->\n"
WIDTH = 100


def page() -> str:
    """The page as it should be: what stands before the reference, and the reference."""
    written, marker, _ = PAGE.read_text().partition(BEGIN)
    assert marker, f"{PAGE} has no line {BEGIN!r}"
    return written + BEGIN + "".join(_sections())


def _sections() -> Iterator[str]:
    cli.load()
    wide = {**cli.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    yield from _sections_of(cli, click.Context(cli, info_name="fdbqueue", **wide))


def _sections_of(command: click.Command, context: click.Context) -> Iterator[str]:
    yield _section(context.command_path, command.get_help(context))
    inner = command.commands if isinstance(command, click.Group) else {}
    for name, each in sorted(inner.items()):
        yield from _sections_of(each, click.Context(each, info_name=name, parent=context))


def _section(title: str, text: str) -> str:
    return f"\n### {title}\n\n```text\n{text}\n```\n"


def main() -> int:
    wanted = page()
    if "--check" in sys.argv:
        return int(PAGE.read_text() != wanted)
    PAGE.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
