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


@pytest.mark.parametrize("change", ["set", "clear", "clear_range", "add"])
def test_a_watch_fires_after_a_change(db, k, change):
    """Any committed change of the value fires it."""
    db[k("a")] = b"\x01"
    future = watch(db, k("a"))
    assert not future.is_ready()
    tr = db.create_transaction()
    arguments = {
        "set": (k("a"), b"2"),
        "clear": (k("a"),),
        "clear_range": (k.begin, k.end),
        "add": (k("a"), b"\x01"),
    }
    getattr(tr, change)(*arguments[change])
    assert not future.is_ready()
    tr.commit().wait()
    assert becomes_ready(future)
    assert future.wait() is None


def test_a_watch_fires_for_a_write_without_conflict_range(db, k):
    """next_write_no_write_conflict_range hides a write from the conflict check, not from watches."""
    future = watch(db, k("a"))
    tr = db.create_transaction()
    tr.options.set_next_write_no_write_conflict_range()
    tr[k("a")] = b"1"
    tr.commit().wait()
    assert becomes_ready(future)


def test_a_watch_of_an_absent_key_fires_when_it_is_set(db, k):
    """From absent to present is a change."""
    future = watch(db, k("a"))
    db[k("a")] = b""
    assert becomes_ready(future)


def test_a_watch_does_not_fire_for_other_keys(db, k):
    """Neighbours are other keys."""
    db[k("b")] = b"1"
    future = watch(db, k("b"))
    k.write(db, "ac", b"other")
    db[k("b\x00")] = b"other"
    assert not becomes_ready(future, A_WHILE_S)


def test_a_watch_does_not_fire_for_the_same_value(db, k):
    """Writing the stored value again is no change."""
    db[k("a")] = b"1"
    future = watch(db, k("a"))
    db[k("a")] = b"1"
    assert not becomes_ready(future, A_WHILE_S)
    db[k("a")] = b"2"
    assert becomes_ready(future)


def test_a_watch_fires_for_a_change_before_its_commit(db, k):
    """A change between the read version and the watch's commit is not missed."""
    db[k("a")] = b"1"
    tr = begin(db)
    future = tr.watch(k("a"))
    db[k("a")] = b"2"
    assert commit_code(tr) == 0
    assert becomes_ready(future)


def test_a_watch_lives_only_once_its_transaction_committed(db, k):
    """Before its transaction's commit a watch never fires."""
    tr = begin(db)
    future = tr.watch(k("a"))
    db[k("a")] = b"1"
    assert not becomes_ready(future, A_WHILE_S)
    tr.commit().wait()
    assert becomes_ready(future)


def test_a_watch_is_a_serialisable_read(db, k):
    """Beside a write, a change of the watched key is a conflict."""
    tr = begin(db)
    future = tr.watch(k("a"))
    tr[k("b")] = b"1"
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    tr.reset()
    assert becomes_ready(future)


def test_a_watch_in_a_writing_transaction_sees_its_own_write(db, k):
    """A watch after a set waits for a value other than the one set."""
    tr = db.create_transaction()
    tr[k("a")] = b"mine"
    future = tr.watch(k("a"))
    tr.commit().wait()
    assert not becomes_ready(future, A_WHILE_S)
    db[k("a")] = b"other"
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
    """A later set of another value in the same transaction is a change."""
    db[k("a")] = b"1"
    tr = db.create_transaction()
    future = tr.watch(k("a"))
    tr[k("a")] = b"2"
    tr.commit().wait()
    assert becomes_ready(future)


def test_a_watch_survives_its_transaction(db, k):
    """Once committed, the transaction may be forgotten."""
    tr = db.create_transaction()
    future = tr.watch(k("a"))
    tr.commit().wait()
    del tr
    db[k("a")] = b"1"
    assert becomes_ready(future)


def test_a_live_watch_survives_the_reset_of_its_transaction(db, k):
    """A reset after the commit cancels no watch."""
    tr = db.create_transaction()
    future = tr.watch(k("a"))
    tr.commit().wait()
    tr.reset()
    assert not becomes_ready(future, A_WHILE_S)
    db[k("a")] = b"1"
    assert becomes_ready(future)
    assert future.wait() is None


def test_an_uncommitted_watch_is_cancelled_by_reset(db, k):
    """A reset ends an unarmed watch with an error."""
    tr = begin(db)
    future = tr.watch(k("a"))
    tr.reset()
    assert becomes_ready(future)
    assert error_code(future.wait) == CANCELLED


