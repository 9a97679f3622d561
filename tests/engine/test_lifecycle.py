"""Commit, reset and cancel, and the answers of a transaction before and after them."""

import threading

import pytest

from fdbqueue.embedded.transaction import open_private
from tests.support import (
    CANCELLED,
    FUTURE_VERSION,
    INVALID_OPERATION,
    NOT_COMMITTED,
    OPERATION_CANCELLED,
    TIMED_OUT,
    TOO_OLD,
    USED_DURING_COMMIT,
    VALUE_TOO_LARGE,
    ManualClock,
    becomes_ready,
    begin,
    commit_code,
    error_code,
)


def test_the_committed_version_follows_the_read_version(db, k):
    """Before the commit it is -1."""
    tr = begin(db)
    read_version = tr.get_read_version().wait()
    tr[k("a")] = b"1"
    assert tr.get_committed_version() == -1
    tr.commit().wait()
    assert tr.get_committed_version() > read_version


@pytest.mark.parametrize(
    ("use", "is_commit"),
    [
        (lambda *_: None, False),
        (lambda tr, key: tr[key].wait(), False),
        (lambda tr, key: tr.clear_range(key, key), False),
        (lambda tr, key: tr.add_write_conflict_key(key), True),
    ],
    ids=["nothing", "a read", "an empty range", "a conflict"],
)
def test_only_a_commit_of_writes_has_a_version(db, k, use, is_commit):
    tr = db.create_transaction()
    use(tr, k("a"))
    assert commit_code(tr) == 0
    assert (tr.get_committed_version() > 0) is is_commit


def test_reset_begins_the_timeout_of_the_database_anew():
    clock = ManualClock()
    with open_private(clock) as db:
        db.options.set_transaction_timeout(1_000)
        tr = db.create_transaction()
        clock.advance(0.9)
        tr.reset()
        clock.advance(0.9)
        assert error_code(lambda: tr[b"a"].wait()) == 0
        clock.advance(0.2)
        assert error_code(lambda: tr[b"a"].wait()) == TIMED_OUT


def test_reset_begins_the_back_off_anew(monkeypatch):
    clock = ManualClock()
    monkeypatch.setattr(clock, "random", lambda: 1.0)
    with open_private(clock) as db:
        tr = db.create_transaction()
        for _ in range(3):
            tr.on_error(NOT_COMMITTED).wait()
        tr.reset()
        tr.on_error(NOT_COMMITTED).wait()
    first, *_, last = clock.slept
    assert (last, max(clock.slept) > first) == (first, True)


def test_a_cancelled_transaction_is_over(db, k, fdb_module):
    """Every use fails with 1025, until a reset."""
    tr, selector = begin(db), fdb_module.KeySelector.first_greater_than
    snapshot = tr.snapshot
    tr[k("a")] = b"1"
    tr.cancel()
    for use in (
        lambda: tr[k("a")].wait(),
        lambda: snapshot[k("a")].wait(),
        lambda: tr.get_key(selector(k("a"))).wait(),
        lambda: tr.get_range(k.begin, k.end).to_list(),
        lambda: tr.get_read_version().wait(),
        lambda: tr.commit().wait(),
        lambda: tr.on_error(NOT_COMMITTED).wait(),
    ):
        assert error_code(use) == CANCELLED
    tr.reset()
    tr[k("b")] = b"1"
    assert commit_code(tr) == 0
    assert k.names(db.get_range(k.begin, k.end)) == "b"


def test_a_transaction_knows_its_database(db):
    tr = db.create_transaction()
    assert tr.db.create_transaction().get_read_version().wait() > 0
    assert tr.snapshot.db is tr.db


def test_futures_tell_when_they_are_ready(db, k):
    db[k("a")] = b"1"
    transactions = [db.create_transaction(), db.create_transaction()]
    for future in (transactions[0][k("a")], transactions[1].commit()):
        seen = []
        called = threading.Event()
        future.on_ready(lambda ready, seen=seen, called=called: (seen.append(ready), called.set()))
        assert called.wait(20)
        assert seen[0] is future
        assert future.is_ready()
        future.block_until_ready()
        late = threading.Event()
        future.on_ready(lambda _, late=late: late.set())
        assert late.wait(20)


