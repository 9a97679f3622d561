"""Watches: each is a serialisable read, and fires once after its transaction."""

import threading

import pytest

from tests.support import (
    CANCELLED,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    NOT_COMMITTED,
    OPERATION_CANCELLED,
    TOO_MANY_WATCHES,
    USED_DURING_COMMIT,
    WATCHES_DISABLED,
    becomes_ready,
    begin,
    commit_code,
    error_code,
)

# Long enough for a watch to fire by mistake, and short, since a right test waits for all of it.
A_WHILE_S = 0.15


def watch(db, key):
    """Return an armed watch: its read-only transaction has committed."""
    tr = db.create_transaction()
    future = tr.watch(key)
    tr.commit().wait()
    return future


def silent_set(tr, k):
    tr.options.set_next_write_no_write_conflict_range()
    tr[k("a")] = b"2"


@pytest.mark.parametrize(
    ("before", "change"),
    [
        (b"\x01", lambda tr, k: tr.set(k("a"), b"2")),
        (b"\x01", lambda tr, k: tr.clear(k("a"))),
        (b"\x01", lambda tr, k: tr.clear_range(k.begin, k.end)),
        (b"\x01", lambda tr, k: tr.add(k("a"), b"\x01")),
        (b"\x01", silent_set),
        (None, lambda tr, k: tr.set(k("a"), b"")),
    ],
    ids=["set", "clear", "clear_range", "add", "silent set", "set of an absent key"],
)
def test_a_watch_fires_after_a_change(db, k, before, change):
    """The option for silent writes hides a write from the conflict check, not from watches."""
    if before is not None:
        db[k("a")] = before
    future = watch(db, k("a"))
    assert not future.is_ready()
    tr = db.create_transaction()
    change(tr, k)
    assert not future.is_ready()
    tr.commit().wait()
    assert becomes_ready(future)
    assert future.wait() is None


def test_a_watch_ignores_other_keys_and_the_same_value(db, k):
    db[k("b")] = b"1"
    future = watch(db, k("b"))
    k.write(db, "ac", b"other")
    db[k("b\x00")] = b"other"
    db[k("b")] = b"1"
    assert not becomes_ready(future, A_WHILE_S)
    db[k("b")] = b"2"
    assert becomes_ready(future)


def test_a_watch_lives_only_once_its_transaction_committed(db, k):
    """A change between the read version and the watch's commit is not missed."""
    tr = begin(db)
    future = tr.watch(k("a"))
    db[k("a")] = b"1"
    assert not becomes_ready(future, A_WHILE_S)
    tr.commit().wait()
    assert becomes_ready(future)


def test_a_watch_is_a_serialisable_read(db, k):
    tr = begin(db)
    future = tr.watch(k("a"))
    tr[k("b")] = b"1"
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    tr.reset()
    assert becomes_ready(future)


def test_a_watch_of_an_own_write_is_no_read(db, k):
    """Writers that watch their own writes do not conflict; a watch of a replaced value fires at once."""
    first, second = begin(db), begin(db)
    futures = []
    for tr, value in ((first, b"first"), (second, b"second")):
        tr[k("a")] = value
        futures.append(tr.watch(k("a")))
    assert [commit_code(first), commit_code(second)] == [0, 0]
    assert becomes_ready(futures[0])
    assert not becomes_ready(futures[1], A_WHILE_S)
    db[k("a")] = b"other"
    assert becomes_ready(futures[1])


def test_a_watch_of_an_own_write_fires_after_a_quick_clear(db, k):
    """It fires whether the clear or the watch is first at the storage server."""
    for number in range(50):
        key = k(b"%d" % number)
        tr = begin(db)
        tr[key] = b"mine"
        future = tr.watch(key)
        tr.commit().wait()
        db.clear(key)
        assert becomes_ready(future)


def test_an_own_write_after_the_watch_fires_it(db, k):
    db[k("a")] = b"1"
    tr = db.create_transaction()
    future = tr.watch(k("a"))
    tr[k("a")] = b"2"
    tr.commit().wait()
    assert becomes_ready(future)


def test_a_live_watch_outlives_its_transaction(db, k):
    """A reset after the commit cancels no watch, and neither does the transaction's timeout."""
    tr = db.create_transaction()
    tr.options.set_timeout(50)
    future = tr.watch(k("a"))
    tr.commit().wait()
    tr.reset()
    assert not becomes_ready(future, A_WHILE_S)
    db[k("a")] = b"1"
    assert becomes_ready(future)
    assert future.wait() is None


