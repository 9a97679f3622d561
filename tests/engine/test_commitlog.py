"""The commit log: a missing record never counts as a commit without writes, and the log stays short."""

import time
from collections import deque
from collections.abc import Iterator

import pytest

import fdbqueue
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import layout
from fdbqueue.embedded.commit import Committer
from fdbqueue.embedded.layout import Written
from fdbqueue.embedded.processes import Answer
from fdbqueue.embedded.writes import KeySet
from tests.support import NOT_COMMITTED, TOO_OLD, begin, commit_code

AN_HOUR_S = 3_600.0


class WallClock(RealRuntime):
    """A real runtime with a wall clock that can be set; its monotonic clock stays right."""

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


def another(store):
    return Committer(store, store.new_durability(), store.watches.notify)


def commit_often(db: fdbqueue.Database) -> None:
    for number in range(200):
        db[b"often"] = b"%d" % number


def test_a_log_trimmed_by_a_clock_jump_hides_no_conflict(db, clock):
    """Another process may trim records that this one has not read yet, for example on a suspended machine."""
    store = db.engine._store
    db[b"read"] = b"1"
    tr = begin(db)
    tr.get(b"read").wait()
    ours, store.committer = (
        store.committer,
        another(store),
    )  # it holds all that a process keeps of the log
    db[b"read"] = b"2"
    clock.ahead_s = AN_HOUR_S
    commit_often(db)
    store.committer = ours
    tr[b"written"] = b"1"
    assert commit_code(tr) == TOO_OLD


def test_commits_read_late_keep_their_order(db):
    """A process passes over the commits of others at first, and reads them for a transaction that asks."""
    store = db.engine._store
    first = begin(db)
    first.get(b"unchanged").wait()
    ours, store.committer = store.committer, another(store)
    db[b"a"] = b"of another process"
    second = begin(db)
    second.get(b"b").wait()
    db[b"b"] = b"of another process"
    store.committer = ours
    db[b"blindly"] = b"1"
    for tr in (first, second):
        tr[b"written"] = b"1"
    assert commit_code(first) == 0
    assert commit_code(second) == NOT_COMMITTED


def test_a_clock_that_was_ahead_does_not_stop_trimming(db, clock):
    """One record from the future lies ahead of all later ones."""
    clock.ahead_s = AN_HOUR_S
    db[b"a"] = b"1"
    clock.ahead_s = 0
    commit_often(db)
    clock.ahead_s = 60
    commit_often(db)
    with db.engine._store.begin() as txn:
        assert len(list(layout.read_since(txn, 0))) < 300


def test_a_cleared_log_leaves_the_data_behind_it(db):
    db[b""] = b"kept"
    with db.engine._store.begin(write=True) as txn:
        layout.clear(txn)
        assert layout.oldest_version(txn) is None
    assert db[b""] == b"kept"


def answers(db: fdbqueue.Database, version: int, asked_in: int) -> list[Answer] | None:
    with db.engine._store.begin() as txn:
        return layout.answers_at(txn, version, asked_in)


def test_answers_are_for_requests_in_the_same_file(db):
    """In another file, restored or made anew, the same numbers stand for other requests."""
    answer = Answer(slot=0, number=1, results=[0])
    with db.engine._store.begin(write=True) as txn:
        version = txn.id()
        written = Written(version, KeySet(), KeySet())
        layout.append(txn, written, int(time.time() * 1_000_000), [answer], asked_in=7)
    assert answers(db, version, asked_in=7) == [answer]
    assert answers(db, version, asked_in=8) == []
    assert answers(db, version + 1, asked_in=7) == []


class Interrupt(BaseException):
    pass


class Interrupted(deque):
    """A deque of commits that raises an interrupt as soon as one has been removed."""

    def popleft(self) -> Written:
        super().popleft()
        raise Interrupt

    def clear(self) -> None:
        super().clear()
        raise Interrupt


@pytest.mark.parametrize(
    "forget",
    [
        lambda recent, _, newest: recent.forget_before(newest - 1),
        lambda recent, txn, newest: recent.catch_up(txn, newest, asked=newest),
    ],
    ids=["one by one", "all"],
)
def test_an_interrupt_while_dropping_hides_no_conflict(db, forget):
    """For a dropped commit, the check reads the log."""
    for number in range(3):
        db[b"%d" % number] = b"written once"
    recent = layout.RecentCommits()
    with db.engine._store.begin() as txn:
        newest = txn.id()
        recent.catch_up(txn, newest - 1, asked=newest - 3)
        recent._commits = Interrupted(recent._commits)
        with pytest.raises(Interrupt):
            forget(recent, txn, newest)
        recent._commits = deque(recent._commits)
        recent.catch_up(txn, newest, asked=newest - 3)
        assert [recent.conflict(txn, KeySet({b"%d" % n}), newest - 3) for n in range(3)] == [True] * 3
        assert not recent.conflict(txn, KeySet({b"0"}), newest - 2)
