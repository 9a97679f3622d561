"""kombu's own integration tests, as they are, on our transport (`make upstream` downloads them)."""

from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest

from tests.celery.conftest import kombu_tests

suite = kombu_tests()


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"fdbqueue+embedded://localhost:4690{tmp_path}/data"


@pytest.fixture
def connection(address: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(address) as connection:
        yield connection


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("fdbqueue+embedded://")


@pytest.fixture
def failover_connection(address: str, tmp_path: Path) -> Iterator[kombu.Connection]:
    """The first URL names a directory below a file, so it cannot be opened."""
    (tmp_path / "file").touch()
    dead = f"fdbqueue+embedded://{tmp_path}/file/data"
    with kombu.Connection(f"{dead};{address}", connect_timeout=10) as connection:
        yield connection


class TestBasicFunctionality(suite.BasicFunctionality):
    pass


class TestExchangeTypes(suite.BaseExchangeTypes):
    pass


class TestTimeToLive(suite.BaseTimeToLive):
    pass


class TestPriority(suite.BasePriority):
    pass


class TestMessage(suite.BaseMessage):
    pass


class TestEventLoop(suite.BaseEventLoop):
    pass


class TestFailover(suite.BaseFailover):
    pass