@pytest.mark.parametrize("again", [lambda tr: tr.reset(), lambda tr: tr.on_error(NOT_COMMITTED).wait()])
def test_another_attempt_cancels_an_uncommitted_watch(db, k, again):
    tr = begin(db)
    future = tr.watch(k("a"))
    tr[k("a")].wait()  # FoundationDB's on_error never ends a watch that has not read its value yet
    again(tr)
    assert becomes_ready(future)
    assert error_code(future.wait) in (CANCELLED, NOT_COMMITTED)


def test_a_cancelled_watch_raises_its_error(db, k):
    future = watch(db, k("a"))
    future.cancel()
    assert becomes_ready(future)
    assert error_code(future.wait) == OPERATION_CANCELLED


def test_each_watch_of_a_key_fires_once(db, k):
    """One change, one callback for each of many waiters, however many changes follow."""
    futures, fired = [watch(db, k("a")) for _ in range(20)], []
    for future in futures:
        future.on_ready(fired.append)
    db[k("a")] = b"1"
    assert all(becomes_ready(future) for future in futures)
    later = watch(db, k("a"))
    db[k("a")] = b"2"
    assert becomes_ready(later)
    assert len(fired) == 20


def test_a_thread_that_waits_for_a_watch_is_woken_by_another(db, k):
    future, woken = watch(db, k("a")), threading.Event()
    waiter = threading.Thread(target=lambda: (future.wait(), woken.set()))
    waiter.start()
    assert not woken.wait(A_WHILE_S)
    db[k("a")] = b"1"
    assert woken.wait(20)
    waiter.join()


def test_the_calls_of_a_database_return_a_live_watch(db, k):
    """They read or write, and the watch is for the next change."""
    written = db.set_and_watch(k("a"), b"1")
    value, read = db.get_and_watch(k("a"))
    assert value == b"1"
    assert not becomes_ready(written, A_WHILE_S)
    assert not read.is_ready()
    cleared = db.clear_and_watch(k("a"))
    assert becomes_ready(written)
    assert becomes_ready(read)
    assert not db[k("a")]
    db[k("a")] = b"2"
    assert becomes_ready(cleared)


@pytest.mark.parametrize(
    ("before", "key", "code"),
    [
        (lambda tr: tr.options.set_read_your_writes_disable(), b"a", WATCHES_DISABLED),
        (lambda tr: tr.commit().wait(), b"a", USED_DURING_COMMIT),
        (lambda _: None, b"\xff\x01", KEY_OUTSIDE_LEGAL_RANGE),
        (lambda _: None, b"x" * 10_001, KEY_TOO_LARGE),
    ],
    ids=["without own writes", "after the commit", "a system key", "a large key"],
)
def test_a_watch_is_refused(db, before, key, code):
    tr = begin(db)
    before(tr)
    assert error_code(lambda: tr.watch(key).wait()) == code


@pytest.fixture
def watches_max(db):
    """Set the bound of watches, until the test ends."""
    yield db.options.set_max_watches
    db.options.set_max_watches(10_000)


def test_the_watch_limit(db, k, watches_max):
    """Beyond max_watches outstanding the next is refused, until one ends."""
    watches_max(3)
    futures = [watch(db, k(name)) for name in "abc"]
    tr = begin(db)
    refused = tr.watch(k("d"))
    assert TOO_MANY_WATCHES in (error_code(lambda: tr.commit().wait()), error_code(refused.wait))
    db[k("a")] = b"1"
    assert becomes_ready(futures[0])
    admitted = watch(db, k("d"))
    db[k("d")] = b"1"
    assert becomes_ready(admitted)
    for future in futures:
        future.cancel()


def test_a_watch_that_has_fired_counts_once_for_the_limit(db, k, watches_max):
    """Dropping its future must not make room for another one."""
    watches_max(2)
    fired, kept = watch(db, k("a")), watch(db, k("b"))
    db[k("a")] = b"1"
    assert becomes_ready(fired)
    del fired
    another = watch(db, k("c"))
    tr = begin(db)
    refused = tr.watch(k("d"))
    assert error_code(lambda: tr.commit().wait()) == TOO_MANY_WATCHES or becomes_ready(refused, 5)
    assert not refused.is_ready() or error_code(refused.wait) == TOO_MANY_WATCHES
    del kept, another
