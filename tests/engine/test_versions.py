"""Versions that were handed out can be read for five seconds, at a bounded cost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue
from fdbqueue.core.limits import TRANSACTION_AGE_MAX_S
from fdbqueue.embedded import environment
from fdbqueue.embedded.environment import HandedOutVersions
from tests.support import (
    FUTURE_VERSION,
    NOT_COMMITTED,
    TOO_OLD,
    ManualClock,
    begin,
    commit_code,
    error_code,
    in_child,
    wait_until,
)


def at_version(db, version: int):
    tr = db.create_transaction()
    tr.set_read_version(version)
    return tr


def read_version_of(db) -> int:
    """Return the read version of a transaction that has ended when this returns."""
    return begin(db).get_read_version().wait()


def read_code(db, version: int) -> int:
    """Return the error code of a read at `version`."""
    return error_code(at_version(db, version)[b"a"].wait)


# On every engine.


def test_a_read_version_outlives_its_transaction(db, k):
    db[k("a")] = b"old"
    version = read_version_of(db)
    db[k("a")] = b"new"
    reading = at_version(db, version)  # a name, since its reads end with it
    assert reading[k("a")] == b"old"
    assert at_version(db, 1).get_read_version().wait() == 1, "a version that was set is returned unchecked"


def test_a_committed_version_can_be_read_after_later_commits(db, k):
    tr = db.create_transaction()
    tr[k("a")] = b"mine"
    tr.commit().wait()
    version = tr.get_committed_version()
    tr.reset()
    db[k("a")] = b"later"
    reading = at_version(db, version)
    assert reading[k("a")] == b"mine"


def test_a_transaction_at_a_version_conflicts_with_later_commits(db, k):
    version = read_version_of(db)
    db[k("a")] = b"later"
    tr = at_version(db, version)
    assert not tr[k("a")].present()
    tr[k("b")] = b"1"
    assert commit_code(tr) == NOT_COMMITTED


def test_another_attempt_reads_at_a_version_of_its_own(db, k):
    """A version that was set counts for one attempt; a body may then set another one."""
    version = read_version_of(db)
    db[k("a")] = b"later"
    tr = at_version(db, version)
    tr.on_error(NOT_COMMITTED).wait()
    assert tr[k("a")] == b"later"
    tr.on_error(NOT_COMMITTED).wait()
    tr.set_read_version(version)
    assert not tr[k("a")].present()


# These need a directory, and a clock set by hand.


@pytest.fixture
def shared(tmp_path: Path, clock: ManualClock) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}", runtime=clock) as database:
        yield database


def handed_out(db) -> HandedOutVersions:
    return db.engine._store.handed_out


def readers(db) -> int:
    """Return the number of LMDB read transactions that are open at a version."""
    return sum(not line.rstrip().endswith("-") for line in db.engine._store.env.readers().splitlines()[1:])


def test_a_version_can_be_read_for_five_seconds(shared, clock):
    version = read_version_of(shared)
    shared[b"a"] = b"1"
    clock.advance(4.9)
    assert read_code(shared, version) == 0
    clock.advance(0.2)
    assert read_code(shared, version) == TOO_OLD


def test_at_five_seconds_sharp_a_commit_with_reads_is_too_old(shared, clock):
    """From then on no read of another transaction at that version is answered, either."""
    tr = begin(shared)
    tr[b"a"].wait()
    tr[b"b"] = b"1"
    clock.advance(TRANSACTION_AGE_MAX_S)
    assert commit_code(tr) == TOO_OLD


def test_a_commit_after_snapshot_reads_is_never_too_old(shared, clock):
    """As for a blind write, no commit could conflict with it."""
    tr = begin(shared)
    tr.snapshot[b"a"].wait()
    tr[b"b"] = b"1"
    clock.advance(60)
    assert commit_code(tr) == 0


def test_five_seconds_of_a_committed_version_count_from_the_call(shared, clock):
    tr = shared.create_transaction()
    tr[b"a"] = b"1"
    tr.commit().wait()
    clock.advance(60)
    version = tr.get_committed_version()
    shared[b"a"] = b"2"
    clock.advance(4.9)
    assert at_version(shared, version)[b"a"] == b"1"


def test_five_seconds_of_a_version_begin_anew_with_each_call(shared, clock):
    version = read_version_of(shared)
    clock.advance(4)
    assert read_version_of(shared) == version
    shared[b"a"] = b"1"
    clock.advance(4)
    assert read_code(shared, version) == 0


def test_a_committed_version_that_lmdb_has_no_more_is_too_old(shared):
    tr = shared.create_transaction()
    tr[b"a"] = b"1"
    tr.commit().wait()
    shared[b"a"] = b"2"
    assert read_code(shared, tr.get_committed_version()) == TOO_OLD


def test_the_newest_64_versions_can_be_read(shared):
    handed = []
    for number in range(65):
        handed.append(read_version_of(shared))
        shared[b"a"] = b"%d" % number
    shared[b"a"] = b"last"
    assert [read_code(shared, version) for version in handed] == [TOO_OLD] + 64 * [0]


def test_a_version_of_the_future_is_not_there_yet(shared):
    assert read_code(shared, read_version_of(shared) + 1) == FUTURE_VERSION


def test_one_version_handed_out_often_takes_one_reader_slot(shared):
    shared[b"a"] = b"1"
    for _ in range(100):
        read_version_of(shared)
    assert readers(shared) == 1


def test_versions_give_way_when_reader_slots_run_out(tmp_path, monkeypatch):
    """Transactions go on; versions become too old earlier."""
    monkeypatch.setattr(environment, "_READERS_MAX", 10)
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}") as db:
        handed = []
        for number in range(30):
            handed.append(read_version_of(db))
            db[b"a"] = b"%d" % number
        assert read_code(db, handed[0]) == TOO_OLD
        assert read_code(db, handed[-1]) == 0


def test_a_version_that_two_threads_get_at_once_can_be_read(shared, monkeypatch):
    """Each of two snapshots that begin at the same moment is known, also when the other one has ended."""
    store = shared.engine._store
    beginning = store.begin

    def begin_beside(write: bool = False) -> Any:
        monkeypatch.setattr(store, "begin", beginning)
        read_version_of(shared)
        return beginning(write)

    monkeypatch.setattr(store, "begin", begin_beside)
    version = read_version_of(shared)
    shared[b"a"] = b"later"
    assert read_code(shared, version) == 0


def test_an_idle_process_releases_its_versions(shared, clock, monkeypatch):
    """Otherwise they would keep old pages. The thread that releases them starts again with the next one."""
    monkeypatch.setattr(environment, "_RELEASE_EVERY_S", 0.01)
    for _ in range(2):
        for number in range(3):
            read_version_of(shared)
            shared[b"a"] = b"%d" % number
        assert readers(shared) == 3
        clock.advance(6)
        wait_until(lambda: readers(shared) == 0 and not handed_out(shared)._releasing)


def test_without_a_thread_no_version_outlives_the_call(shared, clock, monkeypatch):
    """Nothing would end it in a process that does nothing more; a later call starts the thread again."""
    monkeypatch.setattr(environment, "_RELEASE_EVERY_S", 0.01)

    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(clock, "spawn", refused)
        read_version_of(shared)
    assert readers(shared) == 0
    read_version_of(shared)
    assert readers(shared) == 1
    clock.advance(6)
    wait_until(lambda: readers(shared) == 0)


def test_a_version_of_the_parent_is_too_old_in_a_forked_child(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}") as db:
        version = read_version_of(db)
        db[b"a"] = b"1"
        assert in_child(lambda: read_code(db, version) == TOO_OLD)
        assert read_code(db, version) == 0


def test_a_closed_database_still_knows_its_committed_version(shared):
    tr = shared.create_transaction()
    tr[b"a"] = b"1"
    tr.commit().wait()
    shared.close()
    assert tr.get_committed_version() > 0
