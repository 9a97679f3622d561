"""Snapshots end in time, forgotten ones too; and too many of them are an error."""

import os
import threading
from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue.embedded import FDBError, futures, predicates, store
from tests.support import TOO_OLD, ManualClock, begin, error_code


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(clock: ManualClock) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def test_commits_without_reads_end_forgotten_snapshots(db, clock):
    """Otherwise a snapshot would keep old pages, and all later commits in memory."""
    forgotten = begin(db)
    clock.advance(60)
    for _ in range(300):
        db[b"a"] = b"1"
    assert len(db.engine._store.committer._batches._recent._commits) < 10
    assert error_code(forgotten[b"a"].wait) == TOO_OLD


def test_two_threads_may_end_the_same_snapshot(db, clock, monkeypatch):
    forgotten, end = begin(db), store.Snapshot.end

    def end_slowly(snapshot: store.Snapshot) -> None:
        monkeypatch.setattr(store.Snapshot, "end", end)
        other = threading.Thread(target=begin, args=(db,))
        other.start()
        other.join()
        end(snapshot)

    monkeypatch.setattr(store.Snapshot, "end", end_slowly)
    clock.advance(60)
    begin(db)
    assert error_code(forgotten[b"a"].wait) == TOO_OLD


def test_too_many_open_transactions_are_a_retryable_error(monkeypatch):
    monkeypatch.setattr(store, "_READERS_MAX", 10)
    with fdbqueue.open("memory:") as db:
        held = [begin(db) for _ in range(10)]
        with pytest.raises(FDBError) as refused:
            begin(db)
        assert predicates.is_retryable(refused.value)
        del held, refused
        assert db[b"a"] is None


def test_a_killed_readers_pages_become_free(tmp_path):
    """A long-lived process frees them, without another opening of the directory."""
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        db[b"a"] = b"1"
        child = os.fork()
        if child == 0:
            reading = begin(db)
            os.kill(os.getpid(), 9)
            del reading
        os.waitpid(child, 0)
        for _ in range(300):
            db[b"a"] = b"v" * 50_000
        assert os.stat(tmp_path / "data" / "data.mdb").st_size < 8_000_000


def test_a_transaction_of_the_parent_is_too_old_in_a_child(tmp_path):
    """Its LMDB transaction is the parent's, which reuses the pages once it has ended its own."""
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        tr = begin(db)
        child = os.fork()
        if child == 0:
            os._exit(error_code(lambda: tr[b"a"].wait()) == TOO_OLD)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 1
        assert error_code(lambda: tr[b"a"].wait()) == 0


def test_a_fork_while_a_watch_completes_leaves_a_working_child(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        with futures._outcome_lock:  # a thread that the child does not have may hold it
            child = os.fork()
            if child == 0:
                try:
                    watch = db.get_and_watch(b"a")[1]
                    threading.Timer(10, os._exit, (1,)).start()
                    db[b"a"] = b"1"
                    watch.wait()
                finally:
                    os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status == 0
