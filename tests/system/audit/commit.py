"""Step: the values of each key of a queue before and after a commit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fdbqueue.testing.trace import Commit


class Values(NamedTuple):
    """The values of a key before and after a commit; None for a key that is not there."""

    before: bytes | None
    after: bytes | None


@dataclass(frozen=True)
class Step:
    """The keys of one queue, or of the root, that a commit has changed."""

    commit: Commit
    changes: Mapping[bytes, Values]
    cleared: Sequence[tuple[bytes, bytes]] = ()
    """The ranges that it has cleared."""
    unseen: Sequence[bytes] = ()
    """The changed keys with values that other commits have written since its read version."""
    kept: Sequence[bytes] = ()
    """The keys that it has written with the values that they had."""

    def is_cleared(self, key: bytes) -> bool:
        """True if the commit has cleared a range with the key."""
        return any(begin <= key < end for begin, end in self.cleared)
