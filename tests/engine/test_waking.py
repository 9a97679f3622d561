"""Watches wake up despite calls at the same moment, and despite damage in the directory."""

import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.embedded import layout
from fdbqueue.embedded import watches as doorbell_module
from tests.engine import programs
from tests.engine.running import running
from tests.support import OPERATION_CANCELLED, PATIENCE_S, becomes_ready, error_code, wait_until


@pytest.fixture
def db(path: Path) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open(f"embedded:{path}") as database:
        yield database


def write_elsewhere(path: Path, key: str) -> None:
    """Change `key` in another process."""
    program = [sys.executable, programs.__file__, "increment", str(path), key, "1"]
    subprocess.run(program, input="go\n", stdout=subprocess.DEVNULL, text=True, check=True)


def watch(db: fdbqueue.Database, key: bytes):
    return db.get_and_watch(key)[1]


def test_a_watch_armed_beside_the_first_one_fires_too(db, path, monkeypatch):
    """The first watch notes the version from which to read the log; another watch must not look before it."""
    watches, second = db.engine._store.watches, []
    newest_version = watches._newest_version
    thread = threading.Thread(target=lambda: second.append(watch(db, b"b")), daemon=True)

    def slowly() -> int:
        monkeypatch.setattr(watches, "_newest_version", newest_version)
        thread.start()
        thread.join(0.3)  # it waits, or has looked
        write_elsewhere(path, "b")
        return newest_version()

    monkeypatch.setattr(watches, "_newest_version", slowly)
    watch(db, b"a")
    thread.join(PATIENCE_S)
    assert becomes_ready(second[0])


def test_a_watch_cancelled_while_a_commit_looks_is_harmless(db):
    cancelled, other = watch(db, b"a"), watch(db, b"a")

    class Meanwhile:
        def __ne__(self, _: object) -> bool:
            cancelled.cancel()
            return True

    watching = db.engine._store.watches._by_key[b"a"]
    for number, (reference, _) in watching.items():
        watching[number] = (reference, Meanwhile())
    db[b"a"] = b"1"
    assert becomes_ready(other)


def test_a_foreign_file_among_the_sockets_fails_no_commit(db, path):
    db[b"a"] = b"1"
    (path / "doorbells" / "lost+found").mkdir()
    db[b"a"] = b"2"
    assert db[b"a"] == b"2"


def test_a_dead_process_is_rung_once(db, path):
    """Otherwise its marks would cost each commit a ring; marks of live processes stay."""
    with running("watch", path, "bell") as dead, running("watch", path, "bell") as living:
        dead.expect("saw None")
        living.expect("saw None")
        wait_until(lambda: marks(db, b"bell") == 2)
        dead.kill()
        db[b"bell"] = b"1"
        living.expect("saw b'1'")
        wait_until(lambda: marks(db, b"bell") == 1)
        db[b"bell"] = b"2"
        living.expect("saw b'2'")


def test_a_dead_process_with_a_live_child_is_rung_once(db, path):
    """A forked child closes the parent's socket, which would accept the rings."""
    with running("watch_and_fork", path, "bell") as parent:
        parent.expect("saw None")
        wait_until(lambda: marks(db, b"bell") == 1)
        parent.process.kill()
        parent.process.wait()
        db[b"bell"] = b"1"
        wait_until(lambda: marks(db, b"bell") == 0)


def test_a_clear_of_more_keys_than_are_noted_rings_all(db, monkeypatch):
    keys = [b"cleared%04d" % n for n in range(1_200)]
    buckets = {bucket_of(key) for key in keys}
    bell = next(key for key in map(b"bell%d".__mod__, range(10_000)) if bucket_of(key) not in buckets)
    doorbell, rung = db.engine._store.watches.doorbell, []
    watch(db, bell)
    wait_until(lambda: marks(db, bell) == 1)
    tr = db.create_transaction()
    for key in keys:
        tr[key] = b""
    tr.commit().wait()
    monkeypatch.setattr(doorbell, "ring", lambda written: rung.append(doorbell._slots_of(written())))
    db.clear_range(keys[0], keys[-1])
    assert rung == [{doorbell._slot}]


def test_a_write_without_conflict_range_rings_the_watchers(db, monkeypatch):
    """Otherwise they learn of it a second later, with their next look."""
    doorbell, rung = db.engine._store.watches.doorbell, []
    bell = b"bell"
    twin = next(key for key in map(b"twin%d".__mod__, range(100_000)) if bucket_of(key) == bucket_of(bell))
    still_watched = watch(db, twin)
    wait_until(lambda: marks(db, bell) == 1)
    monkeypatch.setattr(doorbell, "ring", lambda written: rung.append(doorbell._slots_of(written())))
    tr = db.create_transaction()
    tr.options.set_next_write_no_write_conflict_range()
    tr[bell] = b"1"
    tr.commit().wait()
    assert (rung, still_watched.is_ready()) == ([{doorbell._slot}], False)


