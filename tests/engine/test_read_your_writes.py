"""A transaction reads its own buffered writes, in order, over the stored values."""

import pytest

from tests.support import INVALID_OPERATION, NOT_COMMITTED, UNREADABLE, begin, commit_code, error_code

PLACEHOLDER = b"\x00" * 10


def test_a_set_is_read_back(db, k):
    """A buffered value hides the stored one."""
    db[k("a")] = b"old"
    tr = db.create_transaction()
    tr[k("a")] = b"new"
    assert tr[k("a")] == b"new"
    assert db[k("a")] == b"old"


def test_a_clear_is_read_back(db, k):
    """A buffered clear hides the stored value, until it is set again."""
    db[k("a")] = b"old"
    tr = db.create_transaction()
    del tr[k("a")]
    assert not tr[k("a")].present()
    tr[k("a")] = b"new"
    assert tr[k("a")] == b"new"


def test_the_last_write_of_a_key_counts(db, k):
    """Writes apply in the order they were made."""
    tr = db.create_transaction()
    tr[k("a")] = b"1"
    tr.clear_range(k.begin, k.end)
    tr[k("b")] = b"2"
    tr[k("b")] = b"3"
    tr.commit().wait()
    assert [(k.names([row]), row.value) for row in db.get_range(k.begin, k.end)] == [("b", b"3")]


def test_a_range_merges_stored_and_buffered_keys(db, k):
    """Sets, clears and cleared ranges show in a range read, forwards and backwards."""
    k.write(db, "abcdefgh", b"old")
    tr = db.create_transaction()
    tr[k("aa")] = b"new"
    tr[k("b")] = b"new"
    del tr[k("c")]
    tr.clear_range(k("e"), k("g"))
    tr[k("f")] = b"new"
    rows = tr.get_range(k.begin, k.end).to_list()
    assert k.names(rows) == "aaabdfgh"
    assert [row.value for row in rows] == [b"old", b"new", b"new", b"old", b"new", b"old", b"old"]
    assert k.names(tr.get_range(k.begin, k.end, reverse=True)) == "hgfdbaaa"
    assert k.names(tr.get_range(k.begin, k.end, limit=3)) == "aaab"
    assert k.names(tr.get_range(k.begin, k.end, limit=4, reverse=True)) == "hgfd"


def test_a_limit_ignores_cleared_keys(db, k):
    """Cleared keys do not count for the limit, buffered ones do."""
    k.write(db, "abcdef")
    tr = db.create_transaction()
    tr.clear_range(k("b"), k("e"))
    assert k.names(tr.get_range(k.begin, k.end, limit=2)) == "ae"
    tr[k("c")] = b"new"
    assert k.names(tr.get_range(k.begin, k.end, limit=2)) == "ac"


def test_selectors_step_over_buffered_keys(db, fdb_module, k):
    """A selector counts buffered keys and skips cleared ones."""
    k.write(db, "abcdef")
    tr = db.create_transaction()
    del tr[k("c")]
    tr[k("dd")] = b"new"
    first = fdb_module.KeySelector.first_greater_or_equal
    assert tr.get_key(first(k("c"))) == k("d")
    assert tr.get_key(first(k("c")) + 1) == k("dd")
    assert tr.get_key(first(k("c")) + 2) == k("e")
    assert tr.get_key(fdb_module.KeySelector.last_less_than(k("d"))) == k("b")
    assert k.names(tr.get_range(first(k("a")) + 1, first(k("c")) + 3)) == "bddde"


def test_an_atomic_operation_is_read_back_over_the_stored_value(db, k):
    """A read after an atomic operation returns its result on the stored value."""
    db[k("a")] = b"\x01"
    tr = db.create_transaction()
    tr.add(k("a"), b"\x02")
    tr.add(k("b"), b"\x05")
    assert tr[k("a")] == b"\x03"
    tr.add(k("a"), b"\x01")
    assert [row.value for row in tr.get_range(k.begin, k.end)] == [b"\x04", b"\x05"]


