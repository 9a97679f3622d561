"""Snapshots end in time, forgotten ones too; and too many of them are an error."""

import os
import threading
from collections.abc import Iterator

import lmdb
import pytest

import fdbqueue
from fdbqueue.embedded import FDBError, environment, predicates, surface
from tests.support import PATIENCE_S, TOO_OLD, Ageless, ManualClock, begin, error_code, in_child


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


def test_a_put_refused_on_a_full_disk_ends_no_snapshot(tmp_path, monkeypatch):
    """Snapshots end for a commit that makes room and finds none."""
    with fdbqueue.open(f"embedded:{tmp_path}/data", runtime=Ageless()) as db:
        store = db.engine._store
        store.reserve.give_up()
        store.committer._pool.note_short(True)
        monkeypatch.setattr(store.reserve, "make", lambda: False)
        monkeypatch.setattr(store, "free_bytes", lambda: 0)
        reading = begin(db)
        with pytest.raises(fdbqueue.StorageFull):
            db[b"a"] = b"1"
        assert error_code(reading[b"a"].wait) == 0


def test_an_end_waits_for_the_reads_under_way(db):
    """Another thread that ended the transaction of a read killed the process."""
    for key in (b"a", b"b", b"c"):
        db[key] = b"1"
    snapshot = db.engine._store.snapshot(0)
    reads = [snapshot.scan(b"", b"\xff", False) for _ in range(2)]
    assert [next(read)[0] for read in reads] == [b"a", b"a"]
    snapshot.end()
    assert [key for key, _ in reads[0]] == [b"b", b"c"]
    reads[1].close()  # the last one, and it has not been read to its end
    assert error_code(lambda: snapshot.get(b"a")) == TOO_OLD
    assert error_code(lambda: next(snapshot.scan(b"", b"\xff", False))) == TOO_OLD
    with pytest.raises(lmdb.Error):
        snapshot.txn.get(b"a")


def test_an_end_waits_for_a_value_that_is_read():
    txn = SlowTxn()
    snapshot = environment.Snapshot(txn, 0, {}, 1)
    found = []
    thread = threading.Thread(target=lambda: found.append(snapshot.get(b"a")))
    thread.start()
    assert txn.reading.wait(PATIENCE_S)
    snapshot.end()
    assert not txn.aborted
    txn.go_on.set()
    thread.join(PATIENCE_S)
    assert (found, txn.aborted) == ([b"1"], [1])
    snapshot.end()
    assert txn.aborted == [1]


class SlowTxn:
    """An LMDB transaction whose read goes on when it is told to."""

    def __init__(self) -> None:
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.aborted: list[int] = []

    def id(self) -> int:
        return 1

    def get(self, _: bytes) -> bytes:
        self.reading.set()
        self.go_on.wait(PATIENCE_S)
        return b"1"

    def abort(self) -> None:
        self.aborted.append(1)


def test_two_threads_may_end_the_same_snapshot(db, clock, monkeypatch):
    forgotten, end = begin(db), environment.Snapshot.end

    def end_slowly(snapshot: environment.Snapshot) -> None:
        monkeypatch.setattr(environment.Snapshot, "end", end)
        other = threading.Thread(target=begin, args=(db,))
        other.start()
        other.join()
        end(snapshot)

    monkeypatch.setattr(environment.Snapshot, "end", end_slowly)
    clock.advance(60)
    begin(db)
    assert error_code(forgotten[b"a"].wait) == TOO_OLD


def test_too_many_open_transactions_are_a_retryable_error(monkeypatch):
    monkeypatch.setattr(environment, "_READERS_MAX", 10)
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
        assert in_child(lambda: error_code(lambda: tr[b"a"].wait()) == TOO_OLD)
        assert error_code(lambda: tr[b"a"].wait()) == 0


def test_a_fork_while_a_watch_completes_leaves_a_working_child(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:

        def watches() -> bool:
            watch = db.get_and_watch(b"a")[1]
            db[b"a"] = b"1"
            return watch.wait() is None

        with surface._outcome_lock:  # a thread that the child does not have may hold it
            assert in_child(watches)


class Changing(dict):
    """A table that changes between the begin of a walk and its first step, as by the end of a snapshot in
    the garbage collector."""

    def __iter__(self):
        return self._changed(super().__iter__())

    def items(self):
        return self._changed(iter(super().items()))

    def _changed(self, walk):
        self.pop(next(dict.__iter__(self), None), None)
        return walk


@pytest.fixture
def kept(db):
    """Three snapshots, in a table that changes during a walk."""
    found = [begin(db) for _ in range(3)]
    for tr in found:
        tr[b"a"].present()
    db.engine._store._live = Changing(db.engine._store._live)
    return found


@pytest.mark.usefixtures("kept")
def test_a_snapshot_may_end_during_the_look_for_the_oldest(db):
    assert begin(db)[b"a"].present() is False


def test_a_snapshot_may_end_while_all_are_ended(db, kept):
    db.engine._store.end_snapshots()
    assert not db.engine._store._live
    assert [error_code(tr[b"b"].wait) for tr in kept] == [TOO_OLD] * 3