def test_a_change_during_a_look_is_found_by_the_next(db, path, monkeypatch):
    """With many watches a look reads the log, from the version of the look before."""
    watches = db.engine._store.watches
    monkeypatch.setattr(watches.doorbell, "listen", lambda: None)
    futures = [watch(db, b"%03d" % n) for n in range(100)]
    worth_a_look = watches._worth_a_look

    def beside_a_commit(txn):
        monkeypatch.setattr(watches, "_worth_a_look", worth_a_look)
        found = worth_a_look(txn)
        write_elsewhere(path, "050")
        return found

    monkeypatch.setattr(watches, "_worth_a_look", beside_a_commit)
    watches._rung()
    watches._rung()
    assert [n for n, future in enumerate(futures) if future.is_ready()] == [50]


def test_a_watch_armed_behind_a_change_does_not_hide_it(db, path, monkeypatch):
    """The look begins in the log where the look before has ended, and not at the newest watch."""
    watches = db.engine._store.watches
    monkeypatch.setattr(watches.doorbell, "listen", lambda: None)
    monkeypatch.setattr(limits, "WATCHED_KEYS_LOOKED_AT_MAX", 0)
    changed = watch(db, b"changed")
    write_elsewhere(path, "changed")
    armed_behind = watch(db, b"armed behind")
    watches._rung()
    assert (changed.is_ready(), armed_behind.is_ready()) == (True, False)


def test_a_write_without_conflict_range_is_in_the_log(db, monkeypatch):
    """With many watches, another process learns of it from there alone."""
    watches = db.engine._store.watches
    monkeypatch.setattr(watches.doorbell, "listen", lambda: None)
    monkeypatch.setattr(limits, "WATCHED_KEYS_LOOKED_AT_MAX", 0)
    db[b"cleared"] = b"1"
    written, cleared, other = watch(db, b"written"), watch(db, b"cleared"), watch(db, b"other")
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(watches, "notify", lambda _: None)
        tr = db.create_transaction()
        tr.options.set_next_write_no_write_conflict_range()
        tr[b"written"] = b"1"
        tr.options.set_next_write_no_write_conflict_range()
        tr.clear_range(b"clear", b"cleas")
        tr.commit().wait()
    watches._rung()
    assert [one.is_ready() for one in (written, cleared, other)] == [True, True, False]


def marks(db: fdbqueue.Database, key: bytes) -> int:
    """Return the number of slots that are marked for a key."""
    row = bucket_of(key) * doorbell_module._SLOTS
    return db.engine._store.watches.doorbell._board[row : row + doorbell_module._SLOTS].count(1)


def bucket_of(key: bytes) -> int:
    """Return the row of a key on the board."""
    return zlib.crc32(key) % doorbell_module._BUCKETS


def test_a_look_beyond_a_trimmed_log_is_one_at_every_watched_key(monkeypatch):
    """It is trimmed further than the look before after a long standstill, or if a clock has jumped."""
    monkeypatch.setattr(limits, "WATCHED_KEYS_LOOKED_AT_MAX", 0)
    with fdbqueue.open("memory:") as db:
        store, waiting = db.engine._store, watch(db, b"watched")
        store.watches._rung()
        for number in range(3):
            db[b"other"] = b"%d" % number
        with store.begin() as txn:
            assert list(store.watches._worth_a_look(txn)) == []
        with store.begin(write=True) as txn:
            assert layout.trim_before(txn, txn.id())
        with store.begin() as txn:
            assert list(store.watches._worth_a_look(txn)) == [b"watched"]
        del waiting


def test_without_sockets_the_slow_look_finds_changes(db, path, monkeypatch):
    monkeypatch.setattr(db.engine._store.watches.doorbell, "_path", lambda name: f"/nowhere/{name}")
    future = watch(db, b"a")
    write_elsewhere(path, "a")
    assert becomes_ready(future)


def test_after_a_failed_look_there_is_another(db, path, monkeypatch, caplog):
    watches = db.engine._store.watches
    begin, failed = watches._environment.begin, threading.Event()

    def fail_in_the_listener(write: bool = False):
        if threading.current_thread().name == "fdbqueue-doorbell" and not failed.is_set():
            failed.set()
            raise OSError("no memory")
        return begin(write)

    monkeypatch.setattr(watches._environment, "begin", fail_in_the_listener)
    future = watch(db, b"a")
    assert failed.wait(PATIENCE_S)
    write_elsewhere(path, "a")
    assert becomes_ready(future)
    assert "no memory" in caplog.text


def test_closing_cancels_the_watches(db):
    """No commit is seen any more, so a thread would wait for ever."""
    future = watch(db, b"a")
    db.close()
    assert future.is_ready()
    assert error_code(future.wait) == OPERATION_CANCELLED


def test_the_callback_of_a_watch_may_commit(db):
    """It runs in the thread that changed the key, after that thread has handed the lead over."""
    watch(db, b"a").on_ready(lambda _: db.set(b"b", b"2"))
    writer = threading.Thread(target=db.set, args=(b"a", b"1"), daemon=True)
    writer.start()
    writer.join(PATIENCE_S)
    assert db[b"b"] == b"2"
