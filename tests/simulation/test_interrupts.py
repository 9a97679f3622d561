"""Interrupts, late commits and partitions of the simulation, and what they must not leave behind."""

from collections.abc import Callable
from typing import Any

import pytest

from fdbqueue.core.calls import Waiter
from fdbqueue.core.seam import FDBError
from fdbqueue.testing import Client, Faults, Simulation
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Result
from tests.system.workloads.common import enqueue, queue

KEY = b"key"
NAME = "interrupted"


def run_one(work: Callable[[Client], Any], faults: Faults | None = None, seed: int = 1) -> Result:
    simulation = Simulation(seed, faults=faults or Faults())
    simulation.client(work, "client")
    return simulation.run([no_watch_left_behind])


def test_an_interrupted_wait_for_an_item_leaves_no_watch() -> None:
    def wait(client: Client) -> None:
        client.interrupted(1, lambda: queue(NAME).dequeue(client.db, timeout=60))
        assert client.runtime.monotonic() < 2

    assert run_one(wait).violations == ()


def test_an_interrupted_sleep_leaves_no_watch() -> None:
    def sleep(client: Client, waiter: Waiter) -> None:
        tr = client.db.create_transaction()
        watch = tr.watch(KEY)
        tr.commit().wait()
        waiter.sleep([watch], 60)

    def wait(client: Client) -> None:
        with client.db.waiter() as waiter:
            client.interrupted(1, lambda: sleep(client, waiter))

    assert run_one(wait).violations == ()


def test_an_interrupt_that_comes_too_late_changes_nothing() -> None:
    found: list[object] = []

    def work(client: Client) -> None:
        found.append(client.interrupted(5, lambda: "done"))
        client.runtime.sleep(10)

    assert run_one(work).violations == ()
    assert found == ["done"]


def test_a_lock_goes_to_the_next_after_an_interrupted_wait() -> None:
    got: list[str] = []

    def work(client: Client) -> None:
        lock = client.runtime.lock()

        def hold(_: Client) -> None:
            with lock:
                client.runtime.sleep(1)

        def follow(_: Client) -> None:
            client.runtime.sleep(0.5)
            with lock:
                got.append("follower")

        threads = [client.thread(hold, "holder"), client.thread(follow, "follower")]
        client.runtime.sleep(0.2)
        client.interrupted(0.8, lock.acquire)
        for thread in threads:
            thread.join()

    for seed in range(20):
        assert run_one(work, seed=seed).violations == ()
    assert got == ["follower"] * 20


def test_a_late_commit_arrives_before_the_next_one() -> None:
    """Never afterwards: the retry that has committed decides."""
    seen: set[tuple[bytes | None, bytes | None]] = set()

    def write(client: Client) -> None:
        tr = client.db.create_transaction()
        tr[KEY] = b"late"
        with pytest.raises(FDBError, match="1039") as caught:
            tr.commit().wait()
        client.calm()
        tr.on_error(caught.value).wait()
        before = tr.snapshot[KEY].value
        tr[b"other"] = b"retried"
        tr.commit().wait()
        after = client.db[KEY]
        client.runtime.sleep(10)
        assert client.db[KEY] == after
        seen.add((before, after))

    for seed in range(40):
        assert run_one(write, Faults(version_changed=1.0), seed).violations == ()
    assert seen == {(None, None), (None, b"late"), (b"late", b"late")}


def test_a_late_commit_conflicts_with_commits_before_it() -> None:
    """It has its read version from the time when it was sent, though it has read nothing."""
    seen: set[bytes | None] = set()

    def write(client: Client) -> None:
        tr = client.db.create_transaction()
        tr.add_read_conflict_key(KEY)
        tr[b"late"] = b"value"
        with pytest.raises(FDBError, match="1039"):
            tr.commit().wait()
        client.calm()
        client.db[KEY] = b"value"
        arrived = client.db[b"late"]
        client.runtime.sleep(10)
        assert client.db[b"late"] == arrived
        seen.add(arrived)

    for seed in range(40):
        assert run_one(write, Faults(version_changed=1.0), seed).violations == ()
    assert seen == {None, b"value"}


def test_an_enqueue_that_arrives_late_happens_once() -> None:
    def work(client: Client) -> None:
        q = queue(NAME)
        enqueue(client, q, NAME, ["a"])
        client.calm()
        assert q.items(client.db, 9) == ["a"]

    for seed in range(20):
        assert run_one(work, Faults(version_changed=0.5), seed).violations == ()


def test_a_partition_is_of_one_client() -> None:
    took_s: dict[str, float] = {}

    def work(client: Client) -> None:
        began = client.runtime.monotonic()
        client.db[KEY] = b"value"
        took_s[client.name] = client.runtime.monotonic() - began

    simulation = Simulation(1, faults=Faults())
    simulation.client(work, "away")
    simulation.client(work, "near")
    simulation.outage(0, 20, "away")
    assert simulation.run().violations == ()
    assert took_s["near"] < 1 < 15 < took_s["away"]
