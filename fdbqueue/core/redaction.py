"""Redaction: parts of tasks that are hidden from people at a dashboard or a command line.

A rule decides about each part by its path, such as `data.card` or `headers.token`; the elements of a list
have the path of the list, and the keys of limits that of `limits`. A hidden part is shown as `***`, with all
that lies below it. A text of a failure may repeat a hidden value, so it is hidden there, too. A value without
parts, such as bytes or a text of JSON, is hidden as a whole, if a path goes into it. Nothing that is stored
changes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.task import Explanation, Failure, Task, Why
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.core.visible import HIDDEN as HIDDEN

KEYS = ("key", "unique", "group", "limits")
"""Parts without parts of their own."""
ROOTS = ("data", "headers", "result", *KEYS)
Rule = Callable[[str, Any], Any]
"""Given a path and the value there: true hides it."""
_log = logger("fdbqueue.redaction")


class Redaction:
    def __init__(self, rule: Rule, paths: Iterable[str] = (), *, is_whole: bool = False) -> None:
        """Use `redaction_of`. `is_whole`: hide all data, headers, keys and texts of failures."""
        self._rule = rule
        self.paths = tuple(paths)
        self.is_whole = is_whole
        self._has_failed = False

    def hides(self, path: str, value: Any = None) -> bool:
        """True for a hidden part. A rule that raises, or answers something else than a bool, hides it."""
        if self.is_whole:
            return True
        try:
            return self._rule(path, value) is not False
        except Exception as error:
            if not self._has_failed:
                _log.warning("redact has failed at %s, which is hidden: %s", path, type(error).__name__)
            self._has_failed = True
            return True

    def value(self, path: str, value: Any) -> Any:
        """The value without its hidden parts."""
        if self.hides(path, value) or self._is_closed(path, value):
            return HIDDEN
        if isinstance(value, Mapping):
            return {name: self.value(f"{path}.{name}", below) for name, below in value.items()}
        return [self.value(path, below) for below in value] if isinstance(value, list | tuple) else value

    def task(self, task: Task) -> Task:
        headers = self.value("headers", dict(task.headers))
        headers = headers if headers != HIDDEN else dict.fromkeys(task.headers, HIDDEN)
        return replace(
            task,
            data=self.value("data", task.data),
            headers=headers,
            key=self.key("key", task.key),
            unique=self.key("unique", task.unique),
            groups=tuple(self.key("group", group) for group in task.groups),
            limits={name: self.key("limits", key) for name, key in task.limits.items()},
        )

    def key(self, path: str, key: Any) -> Any:
        """The key, if it is not hidden; None for none."""
        return None if key is None else self.value(path, key)

    def texts(self, task: Task) -> Callable[[str], str]:
        """The function that hides values of this task in a text."""
        if self.is_whole or self._is_closed("data", task.data):
            return lambda text: HIDDEN if text else text
        keys = zip(KEYS, (task.key, task.unique, task.groups, [*task.limits.values()]), strict=True)
        parts = (("headers", dict(task.headers)), ("data", task.data), *keys)
        leaves = chain.from_iterable(self._leaves(path, value) for path, value in parts)
        spelled = sorted({form for leaf in leaves for form in _forms(leaf)}, key=len, reverse=True)

        def hide(text: str) -> str:
            for form in spelled:
                text = text.replace(form, HIDDEN)
            return text

        return hide

    def failures(self, task: Task, failures: Iterable[Failure]) -> list[Failure]:
        hide = self.texts(task)
        return [replace(one, message=hide(one.message), detail=hide(one.detail)) for one in failures]

    def failure(self, task: Task, failure: Failure | None) -> Failure | None:
        return failure and self.failures(task, [failure])[0]

    def explanation(self, found: Explanation) -> Explanation:
        hide, failed = self.texts(found.task), found.last_failure
        last = self.failure(found.task, failed)
        # A reason may have cut the text of a failure within a hidden value.
        hidden: dict[Why, Callable[[str], str]]
        hidden = {Why.HANDED_OFF: hide, Why.BURIED: hide if last == failed else lambda _: HIDDEN}
        if any(limit.key is not None for limit in found.reached):
            hidden[Why.LIMIT_REACHED] = hide
        other, reasons = self.key("key", found.overtaken_by), found.reasons
        if found.overtaken_by is not None and HIDDEN in (other, self.key("key", found.task.key)):
            hidden[Why.BEHIND] = lambda text: HIDDEN if text else text
            reasons = tuple(replace(one, cure=HIDDEN) if one.why == Why.BEHIND else one for one in reasons)
        reasons = tuple(replace(one, text=hidden.get(one.why, str)(one.text)) for one in reasons)
        reached = tuple(replace(limit, key=self.key("limits", limit.key)) for limit in found.reached)
        found = replace(found, reasons=reasons, reached=reached, overtaken_by=other)
        return replace(found, task=self.task(found.task), last_failure=last)

    def meets(self, path: str, value: Any = None) -> bool:
        """True if the value at that path is hidden, or may have a hidden part: numbers in it are those of
        elements, which have the path of their list.
        """
        if (root := path.partition(".")[0]) in KEYS:
            return self.hides(root, value)
        asked = _names(path)
        below = (zip(asked, _names(one), strict=False) for one in self.paths)
        return not self.paths or any(all(a == b for a, b in pairs) for pairs in below)

    def _goes_into(self, path: str) -> bool:
        return any(one.startswith(f"{path}.") for one in self.paths)

    def _is_closed(self, path: str, value: Any) -> bool:
        """True for a value without parts that may have a hidden one in it. A function has seen the value."""
        if isinstance(value, Unreadable):
            return not self.paths or self._goes_into(path)
        is_open = isinstance(value, _OPEN) and not (isinstance(value, str) and value.lstrip()[:1] in _NESTED)
        return not is_open and self._goes_into(path)

    def _leaves(self, path: str, value: Any, hidden: bool = False) -> Iterator[Any]:
        """Each hidden value that has no parts."""
        hidden = hidden or self.hides(path, value) or self._is_closed(path, value)
        if isinstance(value, Mapping):
            for name, below in value.items():
                yield from self._leaves(f"{path}.{name}", below, hidden)
        elif isinstance(value, list | tuple):
            for below in value:
                yield from self._leaves(path, below, hidden)
        elif hidden and not isinstance(value, bool | None):
            yield value


_OPEN = (Mapping, list, tuple, str, bool, int, float, type(None))
_NESTED = ("{", "[")
"""The beginnings of a text that may be JSON with a hidden part."""


def _names(path: str) -> list[str]:
    return [part for part in path.split(".") if not part.isdecimal()]


def _forms(value: Any) -> set[str]:
    """The texts by which a message may spell the value."""
    if not isinstance(value, str):
        return {value.decode(errors="replace") if isinstance(value, bytes) else str(value)} - {""}
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
        parts = path.split(".") if isinstance(path, str) else [""]
        if not all(parts) or parts[0] not in ROOTS or (parts[0] in KEYS and parts[1:]):
            raise InvalidArgument(name="redact", wanted=wanted, got=path)
    known = frozenset(paths)
    return Redaction(lambda path, _: path in known, paths) if known else None


def whole() -> Redaction:
    """All data, headers, keys and texts of failures are hidden."""
    return Redaction(lambda *_: True, is_whole=True)
