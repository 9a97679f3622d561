"""A transaction reads its own buffered writes, in order, over the stored values."""

import pytest

from tests.support import INVALID_OPERATION, NOT_COMMITTED, UNREADABLE, begin, commit_code, error_code

PLACEHOLDER = b"\x00" * 10


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
    """No read sees the transaction's writes, which still commit."""
    db[k("a")] = b"old"
    tr = begin(db)  # which is no read
    tr.options.set_read_your_writes_disable()
    tr[k("a")] = b"new"
    tr[k("b")] = b"new"
    assert tr[k("a")] == b"old"
    assert k.names(tr.get_range(k.begin, k.end)) == "a"
    tr.commit().wait()
    assert db[k("a")] == b"new"


@pytest.mark.parametrize(
    "use",
    [
        lambda tr, key: tr[key].wait(),
        lambda tr, key: tr.snapshot[key].wait(),
        lambda tr, key: tr.set(key, b"1"),
    ],
)
def test_read_your_writes_disable_comes_first(db, k, use):
    tr = db.create_transaction()
    use(tr, k("a"))
    late = error_code(lambda: (tr.options.set_read_your_writes_disable(), tr[k("a")].wait()))
    assert late == INVALID_OPERATION


def stamped(k, name):
    """A key that the commit completes."""
    return k(name.encode() + PLACEHOLDER) + len(k(name)).to_bytes(4, "little")


@pytest.mark.parametrize("is_key", [False, True])
def test_what_a_versionstamp_may_become_is_unreadable(db, k, is_key):
    """Reads by key, range and snapshot fail there, and succeed beside it."""
    tr = begin(db)
    if is_key:
        tr.set_versionstamped_key(stamped(k, "s"), b"value")
    else:
        tr.set_versionstamped_value(k("s"), PLACEHOLDER + b"\x00" * 4)
    key = k(b"s" + b"\xf0" * 10) if is_key else k("s")
    for read in (tr[key].wait, tr.snapshot[key].wait, tr.get_range(k("r"), k("t")).to_list):
        assert error_code(read) == UNREADABLE
    assert not tr[k("r")].present()
    assert tr.get_range(k("t"), k("u")).to_list() == []


def test_a_reverse_range_ends_at_the_last_unreadable_key(db, k):
    """The keys behind all versionstamped ones are read before that."""
    k.write(db, "amz")
    tr = begin(db)
    for stem in "fs":
        tr.set_versionstamped_key(stamped(k, stem), b"value")
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


def test_a_clear_makes_an_unreadable_key_readable(db, k):
    """A set does not. A cleared key is not stored."""
    tr = begin(db)
    tr.set_versionstamped_key(stamped(k, "s"), b"value")
    tr.clear_range(k("s"), k("t"))
    assert tr.get_range(k("s"), k("t")).to_list() == []
    assert commit_code(tr) == 0
    assert db.get_range(k.begin, k.end) == []
    tr = begin(db)
    tr.set_versionstamped_value(k("a"), PLACEHOLDER + b"\x00" * 4)
    tr[k("a")] = b"1"
    assert error_code(lambda: tr[k("a")].wait()) == UNREADABLE
    del tr[k("a")]
    assert not tr[k("a")].present()


@pytest.mark.parametrize(
    "clear",
    [
        lambda tr, _, selector: tr.clear(selector),
        lambda tr, k, selector: tr.clear_range(selector, k("qa")),
        lambda tr, k, selector: tr.clear_range(k("m"), selector),
    ],
    ids=["a key", "the begin of a range", "the end of a range"],
)
def test_a_clear_by_a_selector_conflicts_with_a_nearer_key(db, fdb_module, k, clear):
    """That key would have been the one to clear, or to end at."""
    db[k("q")] = b"1"
    tr = begin(db)
    clear(tr, k, fdb_module.KeySelector.first_greater_than(k("m")))
    db[k("n")] = b"1"
    assert commit_code(tr) == NOT_COMMITTED
    assert db[k("q")] == b"1"


@pytest.mark.parametrize("again", [lambda tr: tr.on_error(NOT_COMMITTED).wait(), lambda tr: tr.reset()])
def test_a_new_attempt_forgets_the_reads_of_the_one_before(db, k, again):
    """A read that met an unreadable key fails its own attempt, and own writes can be disabled again."""
    tr = begin(db)
    tr.set_versionstamped_value(k("a"), PLACEHOLDER + b"\x00" * 4)
    assert error_code(tr[k("a")].wait) == UNREADABLE
    again(tr)
    tr.options.set_read_your_writes_disable()
    tr[k("b")] = b"1"
    assert not tr[k("b")].present()
    assert commit_code(tr) == 0
