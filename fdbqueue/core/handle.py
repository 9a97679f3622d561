"""Handle: the base of the objects of one process that stand for something in a database.

A grant is a handle with one half of the verbs of a queue, for programs that need no more. It is made of the
same base classes as its queue. So it lacks the other verbs for a type checker, and refuses them when it runs.
It is a guard against mistakes, not against programs (docs/grants.md).
"""

import re
from typing import TYPE_CHECKING, Any, NoReturn, Self, SupportsIndex

from fdbqueue.core.errors import NotCopied, NotGranted
from fdbqueue.core.visible import shown

_KNOWN_QUERY = "durability"
_HIDDEN = "***"
_USER = re.compile(r"(?<=//)[^/@]*(?=@)")
_QUERY = re.compile(rf"(?<=[?&])(?!{_KNOWN_QUERY}=)([^=&]*)=[^&]*")


class Handle:
    """It tells its name, kind and URL, and is not copied: a copy would share locks, threads and leases."""

    __slots__ = ("__weakref__",)

    def _shown(self) -> dict[str, Any]:
        """Return what the repr tells, by name; None is left out."""
        return {}

    def __repr__(self) -> str:
        try:
            told = [f"{name}={shown(value)}" for name, value in self._shown().items() if value is not None]
        except AttributeError:  # a debugger may look before the end of `__init__`
            told = []
        return f"{type(self).__name__}({', '.join(told)})"

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        # Of pickle, copy and deepcopy alike.
        raise NotCopied(kind=type(self).__name__)

    def _twin(self) -> Self:
        """A copy for this class itself, which may change it before others have it."""
        twin = object.__new__(type(self))
        copy_slots(self, twin)
        return twin


def copy_slots(one: object, other: object) -> None:
    """Give `other` the attributes of `one` that its class has, too."""
    for cls in type(other).__mro__:
        for name in vars(cls).get("__slots__", ()):
            if name != "__weakref__" and hasattr(one, name):
                setattr(other, name, getattr(one, name))


def public_url(url: str) -> str:
    """Return the URL without secrets: a user with a password, and each unknown part of a query."""
    return _QUERY.sub(rf"\1={_HIDDEN}", _USER.sub(_HIDDEN, url))


class Grant:
    """Base of the handles for one half."""

    __slots__ = ()

    @classmethod
    def _half_of(cls, queue: Any) -> Self:
        """The half of an open queue."""
        half = cls.__new__(cls)
        copy_slots(queue, half)
        return half

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise NotGranted(grant=kind, verb=name)
