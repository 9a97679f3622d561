"""Servers: one of ours for each module and engine, and beanstalkd itself."""

import os
from collections.abc import Iterator

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from tests.beanstalkd.client import BEANSTALKD, Client, Served, beanstalkd, serving
from tests.conftest import CLUSTER_FILE, ENGINES


def url_of(engine: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    if engine == "fdb":
        return f"fdb:{CLUSTER_FILE}"
    return "memory:" if engine == "memory" else f"embedded:{tmp_path_factory.mktemp('served')}/data"


@pytest.fixture(scope="module", params=ENGINES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A URL, and a root of its own."""
    url, root = url_of(request.param, tmp_path_factory), f"fdbqueue-test-cli/{os.urandom(8).hex()}"
    yield url, root
    if url.startswith("fdb"):
        with fdbqueue.open(url) as db:
            db.clear_range_startswith(Subspace(tuple(root.split("/"))).key())


@pytest.fixture(scope="module")
def served(place: tuple[str, str]) -> Iterator[Served]:
    with serving(*place) as server:
        yield server


@pytest.fixture(scope="module")
def original() -> Iterator[Served]:
    if BEANSTALKD is None:
        pytest.skip("beanstalkd is not installed")
    with beanstalkd() as server:
        yield server


@pytest.fixture
def client(served: Served) -> Iterator[Client]:
    """A connection that uses and watches a tube of its own."""
    with served.client() as client:
        tube = f"t{os.urandom(6).hex()}"
        client.ask(f"use {tube}")
        client.ask(f"watch {tube}")
        client.ask("ignore default")
        yield client