def test_an_atomic_operation_applies_to_a_buffered_set(db, k):
    """Atomic operations build on this transaction's own writes."""
    db[k("a")] = b"\x50"
    tr = db.create_transaction()
    tr[k("a")] = b"\x10"
    tr.add(k("a"), b"\x01")
    del tr[k("b")]
    tr.add(k("b"), b"\x01")
    assert tr[k("a")] == b"\x11"
    tr.commit().wait()
    assert (db[k("a")], db[k("b")]) == (b"\x11", b"\x01")


def test_compare_and_clear_is_read_back(db, k):
    """A key that an atomic operation removed is absent to reads and ranges."""
    db[k("a")] = b"same"
    tr = db.create_transaction()
    tr.compare_and_clear(k("a"), b"same")
    assert not tr[k("a")].present()
    assert tr.get_range(k.begin, k.end).to_list() == []


def test_a_range_iterated_later_is_as_of_its_call(db, k):
    """A range read sees the writes made before it was asked for."""
    k.write(db, "ab")
    tr = db.create_transaction()
    tr[k("c")] = b"1"
    rows = tr.get_range(k.begin, k.end)
    assert k.names(rows) == "abc"


def test_snapshot_reads_see_own_writes(db, k):
    """Snapshot reads read the transaction's writes by default."""
    db[k("a")] = b"old"
    tr = db.create_transaction()
    tr[k("a")] = b"new"
    tr[k("b")] = b"new"
    assert tr.snapshot[k("a")] == b"new"
    assert k.names(tr.snapshot.get_range(k.begin, k.end)) == "ab"


def test_snapshot_ryw_disable_hides_writes_from_snapshot_reads(db, k):
    """With snapshot_ryw_disable only snapshot reads see the stored values; the option is a counter."""
    db[k("a")] = b"old"
    tr = db.create_transaction()
    tr.options.set_snapshot_ryw_disable()
    tr[k("a")] = b"new"
    tr[k("b")] = b"new"
    assert tr.snapshot[k("a")] == b"old"
    assert k.names(tr.snapshot.get_range(k.begin, k.end)) == "a"
    assert tr[k("a")] == b"new"
    tr.options.set_snapshot_ryw_enable()
    assert tr.snapshot[k("a")] == b"new"


def test_read_your_writes_disable_reads_stored_values(db, k):
    """With read_your_writes_disable no read sees the transaction's writes, which still commit."""
    db[k("a")] = b"old"
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr[k("a")] = b"new"
    tr[k("b")] = b"new"
    assert tr[k("a")] == b"old"
    assert k.names(tr.get_range(k.begin, k.end)) == "a"
    tr.commit().wait()
    assert db[k("a")] == b"new"


@pytest.mark.parametrize("use", ["read", "write"])
def test_read_your_writes_disable_comes_first(db, k, use):
    """After a read or a write it is too late for read_your_writes_disable."""
    tr = db.create_transaction()
    if use == "read":
        tr[k("a")].wait()
    else:
        tr[k("a")] = b"1"
    assert (
        error_code(lambda: (tr.options.set_read_your_writes_disable(), tr[k("a")].wait()))
        == INVALID_OPERATION
    )


def test_a_versionstamped_value_is_unreadable(db, k):
    """A value that the commit completes cannot be read before it: by key, range or selector."""
    tr = begin(db)
    tr.set_versionstamped_value(k("b"), PLACEHOLDER + b"\x00" * 4)
    assert error_code(lambda: tr[k("b")].wait()) == UNREADABLE
    assert error_code(lambda: tr.get_range(k("a"), k("c")).to_list()) == UNREADABLE
    assert not tr[k("a")].present()
    assert tr.get_range(k("c"), k("d")).to_list() == []


def test_a_versionstamped_key_makes_its_range_unreadable(db, k):
    """Any key that the versionstamp might become is unreadable; its neighbours are not."""
    tr = begin(db)
    tr.set_versionstamped_key(k(b"s" + PLACEHOLDER) + len(k("s")).to_bytes(4, "little"), b"value")
    assert error_code(lambda: tr.get_range(k("s"), k("t")).to_list()) == UNREADABLE
    assert error_code(lambda: tr[k(b"s" + b"\xf0" * 10)].wait()) == UNREADABLE
    assert not tr[k("r")].present()
    assert not tr[k("t")].present()


