"""When a commit reaches the disk. A commit that is flushed takes all commits before it along."""

from enum import IntEnum


class Flush(IntEnum):
    """The smallest of a group of commits counts for all of them."""

    NOW = 0
    """Before its call returns: it survives a power cut."""
    SOON = 1
    """Within `FLUSH_SOON_S`: a power cut may lose it. The death of its process does not."""
    NEVER = 2
    """Whenever the system writes it, or a later commit is flushed."""


FLUSH_SOON_S = 0.1
