"""Reads of stored keys, selectors and ranges, and their read version."""

import pytest

from tests.support import (
    EXACT_MODE_WITHOUT_LIMITS,
    FUTURE_VERSION,
    READ_VERSION_ALREADY_SET,
    TOO_OLD,
    VERSION_INVALID,
    begin,
    error_code,
)

LARGE = bytes(range(250)) * 400


@pytest.mark.parametrize("value", [None, b"", LARGE], ids=["none", "empty", "large"])
def test_an_empty_value_is_present_and_an_absent_key_not(db, k, value):
    if value is not None:
        db[k("a")] = value
    tr = db.create_transaction()
    assert tr.get(k("a")).wait() == value
    assert tr.get(k("a")).value == value
    assert tr[k("a")].present() is (value is not None)


def test_every_byte_value_is_kept_and_ordered(db, k):
    """Keys are ordered as unsigned bytes; a prefix comes before longer keys."""
    names = [bytes([byte]) for byte in range(255)] + [b"\x00\x00", b"a\x00", b"a\xff"]
    for name in names:
        db[k(name)] = b"of " + name
    rows = db.get_range(k.begin, k.end)
    assert [row.key for row in rows] == [k(name) for name in sorted(names)]
    assert all(row.value == b"of " + row.key[len(k.prefix) :] for row in rows)


@pytest.mark.parametrize("name_bytes", [490, 503, 504, 505, 510, 511, 512, 513, 600, 2_000, 9_900])
def test_a_long_key_is_a_key_like_any_other(db, k, name_bytes):
    """Keys of every length up to the limit are read, ordered, and found by selectors and ranges."""
    stem = b"x" * (name_bytes - len(k.prefix) - 2)
    keys = sorted(k(stem + tail) for tail in (b"", b"\x00", b"\x01", b"aa", b"ab", b"b"))
    for key in reversed(keys):
        db[key] = key[-2:]
    tr = db.create_transaction()
    assert [row.key for row in tr.get_range(k.begin, k.end)] == keys
    assert [row.key for row in tr.get_range(k.begin, k.end, reverse=True)] == keys[::-1]
    assert [row.key for row in tr.get_range(keys[1], keys[4])] == keys[1:4]
    assert all(tr[key] == key[-2:] for key in keys)
    assert not tr[keys[2] + b"\x00"].present()
    del db[keys[2]]
    assert [row.key for row in db.get_range(k.begin, k.end)] == keys[:2] + keys[3:]


def test_a_selector_off_an_end_is_that_end(db, fdb_module, k):
    """The ends of the ordinary keys are b"" and b"\\xff"."""
    k.write(db, "a")
    selector = fdb_module.KeySelector
    assert db.get_key(selector.first_greater_or_equal(b"\xff")) == b"\xff"
    assert db.get_key(selector.first_greater_or_equal(k("a")) + 100_000) == b"\xff"
    assert db.get_key(selector.last_less_than(b"")) == b""
    assert db.get_key(selector.last_less_than(k("a")) - 1_000_000_000) == b""


