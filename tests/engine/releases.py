"""Differences between FoundationDB 7.1.67, 7.3.79 and 7.4.6 that tests meet.

The package itself meets those of `_SPARE_FUNCTIONS` in fdbqueue/core/binding.py only.
"""

import pytest

from fdbqueue.core.binding import library_release

SINCE_7_3 = ("on_error(1078)", "read_priority_low")
"""A library of 7.1 does not retry this error, and refuses this option."""
MUTATION_BYTES_LESS = 16
"""Bytes that each mutation lacks in an approximate size of 7.1."""


def is_before_7_3(engine: str) -> bool:
    """True on a cluster of 7.1."""
    return engine == "fdb" and tuple(map(int, library_release().split(".")[:2])) < (7, 3)


def require(engine: str, what: str) -> None:
    if is_before_7_3(engine) and what in SINCE_7_3:
        pytest.skip(f"{what} came with FoundationDB 7.3")
