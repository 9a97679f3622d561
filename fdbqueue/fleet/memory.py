"""How much memory this process has."""

import os
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def rss_bytes() -> int:
    """Resident, as the system counts it now; where it does not say, the most it has been."""
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
