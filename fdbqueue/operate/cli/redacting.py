"""Redaction on the command line: $FDBQUEUE_REDACT names the paths that looks hide, with commas between.

`take`, `get` and `work` hand tasks to their consumers, and hide nothing.
"""

import os
from collections.abc import Sequence
from functools import lru_cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.task import Failure, Task
from fdbqueue.operate.cli.exits import Refused

if TYPE_CHECKING:
    from fdbqueue.core.redaction import Redaction

VARIABLE = "FDBQUEUE_REDACT"
_MADE = "fdbqueue.core.redaction:redaction_of"
"""A name, imported at its first use: most commands have nothing to hide."""


def in_environment() -> "Redaction | None":
    """Raises: InvalidArgument for a variable that names another path than of data, headers or a result."""
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
    """Return a value without its hidden parts; `path` is "data" or "result"."""
    redaction = in_environment()
    return value if redaction is None else redaction.value(path, value)


def require_open(what: str, path: str = "") -> None:
    """Refuse a command that would show a hidden value, or find by it; `path` is its place, if it has one."""
    redaction = in_environment()
    if redaction is not None and (not path or redaction.meets(path)):
        raise Refused(f"{what} would tell a value that {VARIABLE} hides: unset it, if you may see that")
