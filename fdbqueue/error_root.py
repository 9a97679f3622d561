"""The root of the public errors (errors.py): how a class, its docstring and its data become a message."""

from typing import Any

from fdbqueue.plurals import counted
from fdbqueue.visible import shortened, shown, told, visible

MESSAGE_LENGTH_MAX = 900
NOUN = "~"
"""In the docstring of an error, `{number:~task}` is 1 task or 2 tasks."""


class FdbQueueError(Exception):
    """fdbqueue failed."""

    def __init__(self, message: str | None = None, **data: Any) -> None:
        for name, value in data.items():
            setattr(self, name, value)
        if message is None:
            message = (self.__doc__ or "").strip().format(**{name: _Shown(data[name]) for name in data})
        short = shortened(message, MESSAGE_LENGTH_MAX)
        super().__init__(shortened(visible(short, keep="\n"), MESSAGE_LENGTH_MAX))


class _Shown:
    """A value in a message: short, and without control characters."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return shown(self._value)

    def __format__(self, spec: str) -> str:
        if spec.startswith(NOUN):
            return counted(self._value, spec.removeprefix(NOUN))
        return format(self._value, spec) if spec else told(self._value)
