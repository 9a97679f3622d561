"""Fault drills on a cluster of our own: servers die, freeze and recover under load; nothing lost or doubled.

They start and kill their own servers, so they need `fdbserver` and `fdbcli` on the PATH (of the binding's
version) beside FDB_CLUSTER_FILE, which says that there is a client library.
"""

import os
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

import fdbqueue
from fdbqueue import HeldTask, TaskQueue, Worker
from loadtest.drills.servers import FDBCLI, FDBSERVER, SERVERS, Servers, wait_until
from tests.conftest import CLUSTER_FILE, TEST_ROOT

if CLUSTER_FILE is None:
    pytest.skip("FDB_CLUSTER_FILE names no cluster", allow_module_level=True)
if FDBSERVER is None or FDBCLI is None:
    pytest.skip("no fdbserver and fdbcli on the PATH to drill", allow_module_level=True)

from loadtest.drills.load import Load

Rounds = Callable[[int, int], int]

OUTAGE_S = 8.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with Servers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def drilled(servers: Servers) -> Iterator[Load]:
    """Load before, during and after the drill, and then the proof."""
    servers.until_healthy()
    load = Load(servers.cluster_file, TEST_ROOT["drill"][os.urandom(8)])
    began = time.monotonic()
    with load:
        goes_on(load)
        yield load
        goes_on(load)
    verdict = load.judge()
    load.db.close()
    assert verdict.holds, verdict
    assert verdict.doubtful == 0
    print(f"{load.progress()} put and taken in {time.monotonic() - began:.0f} s; {load.db.counters}")


def goes_on(load: Load, items: int = 200) -> None:
    """Wait until the load has moved on by that many."""
    goal = load.progress() + items
    wait_until(lambda: load.progress() >= goal, "the load stands still")


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_is_killed_and_comes_back(servers: Servers, drilled: Load, number: int) -> None:
    servers.kill(number)
    goes_on(drilled)
    servers.start(number)


@pytest.mark.parametrize("number", range(SERVERS))
def test_a_server_freezes_for_ten_seconds(servers: Servers, drilled: Load, number: int) -> None:
    servers.freeze(number)
    time.sleep(10)
    servers.thaw(number)
    goes_on(drilled)


def test_recoveries_are_forced_again_and_again(servers: Servers, drilled: Load, rounds: Rounds) -> None:
    """Each recovery drops the commits under way: the client cannot know, and the receipts must."""
    before = servers.generation()
    for _ in range(rounds(3, 20)):
        servers.recover()
        goes_on(drilled)
    assert servers.generation() > before
    assert drilled.db.counters.unknown > 0


def test_an_outage_longer_than_a_lease_costs_no_attempt(servers: Servers) -> None:
    """All servers stand still while a worker is at a task with one attempt; another would bury it."""
    servers.until_healthy()
    url, root, attempts = f"fdb:{servers.cluster_file}", TEST_ROOT["outage"][os.urandom(8)], []
    begun = Event()

    def handler(task: HeldTask) -> None:
        attempts.append(task.attempts)
        begun.set()
        time.sleep(OUTAGE_S + 2 if task.attempts == 1 else 0)

    with fdbqueue.open(url) as here, fdbqueue.open(url) as there:
        queue = TaskQueue.create(here, "jobs", "fifottl", ttr=2, root=root)
        options: dict[str, Any] = {"attempts": 1, "session_ttr_s": 3, "root": root}
        workers = [Worker(db, "jobs", handler, **options) for db in (here, there)]
        for worker in workers:
            worker.start()
        queue.put(here, "x")
        assert begun.wait(30)
        for number in range(SERVERS):
            servers.freeze(number)
        time.sleep(OUTAGE_S)
        for number in range(SERVERS):
            servers.thaw(number)
        wait_until(lambda: not queue.statistics(here)["tasks"]["total"], "the task stays")
        for worker in workers:
            worker.stop()
            assert worker.join(60)
        assert len(attempts) > 1