def test_an_uncommitted_watch_is_cancelled_by_on_error(db, k):
    """A retry starts with no watches."""
    tr = begin(db)
    future = tr.watch(k("a"))
    tr[k("b")] = b"1"
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    tr.on_error(NOT_COMMITTED).wait()
    assert error_code(future.wait) in (CANCELLED, NOT_COMMITTED)


def test_a_cancelled_watch_raises_its_error(db, k):
    """Cancelling the future ends the watch."""
    future = watch(db, k("a"))
    future.cancel()
    assert becomes_ready(future)
    assert error_code(future.wait) == OPERATION_CANCELLED


def test_a_watch_fires_once(db, k):
    """One change, one callback, however many changes follow."""
    future = watch(db, k("a"))
    fired = []
    future.on_ready(fired.append)
    db[k("a")] = b"1"
    assert becomes_ready(future)
    db[k("a")] = b"2"
    assert becomes_ready(watch_and_change(db, k("a")))
    assert len(fired) == 1


def watch_and_change(db, key):
    future = watch(db, key)
    db[key] = b"3"
    return future


def test_all_watches_of_a_key_fire(db, k):
    """Each of many waiters is woken."""
    futures = [watch(db, k("a")) for _ in range(20)]
    db[k("a")] = b"1"
    assert all(becomes_ready(future) for future in futures)


def test_a_thread_that_waits_for_a_watch_is_woken_by_another(db, k):
    """Blocking in wait() ends with the change."""
    future = watch(db, k("a"))
    woken = threading.Event()

    def wait():
        future.wait()
        woken.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert not woken.wait(A_WHILE_S)
    db[k("a")] = b"1"
    assert woken.wait(20)
    waiter.join()


def test_get_and_watch_gives_the_value_and_its_change(db, k):
    """The database's conveniences return a live watch."""
    db[k("a")] = b"1"
    value, future = db.get_and_watch(k("a"))
    assert value == b"1"
    assert not future.is_ready()
    db[k("a")] = b"2"
    assert becomes_ready(future)


def test_set_and_watch_and_clear_and_watch(db, k):
    """They write, and return a watch for the next change."""
    future = db.set_and_watch(k("a"), b"1")
    assert db[k("a")] == b"1"
    assert not becomes_ready(future, A_WHILE_S)
    cleared = db.clear_and_watch(k("a"))
    assert becomes_ready(future)
    assert not db[k("a")]
    db[k("a")] = b"2"
    assert becomes_ready(cleared)


def test_watches_need_read_your_writes(db, k):
    """With read_your_writes_disable there are no watches."""
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    assert error_code(lambda: tr.watch(k("a")).wait()) == WATCHES_DISABLED


def test_a_watched_key_must_be_a_legal_one(db, k):
    """System keys and too long ones cannot be watched."""
    assert error_code(lambda: db.create_transaction().watch(b"\xff\x01").wait()) == KEY_OUTSIDE_LEGAL_RANGE
    assert error_code(lambda: db.create_transaction().watch(k(b"x" * 10_000)).wait()) == KEY_TOO_LARGE


def test_a_watch_after_the_commit_is_refused(db, k):
    """After the commit the transaction has ended."""
    tr = begin(db)
    tr.commit().wait()
    assert error_code(lambda: tr.watch(k("a")).wait()) == USED_DURING_COMMIT


def test_the_watch_limit(db, k):
    """Beyond max_watches outstanding the next is refused, until one ends."""
    db.options.set_max_watches(3)
    try:
        futures = [watch(db, k(name)) for name in "abc"]
        tr = begin(db)
        refused = tr.watch(k("d"))
        assert TOO_MANY_WATCHES in (error_code(lambda: tr.commit().wait()), error_code(refused.wait))
        db[k("a")] = b"1"
        assert becomes_ready(futures[0])
        tr = begin(db)
        admitted = tr.watch(k("d"))
        tr.commit().wait()
        db[k("d")] = b"1"
        assert becomes_ready(admitted)
        for future in futures:
            future.cancel()
    finally:
        db.options.set_max_watches(10_000)


def test_a_watch_that_has_fired_counts_once_for_the_limit(db, k):
    """Dropping its future must not make room for another one."""
    db.options.set_max_watches(2)
    try:
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
    finally:
        db.options.set_max_watches(10_000)


def test_a_watch_has_no_time_limit(db, k):
    """The transaction's timeout ends with the transaction, not the watch."""
    tr = db.create_transaction()
    tr.options.set_timeout(50)
    future = tr.watch(k("a"))
    tr.commit().wait()
    assert not becomes_ready(future, A_WHILE_S)
    db[k("a")] = b"1"
    assert becomes_ready(future)
    assert future.wait() is None
