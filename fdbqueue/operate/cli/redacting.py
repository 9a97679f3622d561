"""Redaction on the command line: $FDBQUEUE_REDACT names the paths that looks hide, with commas between.

`take`, `get` and `work` hand tasks to their consumers whole.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.task import Failure, Task
from fdbqueue.core.visible import HIDDEN
from fdbqueue.operate.cli.exits import Refused

if TYPE_CHECKING:
    from fdbqueue.core.redaction import Redaction
    from fdbqueue.operate.checks import Check

VARIABLE = "FDBQUEUE_REDACT"
_MADE = "fdbqueue.core.redaction:redaction_of"
"""A name, imported at its first use: most commands have nothing to hide."""


def in_environment() -> "Redaction | None":
    """Raises: InvalidArgument for a variable that names another path than of a task or a result."""
    return _of_text(os.environ.get(VARIABLE, ""))


@lru_cache(maxsize=1)
def _of_text(text: str) -> "Redaction | None":
    paths = [path.strip() for path in text.split(",") if path.strip()]
    try:
        return resolve_name(_MADE)(paths) if paths else None
    except InvalidArgument as error:
        raise InvalidArgument(name=VARIABLE, wanted=error.wanted, got=error.got) from None


def seen_failures(task: Task, failures: Sequence[Failure]) -> Sequence[Failure]:
    """Return the failures of a task without their hidden parts."""
    redaction = in_environment()
    return failures if redaction is None else redaction.failures(task, failures)


def seen(path: str, value: Any) -> Any:
    """Return a value without its hidden parts; `path` is the first part of theirs."""
    redaction = in_environment()
    return value if redaction is None else redaction.value(path, value)


def seen_text(text: str | None) -> str | None:
    """Return a text that may tell a part of an unknown task: hidden by any redaction."""
    return HIDDEN if text and in_environment() is not None else text


def seen_check(check: "Check") -> dict[str, Any]:
    """Return a result of a diagnosis as a row, without errors and keys that are hidden."""
    row = asdict(check)
    path = "limits" if "limit" in check.data else "key"
    hidden = {"error": seen_text(check.data.get("error")), "key": seen(path, check.data.get("key"))}
    for name in hidden.keys() & check.data.keys():
        row["text"] = row["text"].replace(check.data[name], hidden[name])
        row["data"][name] = hidden[name]
    return row


def require_open(what: str, path: str = "") -> None:
    """Refuse a command that would show a hidden value, or find by it; `path` is its place, if it has one."""
    redaction = in_environment()
    if redaction is not None and (not path or redaction.meets(path)):
        raise Refused(f"{what} would tell a value that {VARIABLE} hides: unset it, if you may see that")
