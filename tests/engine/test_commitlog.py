"""The log of commits: what it no longer has is never taken for what did not happen, and it does not grow."""

import time
from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue.embedded import commitlog
from fdbqueue.embedded.commit import Committer
from fdbqueue.runtime import RealRuntime
from tests.support import TOO_OLD, begin, commit_code

AN_HOUR_S = 3_600.0


class WallClock(RealRuntime):
    """A real runtime whose wall clock can be set, which leaves the other one alone."""

    ahead_s = 0.0

    def now(self) -> float:
        return time.time() + self.ahead_s


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def db(clock: WallClock) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def commit_often(db: fdbqueue.Database) -> None:
    for number in range(200):
        db[b"often"] = b"%d" % number


def test_a_log_that_was_trimmed_by_a_clock_that_jumped_hides_no_conflict(db, clock):
    """Another process may have trimmed what this one has not read yet: a machine that was suspended, say."""
    store = db.engine._store
    db[b"read"] = b"1"
    tr = begin(db)
    tr.get(b"read").wait()
    ours, store.committer = store.committer, Committer(store)  # all that a process keeps of the log
    db[b"read"] = b"2"
    clock.ahead_s = AN_HOUR_S
    commit_often(db)
    store.committer = ours
    tr[b"written"] = b"1"
    assert commit_code(tr) == TOO_OLD


def test_a_clock_that_was_ahead_for_a_while_does_not_keep_the_log_from_being_trimmed(db, clock):
    """One record of the future lies before all that come after it."""
    clock.ahead_s = AN_HOUR_S
    db[b"a"] = b"1"
    clock.ahead_s = 0
    commit_often(db)
    clock.ahead_s = 60
    commit_often(db)
    with db.engine._store.begin() as txn:
        assert len(list(commitlog.read_since(txn, 0))) < 300
