"""Values of a put, from words of the command line."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.operate.cli.values import key_of, value_of


def values_of(data: Sequence[str], as_text: bool) -> list[Any]:
    """Return the values of words: JSON, or else text. Raises CommandError."""
    with _told():
        return [value_of(text, as_text) for text in data]


def key_in(text: str, as_text: bool) -> Any:
    """Return the key that a word names. Raises CommandError."""
    with _told():
        return key_of(text, as_text)


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except ValueError as reason:
        raise CommandError(str(reason)) from None


def header_of(text: str) -> tuple[str, str]:
    """Return the header of NAME=TEXT. Raises BadParameter."""
    name, separator, value = text.partition("=")
    if not (name and separator):
        raise click.BadParameter(f"{text!r} is no NAME=TEXT", param_hint="--header")
    return name, value


def with_limit_key(given: dict[str, Any], as_text: bool) -> None:
    """Give the `limits` of a put the limit that is named with a key, too. Raises UsageError."""
    keyed: Sequence[tuple[str, str]] = given.pop("limit_key", ())
    if len(keyed) > 1:
        raise click.UsageError("--limit-key is for one limit: a task waits for one key at a time")
    for name, key in keyed:
        if name in given.get("limits", ()):
            raise click.UsageError(f"--limit and --limit-key name the same limit, {name!r}")
        given["limits"] = {**dict.fromkeys(given.get("limits", ())), name: key_in(key, as_text)}
