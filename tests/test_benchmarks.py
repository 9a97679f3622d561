"""Benchmarks leave nothing in the database that they were given."""

from contextlib import suppress

import pytest

import fdbqueue
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