def test_a_callback_that_raises_harms_no_other(db, k, capfd):
    """No caller waits for it, so its exception is logged and dropped."""
    tr = begin(db)  # held: the end of a transaction cancels its reads
    future = tr.get(k("a"))
    assert becomes_ready(future)
    future.on_ready(lambda _: 1 / 0)
    assert becomes_ready(future)
    assert future.wait() == None  # noqa: E711
    capfd.readouterr()


@pytest.mark.parametrize("waits", [False, True])
def test_wait_for_any_gives_the_index_of_a_ready_one(db, fdb_module, k, waits):
    """It blocks until a future is ready; without a future it would wait for ever."""
    with pytest.raises(ValueError, match="at least one future"):
        fdb_module.Future.wait_for_any()
    tr = db.create_transaction()
    watches = [tr.watch(k(name)) for name in "abc"]
    tr.commit().wait()
    found = []
    waiter = threading.Thread(target=lambda: found.append(fdb_module.Future.wait_for_any(*watches)))
    if waits:
        waiter.start()
    db[k("b")] = b"1"
    if not waits:
        waiter.start()
    waiter.join(20)
    assert found == [1]


def test_a_cancelled_future_says_so(db, k):
    """cancel() fails a pending future with 1101, and leaves the transaction alone."""
    tr = begin(db)
    future = tr.watch(k("a"))
    future.cancel()
    assert error_code(future.wait) == OPERATION_CANCELLED
    assert future.is_ready()
    tr[k("b")] = b"1"
    assert commit_code(tr) == 0


def test_many_open_transactions_at_once(db, k):
    readers = []
    for number in range(200):
        db[k("a")] = b"%d" % number
        readers.append(begin(db))
    assert [int(tr[k("a")].value) for tr in readers] == list(range(200))


@pytest.mark.parametrize("end", ["cancel", "on_error"])
def test_a_bad_write_in_an_ended_transaction_is_told(db, k, end):
    """It comes before the error that ended the transaction."""
    tr = db.create_transaction()
    if end == "cancel":
        tr.cancel()
    else:
        assert error_code(lambda: tr.on_error(INVALID_OPERATION).wait()) == INVALID_OPERATION
    assert commit_code(tr) == CANCELLED
    tr.append_if_fits(k("a"), b"v" * 100_001)
    assert commit_code(tr) == VALUE_TOO_LARGE
    assert error_code(lambda: tr[k("a")].wait()) == VALUE_TOO_LARGE


def test_after_a_bad_write_an_option_has_no_effect(db, k):
    """Each later call without a future is dropped, until the transaction begins again."""
    tr = begin(db)
    tr[k("a")] = b"v" * 100_001
    tr.options.set_retry_limit(0)
    assert error_code(lambda: tr.on_error(NOT_COMMITTED).wait()) == 0


def test_a_transaction_that_is_committed_tells_that_first(db, k):
    """2017 comes before the error that ended it; its read version can still be asked for."""
    tr = begin(db)
    tr[k("a")] = b"1"
    assert commit_code(tr) == 0
    assert error_code(lambda: tr.get_read_version().wait()) == 0
    tr.cancel()
    assert error_code(lambda: tr[k("a")].wait()) == USED_DURING_COMMIT
    assert error_code(lambda: tr.get_read_version().wait()) == CANCELLED


@pytest.mark.parametrize("version", [1, 1 << 62])
def test_a_snapshot_read_that_fails_fails_the_commit(db, k, version):
    """Also if its error is caught, and the commit could do without it."""
    for _ in range(3):
        k.write(db, "c")
    tr = db.create_transaction()
    tr.set_read_version(version)
    code = error_code(lambda: tr.snapshot[k("a")].wait())
    assert code == (TOO_OLD if version == 1 else FUTURE_VERSION)
    tr[k("b")] = b"1"
    assert commit_code(tr) == code
    assert db[k("b")] is None
