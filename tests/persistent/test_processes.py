"""Processes that share a queue, are killed, fork, or just end (sections 1, 2.1 and 2.5)."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

import fdbqueue
from fdbqueue import PersistentQueue
from fdbqueue.core.root_keys import DEFAULT_ROOT
from tests.conftest import CLUSTER_FILE
from tests.persistent.processes import TTR_S, advanced
from tests.persistent.support import Running, drained, filled
from tests.support import PATIENCE_S

ROOT = Path(__file__).parents[2]
URLS = ("embedded",) if CLUSTER_FILE is None else ("embedded", f"fdb:{CLUSTER_FILE}")


@pytest.fixture(params=URLS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'data'}" if request.param == "embedded" else request.param


@pytest.fixture
def name() -> str:
    return f"test-{os.urandom(6).hex()}"


class Child:
    """A process of tests/persistent/processes.py."""

    def __init__(self, what: str, url: str, name: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tests.persistent.processes", what, url, name, *arguments]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def _out(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def said(self) -> str:
        """The next line of its output; fails with its error output if it has ended."""
        line = self._out.readline()
        assert line, self._process.communicate()[1]
        return line.rstrip("\n")

    def kill(self) -> list[str]:
        self._process.kill()
        return self.rest(wanted=-9)

    def rest(self, wanted: int = 0) -> list[str]:
        """Its output until it ends."""
        out, err = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == wanted, err
        return out.splitlines()


@pytest.fixture
def start(url: str, name: str) -> Iterator[Callable[..., Child]]:
    started: list[Child] = []

    def start_one(what: str, *arguments: str) -> Child:
        started.append(Child(what, url, name, *arguments))
        return started[-1]

    yield start_one
    for child in started:
        child._process.kill()
        child._process.communicate()


@pytest.fixture
def q(url: str, name: str) -> Iterator[PersistentQueue]:
    with fdbqueue.open(url) as db, PersistentQueue(db, name, ttr=TTR_S) as queue:
        yield queue
        fdbqueue.TaskQueue.open(db, name, root=DEFAULT_ROOT).truncate(db)


def reopened(q: PersistentQueue, owner: str) -> PersistentQueue:
    return PersistentQueue(q._stored.database, q.name, owner=owner, ttr=TTR_S)


Start = Callable[..., Child]


def test_after_a_kill_the_unacked_items_come_first_in_order(q: PersistentQueue, start: Start) -> None:
    filled(q, range(10))
    child = start("fetch_ten_ack_six", "me")
    assert child.said() == "fetched"
    filled(q, ["later", "still later"])
    child.kill()
    again = reopened(q, "me")
    assert again.qsize() == 6
    assert drained(again) == [0, 1, 2, 3, "later", "still later"]


def test_a_process_that_only_looks_gets_the_items_of_the_killed(url: str, name: str, start: Start) -> None:
    with fdbqueue.open(url) as db:
        filled(PersistentQueue(db, name), range(10))
    child = start("fetch_ten_ack_six")
    assert child.said() == "fetched"
    child.kill()
    time.sleep(TTR_S)  # the wall clock of several processes is what counts
    while not (found := start("drain").rest()):
        pass  # on a slow cluster, the hold of its session begins late: with the commit of its last heartbeat
    assert found == ["0", "1", "2", "3"]


def test_a_restart_gets_the_items_of_the_killed_at_once(url: str, name: str, start: Start) -> None:
    """On a directory, without an owner: the kernel tells that the process is gone."""
    if not url.startswith("embedded"):
        pytest.skip("a cluster does not know its processes")
    with fdbqueue.open(url) as db:
        filled(PersistentQueue(db, name), range(3))
    dead, alive = start("hold_one", "600"), start("hold_one", "600")
    held = [child.said() for child in (dead, alive)]
    dead.kill()
    with fdbqueue.open(url) as db, PersistentQueue(db, name) as again:
        assert drained(again) == [int(held[0]), 2]


def test_items_without_an_owner_return_after_the_ttr(q: PersistentQueue, start: Start) -> None:
    filled(q, range(10))
    child = start("fetch_ten_ack_six")
    assert child.said() == "fetched"
    q.connect()
    waiting = Running(q.get)
    assert waiting.is_waiting
    child.kill()
    assert waiting.result() == 0
    assert [q.get(timeout=PATIENCE_S) for _ in range(3)] == [1, 2, 3]


def test_killed_in_a_transaction_nothing_has_happened(q: PersistentQueue, start: Start) -> None:
    filled(q, "ab")
    child = start("die_in_a_transaction", "me")
    assert child.said() == "inside"
    assert q.qsize() == 1
    child.kill()
    assert drained(reopened(q, "me")) == ["a", "b"]


def test_a_put_wakes_a_get_of_another_process(q: PersistentQueue, start: Start) -> None:
    children = [start("wait_for_an_item") for _ in range(3)]
    for child in children:
        assert child.said() == "waiting"
    time.sleep(0.3)  # they are on their way into the line; nothing depends on their having arrived
    began = time.monotonic()
    filled(q, "abc")
    assert sorted(child.said() for child in children) == ["a", "b", "c"]
    assert time.monotonic() - began < 10


def test_killed_while_it_waits_nothing_is_lost(q: PersistentQueue, start: Start) -> None:
    child = start("wait_for_an_item", "me")
    assert child.said() == "waiting"
    child.kill()
    q.put("a")
    assert q.get(timeout=PATIENCE_S) == "a"


def test_a_program_that_ends_in_good_order_gives_back_at_once(q: PersistentQueue, start: Start) -> None:
    """The program closes none of its proxies: one in a thread, one in a cycle, and the queue itself.

    The ttr is half a minute.
    """
    filled(q, "abcd")
    assert start("end_without_closing").rest() == ["ends"]
    assert drained(q) == ["a", "b", "c", "d"]


def test_a_forked_child_has_nothing_of_its_parents(q: PersistentQueue, start: Start, url: str) -> None:
    """Fetched items and an open transaction stay with the parent, when the child ends, too."""
    if url.startswith("fdb:"):
        pytest.skip("FoundationDB's client cannot be used after a fork")
    filled(q, "ab")
    child = start("fork_with_an_item")
    said = child.rest()
    assert sorted(said[:2]) == ["b", "not the child's to ack"]
    assert said[2:] == ["1", "acked by the parent"]
    assert drained(q) == ["by the transaction, once"]


def test_killed_workers_advance_every_item_exactly_once(
    q: PersistentQueue, start: Start, rounds: Callable[[int, int], int]
) -> None:
    """Each step is a transaction: after a kill it has happened, or the item is back as it was."""
    count, stages = rounds(80, 2_000), 4
    filled(q, ([n, 0] for n in range(count)))
    workers = [start("advance", str(stages)) for _ in range(3)]
    for _ in range(rounds(6, 60)):
        time.sleep(random.uniform(0.1, 0.5))
        workers.pop(random.randrange(3)).kill()
        workers.append(start("advance", str(stages)))
    for worker in workers:  # items at the last stage are held by them
        worker.kill()
    arrived: list[int] = []
    while len(arrived) < count:
        item = q.get(timeout=PATIENCE_S)
        if item[1] == stages:
            arrived.append(item[0])
        else:
            advanced(q, item)
    assert Counter(arrived) == dict.fromkeys(range(count), 1)
    assert q.qsize() == 0
