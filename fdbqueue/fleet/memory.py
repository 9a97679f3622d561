"""The resident memory of this process."""

import os
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def rss_bytes() -> int:
    """Return the number of resident bytes now; without /proc, the maximum until now."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
