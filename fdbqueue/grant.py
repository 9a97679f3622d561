"""Grants: handles that have one half of the verbs of a queue, for programs that need no more.

A grant is made of the same base classes as its queue. So it lacks the other verbs for a type checker, and
refuses them when it runs. It is a guard against mistakes, not against programs (docs/grants.md).
"""

from typing import TYPE_CHECKING, Any, Self

from fdbqueue.errors import NotGranted


class Grant:
    """Base of the handles for one half."""

    @classmethod
    def _half_of(cls, queue: Any) -> Self:
        """The half of an open queue."""
        half = cls.__new__(cls)
        half.__dict__.update(queue.__dict__)
        return half

    if not TYPE_CHECKING:  # for a type checker, an unknown name stays an error

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            if name.startswith("_"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            raise NotGranted(grant=kind, verb=name)
