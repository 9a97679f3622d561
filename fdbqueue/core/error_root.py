"""The root of the public errors (errors.py): how a class, its docstring and its data become a message."""

from collections.abc import Mapping
from typing import Any, ClassVar

from fdbqueue.core.visible import counted, shortened, shown, told, visible

MESSAGE_LENGTH_MAX = 900
NOUN = "~"
"""In the docstring of an error, `{number:~task}` is 1 task or 2 tasks."""


REFUSED, ERROR = 1, 2


class FdbQueueError(Exception):
    """fdbqueue failed."""

    heals: ClassVar[bool] = True
    """False if each later call on the database raises this error, until another process takes over."""
    exit_code: ClassVar[int] = ERROR
    """Status with which the command line ends: REFUSED if the call was right, and the state is not."""

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, message: str | None = None, **data: Any) -> None:
        for name, value in data.items():
            setattr(self, name, value)
        if message is None:
            message = _message_of(self, {name: _Shown(data[name]) for name in data})
        short = shortened(message, MESSAGE_LENGTH_MAX)
        super().__init__(shortened(visible(short, keep="\n"), MESSAGE_LENGTH_MAX))


def _message_of(error: FdbQueueError, data: dict[str, "_Shown"]) -> str:
    """With `python -OO` there are no docstrings: the class and the data have to do."""
    if type(error).__doc__ is None:
        told_data = ", ".join(f"{name}={value!r}" for name, value in data.items())
        return f"{type(error).__name__}({told_data})"
    return (error.__doc__ or "").strip().format(**data)


def heals(error: BaseException) -> bool:
    """False if the error ends the work of this process on its database (`FdbQueueError.heals`)."""
    return not isinstance(error, FdbQueueError) or error.heals


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


def public_errors(names: Mapping[str, Any]) -> list[str]:
    """The names of a module that are errors of this tree."""
    return sorted(
        name for name, value in names.items() if isinstance(value, type) and issubclass(value, FdbQueueError)
    )
