"""Imported by each Python program that the tests of a cluster start: see tests/guard.py."""

from contextlib import suppress

with suppress(ImportError):  # a Python without this project cannot reach the cluster either
    from tests import guard

    guard.enter()
