"""Places of buried tasks: in which partition a task lies, and where in its order."""

from typing import NamedTuple


class Place(NamedTuple):
    """How far a look at buried tasks has come: it goes through the partitions by their numbers."""

    partition: int = 0
    key: bytes = b""
    """The place of the last task in the order of its partition; empty before the first one."""
