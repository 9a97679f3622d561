"""The verbs about values that were set aside: every queue that keeps a codec has them."""

from typing import TypeVar

from fdbqueue.aio.verbs import Face, awaited
from fdbqueue.core.calls.asides import KeepsAside

B = TypeVar("B")


class AsideFace(Face[B]):
    """The awaited face of a `KeepsAside`."""

    __slots__ = ()

    aside = awaited(KeepsAside.aside)
    remove_aside = awaited(KeepsAside.remove_aside)
    unreadable = awaited(KeepsAside.unreadable)
