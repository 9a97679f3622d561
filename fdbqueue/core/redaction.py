"""Redaction: parts of tasks that are hidden from people at a dashboard or a command line.

A rule decides about each part by its path, such as `data.card` or `headers.token`; the elements of a list
have the path of the list. A hidden part is shown as `***`, with all that lies below it. A text of a failure
may repeat a hidden value, so it is hidden there, too. A payload without parts, such as bytes, is hidden as a
whole, if a path goes into it. Nothing that is stored changes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.task import Explanation, Failure, Task
from fdbqueue.core.unreadable import Unreadable

HIDDEN = "***"
ROOTS = ("data", "headers", "result")
Rule = Callable[[str, Any], Any]
"""Given a path and the value there: true hides it."""
_log = logger("fdbqueue.redaction")


class Redaction:
    def __init__(self, rule: Rule, paths: Iterable[str] = (), *, is_whole: bool = False) -> None:
        """Use `redaction_of`. `is_whole`: hide all data, headers and texts of failures."""
        self._rule = rule
        self._paths = tuple(paths)
        self.is_whole = is_whole

    def hides(self, path: str, value: Any = None) -> bool:
        """True for a hidden part. A rule that raises, or answers something else than a bool, hides it."""
        if self.is_whole:
            return True
        try:
            answer = self._rule(path, value)
        except Exception as error:
            _log.warning("redact has failed at %s, which is hidden: %s", path, type(error).__name__)
            return True
        return answer is not False

    def value(self, path: str, value: Any) -> Any:
        """The value without its hidden parts."""
        if self.hides(path, value):
            return HIDDEN
        if isinstance(value, Mapping):
            return {name: self.value(f"{path}.{name}", below) for name, below in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(path, below) for below in value]
        is_closed = isinstance(value, Unreadable) or not isinstance(value, _LEAVES)
        return HIDDEN if is_closed and self._goes_into(path) else value

    def task(self, task: Task) -> Task:
        headers = {name: str(self.value(f"headers.{name}", text)) for name, text in task.headers.items()}
        if self.hides("headers", task.headers):
            headers = dict.fromkeys(task.headers, HIDDEN)
        return replace(task, data=self.value("data", task.data), headers=headers)

    def texts(self, task: Task) -> Callable[[str], str]:
        """The function that hides values of this task in a text."""
        if self.is_whole:
            return lambda text: HIDDEN if text else text
        parts = {**{f"headers.{name}": text for name, text in task.headers.items()}, "data": task.data}
        hidden = {
            form for path, value in parts.items() for leaf in self._leaves(path, value) for form in leaf
        }
        ordered = sorted(hidden, key=len, reverse=True)

        def hide(text: str) -> str:
            for form in ordered:
                text = text.replace(form, HIDDEN)
            return text

        return hide if ordered else lambda text: HIDDEN if text and self._is_opaque(task) else text

    def failures(self, task: Task, failures: Iterable[Failure]) -> list[Failure]:
        hide = self.texts(task)
        return [replace(one, message=hide(one.message), detail=hide(one.detail)) for one in failures]

    def explanation(self, found: Explanation) -> Explanation:
        hide, last = self.texts(found.task), found.last_failure
        return replace(
            found,
            task=self.task(found.task),
            last_failure=None if last is None else self.failures(found.task, [last])[0],
            reasons=tuple(replace(one, text=hide(one.text)) for one in found.reasons),
        )

    def meets(self, path: str) -> bool:
        """True if the value at that path is hidden, or has a hidden part."""
        above = [path[: at or None] for at in _ends(path)]
        return any(self.hides(one) for one in above) or self._goes_into(path)

    def _goes_into(self, path: str) -> bool:
        """True if a hidden part may lie below. Only the rule knows those of a function: then it is true."""
        return not self._paths or any(one.startswith(f"{path}.") for one in self._paths)

    def _is_opaque(self, task: Task) -> bool:
        closed = isinstance(task.data, Unreadable) or not isinstance(
            task.data, (*_LEAVES, Mapping, list, tuple)
        )
        return closed and (self.hides("data", task.data) or self._goes_into("data"))

    def _leaves(self, path: str, value: Any, hidden: bool = False) -> Iterator[set[str]]:
        """The texts of each hidden value, as a message may spell it."""
        hidden = hidden or self.hides(path, value)
        if isinstance(value, Mapping):
            for name, below in value.items():
                yield from self._leaves(f"{path}.{name}", below, hidden)
        elif isinstance(value, list | tuple):
            for below in value:
                yield from self._leaves(path, below, hidden)
        elif hidden and not isinstance(value, bool | None):
            yield _forms(value)


_LEAVES = (str, bool, int, float, type(None))


def _ends(path: str) -> list[int]:
    """The places in a path where one of its beginnings ends; 0 for the whole."""
    return [*(at for at, letter in enumerate(path) if letter == "."), 0]


def _forms(value: Any) -> set[str]:
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if not isinstance(value, str):
        return {str(value)}
    spelled = {value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return spelled - {""}


def redaction_of(given: Any) -> Redaction | None:
    """The redaction of a list of paths, or of a function of a path and its value; None for nothing.

    Raises: InvalidArgument.
    """
    if given is None or isinstance(given, Redaction):
        return given
    if callable(given):
        return Redaction(given)
    wanted = f"a function, or a list of paths that begin with {', '.join(ROOTS)}"
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidArgument(name="redact", wanted=wanted, got=given)
    paths = list(given)
    for path in paths:
        if not isinstance(path, str) or path.split(".")[0] not in ROOTS or not all(path.split(".")):
            raise InvalidArgument(name="redact", wanted=wanted, got=path)
    known = frozenset(paths)
    return Redaction(lambda path, _: path in known, paths) if known else None


def whole() -> Redaction:
    """All data, headers and texts of failures are hidden."""
    return Redaction(lambda *_: True, is_whole=True)
