"""Imported by each Python program that the tests of a cluster start: see guard.py and buggify.py there."""

from contextlib import suppress

with suppress(ImportError):  # a Python without this project cannot reach the cluster either
    from tests import buggify, guard

    guard.enter()
    buggify.count_errors()
