"""Brokers in a directory, and the tests of kombu's own transports, which `make upstream` downloads."""

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

import fdbqueue.integrations.celery
from fdbqueue.integrations.celery import databases
from tests.frameworks.upstream import source_of

RELEASE = "kombu-5.7.0"


def kombu_tests() -> ModuleType:
    """The module of kombu with the tests that each of its transports runs."""
    path = source_of(RELEASE) / "t" / "integration" / "common.py"
    spec = importlib.util.spec_from_file_location("kombu_common_tests", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _databases_are_closed() -> Iterator[None]:
    yield
    fdbqueue.integrations.celery.close()
    assert all(opening._opened is None for opening in databases._openings.values())
