"""Extras: the packages that one part of fdbqueue needs, and the others do without."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(name: str, *modules: str) -> Iterator[None]:
    """For the imports of a part: an error that one of `modules` is missing names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name not in modules:
            raise
        message = f"{missing.name} is not installed: pip install 'fdbqueue[{name}]'"
        raise ModuleNotFoundError(message, name=missing.name) from None
