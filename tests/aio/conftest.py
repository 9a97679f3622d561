"""A root of its own for each test: a cluster is shared."""

import os
from collections.abc import Iterator

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.guard import TEST_ROOT


@pytest.fixture
def root(url: str) -> Iterator[Subspace]:
    fresh = TEST_ROOT[os.urandom(8)]
    yield fresh
    if url.startswith("fdb:"):
        with fdbqueue.open(url) as db:
            db.clear_range_startswith(fresh.key())
