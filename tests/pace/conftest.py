from collections.abc import Iterator

import pytest

from fdbqueue.core.database import Database
from tests.pace.support import Cluster, Hasty, opened


@pytest.fixture
def whole() -> Iterator[tuple[Database, Cluster, Hasty]]:
    found = opened()
    with found[0]:
        yield found


@pytest.fixture
def pdb(whole) -> Database:
    return whole[0]


@pytest.fixture
def cluster(whole) -> Cluster:
    return whole[1]


@pytest.fixture
def runtime(whole) -> Hasty:
    return whole[2]