def test_a_reverse_range_ends_at_the_last_unreadable_key(db, k):
    """The keys behind all versionstamped ones are read before that."""
    for name in ("a", "m", "z"):
        db[k(name)] = b"1"
    tr = begin(db)
    for stem in (b"f", b"s"):
        tr.set_versionstamped_key(k(stem + PLACEHOLDER) + len(k(stem)).to_bytes(4, "little"), b"value")
    assert k.names(tr.get_range(k.begin, k.end, limit=1, reverse=True)) == "z"
    assert error_code(lambda: tr.get_range(k.begin, k.end, 2, True).to_list()) == UNREADABLE


@pytest.mark.parametrize("read", ["get", "get_range", "snapshot"])
def test_a_read_that_met_an_unreadable_key_fails_the_commit_too(db, k, read):
    """The commit waits for every read, and ends as the first that failed; on_error does not retry it."""
    tr = begin(db)
    tr.set_versionstamped_value(k("b"), PLACEHOLDER + b"\x00" * 4)
    failing = {
        "get": lambda: tr[k("b")].wait(),
        "get_range": lambda: tr.get_range(k("a"), k("c")).to_list(),
        "snapshot": lambda: tr.snapshot[k("b")].wait(),
    }[read]
    assert error_code(failing) == UNREADABLE
    assert not tr[k("a")].present()
    assert commit_code(tr) == UNREADABLE
    assert db[k("b")] is None


def test_a_clear_removes_a_pending_versionstamped_key(db, k):
    """Clearing the whole range where the key may land makes the range readable, and the key is not stored."""
    tr = begin(db)
    tr.set_versionstamped_key(k(b"s" + PLACEHOLDER) + len(k("s")).to_bytes(4, "little"), b"value")
    tr.clear_range(k("s"), k("t"))
    assert tr.get_range(k("s"), k("t")).to_list() == []
    assert commit_code(tr) == 0
    assert db.get_range(k.begin, k.end) == []


def test_an_unreadable_key_is_unreadable_to_snapshot_reads_too(db, k):
    """Snapshot reads see own writes, so they cannot see through an unreadable one."""
    tr = begin(db)
    tr.set_versionstamped_value(k("a"), PLACEHOLDER + b"\x00" * 4)
    assert error_code(lambda: tr.snapshot[k("a")].wait()) == UNREADABLE


def test_a_set_does_not_make_an_unreadable_key_readable(db, k):
    """Once unreadable, a key stays so after a set; a clear makes it readable again."""
    tr = begin(db)
    tr.set_versionstamped_value(k("a"), PLACEHOLDER + b"\x00" * 4)
    tr[k("a")] = b"1"
    assert error_code(lambda: tr[k("a")].wait()) == UNREADABLE
    del tr[k("a")]
    assert not tr[k("a")].present()


@pytest.mark.parametrize("clears", ["a key", "the begin of a range", "the end of a range"])
def test_a_clear_by_a_selector_conflicts_with_a_nearer_key(db, fdb_module, k, clears):
    """That key would have been the one to clear, or to end at."""
    db[k("q")] = b"1"
    selector = fdb_module.KeySelector.first_greater_than(k("m"))
    tr = begin(db)
    if clears == "a key":
        tr.clear(selector)
    elif clears == "the begin of a range":
        tr.clear_range(selector, k("qa"))
    else:
        tr.clear_range(k("m"), selector)
    db[k("n")] = b"1"
    assert commit_code(tr) == NOT_COMMITTED
    assert db[k("q")] == b"1"


def test_a_new_attempt_forgets_the_reads_of_the_one_before(db, k):
    """A read that met an unreadable key fails its own attempt, and own writes can be disabled again."""
    for again in (lambda tr: tr.on_error(NOT_COMMITTED).wait(), lambda tr: tr.reset()):
        tr = begin(db)
        tr.set_versionstamped_value(k("a"), PLACEHOLDER + b"\x00" * 4)
        assert error_code(tr[k("a")].wait) == UNREADABLE
        again(tr)
        tr.options.set_read_your_writes_disable()
        tr[k("b")] = b"1"
        assert not tr[k("b")].present()
        assert commit_code(tr) == 0
        del db[k("b")]
