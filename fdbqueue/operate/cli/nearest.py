"""The names that are most like a mistyped one."""

from collections.abc import Iterable
from difflib import get_close_matches

_LISTED_MAX = 3
_LIKENESS = 0.6


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the `names` most like `name`, ignoring case, the nearest first; then names that contain it."""
    by_lower: dict[str, list[str]] = {}
    for known in names:
        by_lower.setdefault(known.lower(), []).append(known)
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower, _LISTED_MAX, _LIKENESS)
    parts = [lower for lower in by_lower if lower not in close and (wanted in lower or lower in wanted)]
    return [known for lower in (*close, *parts) for known in by_lower[lower]][:_LISTED_MAX]
