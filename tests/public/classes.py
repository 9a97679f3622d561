"""Every class in the public names of the package and of its parts, and examples of its values.

An example is made of the types of the fields, so a new value or error has one by itself.
"""

import enum
import importlib
import inspect
import string
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any

import fdbqueue
from fdbqueue.embedded import FDBError, KeySelector, KeyValue
from fdbqueue.fleet.held import Hold
from fdbqueue.testing import Checker

ADAPTERS = ("celery", "django", "dramatiq", "opentelemetry", "prometheus", "taskiq")
PLACES = ("", ".aio", ".embedded", ".testing", ".testing.pytest_plugin")
PLACES += tuple(f".integrations.{name}" for name in ADAPTERS)


def public_classes() -> dict[str, type]:
    """Classes by the name under which a program imports them."""
    found = {}
    for place in PLACES:
        module = importlib.import_module(f"fdbqueue{place}")
        for name in getattr(module, "__all__", vars(module)):
            one = getattr(module, name)
            if inspect.isclass(one) and not name.startswith("_") and one.__module__.startswith("fdbqueue"):
                found[f"{module.__name__}.{name}"] = one
    return found


def is_error(one: type) -> bool:
    return issubclass(one, BaseException)


def is_interface(one: type) -> bool:
    """True for a protocol: a program has objects of other classes."""
    return bool(getattr(one, "_is_protocol", False))


def is_of_a_framework(one: type) -> bool:
    """True if a class of another package is its base: that package decides what its objects can do."""
    ours = ("fdbqueue", "builtins", "typing", "abc", "logging", "enum", "msgspec")
    return any(base.__module__.split(".")[0] not in ours for base in one.__mro__)


def is_value(one: type) -> bool:
    return is_error(one) or issubclass(one, enum.Enum) or is_dataclass(one) or one in VALUES


def function_of_a_program(*_: Any) -> None:
    """A function that a value holds."""


VALUES: Mapping[type, Sequence[Any]] = {
    fdbqueue.Bury: [fdbqueue.Bury("broken", "a traceback"), fdbqueue.Bury()],
    fdbqueue.Done: [fdbqueue.Done(function_of_a_program, {"result": 1}), fdbqueue.Done()],
    fdbqueue.Page: [fdbqueue.Page([1, 2], "00ff"), fdbqueue.Page()],
    fdbqueue.Renewed: [fdbqueue.Renewed({"1": 2.0, "2": None}, ["2"])],
    fdbqueue.Retry: [fdbqueue.Retry(5), fdbqueue.Retry(reason="busy", detail="a traceback")],
    fdbqueue.Handoff: [fdbqueue.Handoff(60, "Ada")],
    fdbqueue.Snooze: [fdbqueue.Snooze(60, "r")],
    FDBError: [FDBError(1020)],
    KeySelector: [KeySelector(b"key", True, 2)],
    KeyValue: [KeyValue(b"key", b"value")],
}
"""Examples of values that are made neither of the fields of a dataclass nor of the data of an error."""


def examples_of(one: type) -> Sequence[Any]:
    """Values of the class. Raises TypeError for a field of a type without an example."""
    if one in VALUES:
        return VALUES[one]
    if issubclass(one, enum.Enum):
        return list(one)
    if issubclass(one, fdbqueue.FdbQueueError):
        return [one(**dict.fromkeys(data_of(one), 7)), one("a message of its own")]
    if is_error(one):
        return [one("a message")]
    return [_of_fields(one)]


def data_of(error: type) -> set[str]:
    """The names of the data of an error."""
    said = string.Formatter().parse((error.__doc__ or "").strip())
    annotated = [vars(base).get("__annotations__", {}) for base in error.__mro__]
    return {name for _, name, _, _ in said if name}.union(*annotated)


def _of_fields(one: Any) -> Any:
    hints = typing.get_type_hints(one, localns={"Task": fdbqueue.Task})
    return one(**{each.name: _example(hints[each.name]) for each in fields(one) if each.init})


def _example(hint: Any) -> Any:
    """A value of a type, with something in each container."""
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _example(arguments[0])
    if origin in (tuple, list, Sequence):
        return (list if origin is list else tuple)(_example(one) for one in arguments if one is not ...)
    if origin in (dict, Mapping):
        return dict([tuple(map(_example, arguments))])
    if origin is Callable or origin is Checker:
        return function_of_a_program
    if is_dataclass(origin):
        return _of_fields(origin)
    if isinstance(origin, type) and issubclass(origin, enum.Enum):
        return next(iter(origin))
    return _PLAIN[origin]


_PLAIN: Mapping[Any, Any] = {
    Any: ["anything"],
    object: ["anything"],
    int: 7,
    float: 2.5,
    str: "text",
    bytes: b"bytes",
    bool: True,
    timedelta: timedelta(hours=1),
    Hold: None,
    BaseException: ValueError("a message"),
    fdbqueue.FdbQueueError: fdbqueue.TaskNotFound(id="1", name="jobs"),
}
