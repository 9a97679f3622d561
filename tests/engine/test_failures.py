"""A failure beside a commit reaches only the calls that it concerns."""

import threading

import lmdb
import pytest

import fdbqueue
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.embedded import FDBError
from fdbqueue.embedded.commit import Batches
from fdbqueue.embedded.durability import Durable
from tests.support import PATIENCE_S, becomes_ready, begin, commit_code, error_code, wait_until

IO_ERROR = 1510


@pytest.fixture
def db():
    with fdbqueue.open("memory:") as database:
        yield database


def fail(*_: object, **__: object) -> None:
    raise FDBError(IO_ERROR)


def test_a_watch_that_cannot_be_set_fails_alone(db, monkeypatch):
    """Its transaction is committed already."""
    tr = db.create_transaction()
    tr[b"a"] = b"1"
    watch = tr.watch(b"w")
    monkeypatch.setattr(db.engine._store.watches, "arm", fail)
    assert commit_code(tr) == 0
    assert error_code(watch.wait) == IO_ERROR


def test_a_commit_succeeds_though_its_watches_fail(db, monkeypatch):
    """Each watch of each key has its error, and none waits for ever. They share no exception."""
    watches = [db.get_and_watch(key)[1] for key in (b"a", b"a", b"b")]
    store = db.engine._store
    begin_ = store.begin
    monkeypatch.setattr(store, "begin", lambda write=False: begin_(write) if write else fail())
    tr = db.create_transaction()
    tr[b"a"] = tr[b"b"] = b"1"
    assert commit_code(tr) == 0
    assert all(becomes_ready(watch) for watch in watches)
    assert [error_code(watch.wait) for watch in watches] == [IO_ERROR] * 3
    assert len({id(watch.exception()) for watch in watches}) == 3


def test_commits_that_fail_together_share_no_exception(db, monkeypatch):
    """A shared exception collects the frames of each raise."""
    entered, go_on, failures = threading.Event(), threading.Event(), []

    def break_down(*_: object) -> None:
        entered.set()
        go_on.wait()
        raise lmdb.DiskError("broken")

    monkeypatch.setattr(Batches, "commit", break_down)
    committer = db.engine._store.committer

    def commit(key: bytes) -> None:
        tr = db.create_transaction()
        tr[key] = b"1"
        failures.append(tr.commit().exception())

    threads = [threading.Thread(target=commit, args=(b"%d" % number,)) for number in range(3)]
    threads[0].start()
    entered.wait()
    for thread in threads[1:]:
        thread.start()
    while len(committer._waiting) < 2:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join()
    assert [failure.code for failure in failures] == [IO_ERROR] * 3
    assert len({id(failure) for failure in failures}) == 3


def test_a_map_that_grows_again_and_again_is_followed(db):
    """It may grow again between `set_mapsize` and `begin`."""
    store = db.engine._store
    db[b"a"] = b"1"

    class Growing:
        resized = 0

        def begin(self, **how: object) -> lmdb.Transaction:
            if self.resized < 3:
                raise lmdb.MapResizedError("grown")
            return env.begin(**how)

        def set_mapsize(self, size: int) -> None:
            assert size == 0
            self.resized += 1

    env, store.env = store.env, Growing()
    try:
        assert begin(db)[b"a"] == b"1"
    finally:
        store.env = env


def test_closing_waits_for_no_commit_that_it_has_ended(tmp_path, monkeypatch):
    """LMDB's environment closes when the commit has dropped its transaction."""
    database = fdbqueue.open(f"embedded:{tmp_path / 'data'}").engine
    store, write = database.lmdb_store, Durable.write
    entered, go_on, errors = threading.Event(), threading.Event(), []

    def write_late(*arguments):
        write(*arguments)
        entered.set()
        assert go_on.wait(PATIENCE_S)

    def commit():
        tr = database.create_transaction()
        tr[b"a"] = b"1"
        with pytest.raises(DatabaseClosed) as found:
            tr.commit().wait()
        errors.append(found.value)

    monkeypatch.setattr(Durable, "write", write_late)
    threads = [threading.Thread(target=target, daemon=True) for target in (commit, database.close)]
    threads[0].start()
    assert entered.wait(PATIENCE_S)
    threads[1].start()
    wait_until(lambda: is_over(store.env))
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert len(errors) == 1


def is_over(env):
    try:
        env.stat()
    except lmdb.Error:
        return True
    return False


def test_an_error_that_is_no_lack_of_room_is_raised_at_once(db, monkeypatch):
    """Other tries would give up the reserve and end the snapshots of readers, for nothing."""
    batches, tries = db.engine._store.committer._batches, []

    def fail_and_count(*_: object, **__: object) -> None:
        tries.append(1)
        fail()

    with monkeypatch.context() as patched:
        patched.setattr(batches, "_within_map", fail_and_count)
        assert error_code(lambda: batches._sparingly([], None)) == IO_ERROR
    assert len(tries) == 1