@pytest.mark.parametrize("mode", ["want_all", "iterator", "exact", "small", "medium", "large", "serial"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("count", "value_bytes"), [(100, 200), (70, 20_000)])
def test_every_streaming_mode_gives_the_same_rows(db, fdb_module, k, mode, reverse, count, value_bytes):
    """Streaming modes differ in batches, which grow at first, and never in rows."""
    tr = db.create_transaction()
    for number in range(count):
        tr[k(b"%03d" % number)] = b"v" * value_bytes
    tr.commit().wait()
    rows = db.create_transaction().get_range(
        k.begin, k.end, limit=77, reverse=reverse, streaming_mode=getattr(fdb_module.StreamingMode, mode)
    )
    expected = sorted((k(b"%03d" % number) for number in range(count)), reverse=reverse)[:77]
    assert [row.key for row in rows] == expected
    assert [row.key for row in rows.to_list()] == expected


def test_the_exact_mode_needs_a_limit(db, fdb_module, k):
    rows = db.create_transaction().get_range(k.begin, k.end, streaming_mode=fdb_module.StreamingMode.exact)
    assert error_code(rows.to_list) == EXACT_MODE_WITHOUT_LIMITS


RANGES = [
    lambda tr, k, _: (tr[k("a") : k("c")], "ab"),
    lambda tr, k, _: (tr[k("a") : k("c") : -1], "ba"),
    lambda tr, k, _: (tr.get_range(k("c"), k("a")), ""),
    lambda tr, k, _: (tr.get_range(None, k("b"), limit=1, reverse=True), "a"),
    lambda tr, k, _: (tr.get_range(k("a"), None, limit=1), "a"),
    lambda tr, k, s: (tr.get_range(s.last_less_than(k("c")) - 1, k("d"), reverse=True), "cba"),
    lambda tr, k, _: (tr.get_range_startswith(k("f")), "ff\x00fz"),
    lambda tr, k, _: (tr.get_range_startswith(k("f"), limit=2, reverse=True), "fzf\x00"),
]


@pytest.mark.parametrize("read", RANGES)
def test_a_range_has_keys_selectors_or_a_prefix(db, fdb_module, k, read):
    """None stands for b"" or b"\\xff"; a range is empty if its begin is not below its end."""
    k.write(db, "abcdefg")
    db[k("f\x00")] = db[k("fz")] = b"value"
    for reader in (db, db.create_transaction()):
        rows, found = read(reader, k, fdb_module.KeySelector)
        assert k.names(rows) == found


def test_a_read_version_sees_every_commit_that_returned_before(db, k):
    for number in range(20):
        tr = db.create_transaction()
        tr[k("a")] = b"%d" % number
        tr.commit().wait()
        reader = db.create_transaction()
        assert reader.get_read_version().wait() >= tr.get_committed_version()
        assert reader[k("a")] == b"%d" % number


def test_a_read_version_is_set_once(db):
    tr = begin(db)
    tr.set_read_version(tr.get_read_version().wait())
    assert error_code(lambda: tr.get_read_version().wait()) == READ_VERSION_ALREADY_SET


@pytest.mark.parametrize(
    ("version", "code"),
    [(-1, VERSION_INVALID), (0, VERSION_INVALID), (1, TOO_OLD), (1 << 60, FUTURE_VERSION)],
)
def test_a_version_that_no_engine_has_is_refused(db, k, version, code):
    db[k("a")] = b"1"
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert error_code(lambda: tr[k("a")].wait()) == code


def test_reads_may_be_issued_together_and_awaited_later(db, k):
    """Reads are futures: the order of waiting is free. No key beyond the limit of sizes can exist."""
    k.write(db, "abc")
    tr = db.create_transaction()
    values = [tr[k(name)] for name in (*"abc", "x" * 20_000)]
    assert [value.present() for value in reversed(values)] == [False, True, True, True]


@pytest.mark.parametrize("order", ["ascending", "descending", "towards the middle", "shuffled"])
def test_long_keys_keep_their_order_in_any_order_of_sets(db, k, order):
    """The three hundred keys differ only beyond the longest key that LMDB takes."""
    stem = b"x" * 700
    numbers = {
        "ascending": list(range(300)),
        "descending": [0, *range(299, 0, -1)],
        "towards the middle": [n for pair in zip(range(150), range(299, 149, -1), strict=True) for n in pair],
        "shuffled": [n * 101 % 300 for n in range(300)],
    }[order]
    for chunk in range(0, 300, 50):
        tr = db.create_transaction()
        for number in numbers[chunk : chunk + 50]:
            tr[k(stem + b"%03d" % number)] = b"%d" % number
        tr.commit().wait()
    db.clear_range(k(stem + b"100"), k(stem + b"200"))
    expected = [*range(100), *range(200, 300)]
    assert [int(row.value) for row in db.get_range(k.begin, k.end)] == expected
    assert [int(row.value) for row in db.get_range(k.begin, k.end, reverse=True)] == expected[::-1]
    assert all(db[k(stem + b"%03d" % number)] == b"%d" % number for number in (0, 50, 99, 200, 299))
