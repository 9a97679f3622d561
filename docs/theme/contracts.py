"""The contract of a call in the reference: its labelled lines as a list of definitions, with links.

A docstring states it as lines that begin with `Reads:`, `Writes:`, `Conflicts:`, `Raises:` or `Round trips:`.
"""

import re
from collections.abc import Iterator
from typing import Any

import griffe

from fdbqueue.core import limits

LABELS = ("Reads", "Writes", "Conflicts", "Raises", "Round trips")
_LABEL = re.compile(rf"(?:^|(?<=\. ))({'|'.join(LABELS)}): ", re.MULTILINE)
_ERRORS = "fdbqueue.errors"
_LIMIT = re.compile(r"\blimits\.([A-Z]+(?:_[A-Z]+)+)\b")


class Contracts(griffe.Extension):
    """Rewrites docstrings as Markdown when all modules are read, so that every name is known."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Rewrite the docstrings of the package."""
        if pkg.name != "fdbqueue":
            return
        _export_errors(pkg["core.errors"])
        names = Names(pkg)
        for docstring in _docstrings_below(pkg):
            docstring.value = as_markdown(docstring.value, names)


def _export_errors(errors: griffe.Module) -> None:
    """Do as the module does when it runs: its errors are public."""
    errors.exports = [name for name in errors.classes if not name.startswith("_")]


class Names:
    """The errors and the limits of the package."""

    def __init__(self, package: griffe.Module) -> None:
        errors = sorted(package["core.errors"].classes, key=len, reverse=True)
        self._error = re.compile(rf"\b({'|'.join(errors)})\b")
        self._limits = {name: str(limit.value) for name, limit in package["core.limits"].attributes.items()}

    def explained(self, text: str) -> str:
        """The text with a link for each error, and with the value of each limit; code stays as it is."""
        parts = re.split(r"(`[^`]*`)", text)
        parts[::2] = [_LIMIT.sub(self._with_value, self._linked(part)) for part in parts[::2]]
        return "".join(parts)

    def _linked(self, text: str) -> str:
        return self._error.sub(rf"[\1][{_ERRORS}.\1]", text)

    def _with_value(self, match: re.Match[str]) -> str:
        value = self._limits.get(match[1]) or str(getattr(limits, match[1]))  # two are set in one line
        return f"`{match[0]}` ({int(value):,})" if value.isdigit() else f"`{match[0]}` ({value})"


def as_markdown(text: str, names: Names) -> str:
    """The docstring with its contract as a list of definitions."""
    before, *parts = _LABEL.split(text)
    if not parts:
        return names.explained(text)
    # A blank line ends the contract.
    parts[-1], _, after = parts[-1].partition("\n\n")
    entries = "\n\n".join(_entry(*pair) for pair in zip(parts[::2], parts[1::2], strict=True))
    return names.explained("\n\n".join([before.rstrip(), entries, after]))


def _entry(label: str, line: str) -> str:
    return f"{label}\n:   {' '.join(line.split())}"


def _docstrings_below(parent: griffe.Module | griffe.Class) -> Iterator[griffe.Docstring]:
    for member in parent.members.values():
        if member.is_alias:
            continue
        if member.docstring is not None:
            yield member.docstring
        if isinstance(member, griffe.Module | griffe.Class):
            yield from _docstrings_below(member)
