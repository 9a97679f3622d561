"""Benchmarks leave nothing in the database that they were given."""

from collections import Counter
from contextlib import suppress

import pytest

import fdbqueue
from benchmarks import batches, partitions, storage_servers
from benchmarks.fresh import SPACE, fresh_queue, leaving_nothing
from benchmarks.queue import erased, fresh_space
from benchmarks.tasks import raw


@pytest.fixture
def url(tmp_path):
    return f"embedded:{tmp_path}/data"


def test_fresh_queues_are_removed_however_the_benchmark_ends(url):
    with suppress(KeyboardInterrupt), leaving_nothing(url):
        with fdbqueue.open(url) as db:
            fdbqueue.TaskQueue.create(db, "a user's")
            queue = fresh_queue(db)
            queue.put_many(db, range(300))
            queue.take(db, 0)
            raw(db)()
        raise KeyboardInterrupt
    with fdbqueue.open(url) as db:
        assert fdbqueue.list_queues(db) == ["a user's"]
        assert not db.get_range_startswith(SPACE.key())


def test_a_space_is_erased_however_the_benchmark_ends(url):
    space = fresh_space()
    with fdbqueue.open(url) as db:
        db[b"a user's"] = b"1"
    with suppress(KeyboardInterrupt), erased(url, space):
        with fdbqueue.open(url) as db:
            db[space.pack(("ours",))] = b"1"
        raise KeyboardInterrupt
    with fdbqueue.open(url) as db:
        assert [row.key for row in db.get_range(b"", b"\xff")] == [b"a user's"]


def test_the_threads_of_a_load_work_on_each_task_once():
    plan = storage_servers.Plan(queues=3, threads=4, tasks=25)
    with fdbqueue.open("memory:") as db:
        queues = storage_servers.make_queues(db, SPACE["servers"], plan)
        storage_servers.work(db, queues, plan)
        assert [queue.statistics(db)["calls"]["ack"] for queue in queues] == [9, 8, 8]


def test_the_busiest_storage_server_comes_first():
    idle, busy = storage_servers.Grown(), storage_servers.Grown(1_000_000, 500, 700)
    _, first, second = storage_servers.table({"idle": idle, "busy": busy}, Counter(busy=2), tasks=100)
    assert first.split() == ["busy", "2", "1.0", "MB", "100.0%", "10,000", "500", "700"]
    assert second.split() == ["idle", "0", "0.0", "MB", "0.0%", "0", "0", "0"]


def test_clients_of_partitions_are_counted_together(url):
    found = partitions.counts(url, clients=3, partitions=4, tasks=12, backlog=2, rest_s=0)
    assert found.commits >= 2  # callers of one process may share a commit
    with fdbqueue.open(url) as db:
        assert not list(db.get_range(b"", b"\xff"))


def test_clients_of_partitions_may_be_processes(url):
    found = partitions.counts(url, clients=2, partitions=4, tasks=4, rest_s=0, as_processes=True)
    assert found.commits >= 2


def test_a_task_of_a_large_batch_costs_few_writes():
    """As docs/workers.md says; a renewal of the leases, with which no short handler meets, not counted."""
    with fdbqueue.open("memory:") as db:
        found = {kind: batches.cost(db, kind, 100) for kind in batches.KINDS}
    assert [round(one.mutations) for one in found.values()] == [5, 7, 8]
    assert max(one.transactions for one in found.values()) <= batches.TRANSACTIONS_WANTED
    assert found["fifottl"].is_as_wanted
