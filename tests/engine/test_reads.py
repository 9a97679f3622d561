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


def test_a_get_of_an_absent_key_is_not_present(db, k):
    """An absent key's value is None, and says that it is not present."""
    tr = db.create_transaction()
    assert tr.get(k("a")).wait() == None  # noqa: E711  # a Value is a future: `is` would compare the future
    assert tr.get(k("a")).value is None
    assert not tr.get(k("a")).present()


def test_an_empty_value_is_present(db, k):
    """An empty value differs from an absent key."""
    db[k("a")] = b""
    tr = db.create_transaction()
    assert tr[k("a")].present()
    assert tr[k("a")] == b""


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


def test_a_large_value_comes_back_whole(db, k):
    """A value of the largest size is stored and read as it is."""
    value = bytes(range(250)) * 400
    db[k("a")] = value
    assert db[k("a")] == value


@pytest.mark.parametrize(
    ("selector", "name", "found"),
    [
        ("last_less_than", "c", "b"),
        ("last_less_or_equal", "c", "c"),
        ("last_less_or_equal", "cc", "c"),
        ("first_greater_than", "c", "d"),
        ("first_greater_or_equal", "c", "c"),
        ("first_greater_or_equal", "cc", "d"),
    ],
)
def test_each_selector_resolves_to_its_key(db, fdb_module, k, selector, name, found):
    """Each of the four selectors finds the key that its name promises."""
    k.write(db, "abcde")
    resolved = getattr(fdb_module.KeySelector, selector)(k(name))
    assert db.get_key(resolved) == k(found)
    tr = db.create_transaction()
    assert tr.get_key(resolved) == k(found)
    assert tr.snapshot.get_key(resolved) == k(found)


@pytest.mark.parametrize(
    ("offset", "found"), [(-3, "a"), (-2, "b"), (-1, "c"), (0, "d"), (1, "e"), (2, "f"), (3, "g")]
)
def test_an_offset_moves_a_selector_by_keys(db, fdb_module, k, offset, found):
    """`selector + n` is n keys further, in either direction."""
    k.write(db, "abcdefg")
    selector = fdb_module.KeySelector.first_greater_or_equal(k("d"))
    moved = selector + offset if offset >= 0 else selector - (-offset)
    assert db.get_key(moved) == k(found)


def test_a_selector_off_the_end_is_the_end(db, fdb_module, k):
    """Past the last key there is the end of the ordinary keys, b"\\xff"."""
    k.write(db, "a")
    assert db.get_key(fdb_module.KeySelector.first_greater_or_equal(b"\xff")) == b"\xff"
    assert db.get_key(fdb_module.KeySelector.first_greater_or_equal(k("a")) + 100_000) == b"\xff"


def test_a_selector_off_the_beginning_is_the_empty_key(db, fdb_module, k):
    """Before the first key there is b""."""
    k.write(db, "a")
    assert db.get_key(fdb_module.KeySelector.last_less_than(b"")) == b""
    assert db.get_key(fdb_module.KeySelector.last_less_than(k("a")) - 1_000_000_000) == b""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({}, "abcde"),
        ({"limit": 2}, "ab"),
        ({"limit": 5}, "abcde"),
        ({"limit": 9}, "abcde"),
        ({"reverse": True}, "edcba"),
        ({"limit": 2, "reverse": True}, "ed"),
    ],
)
def test_a_range_honours_limit_and_direction(db, k, arguments, found):
    """A range is half open; `limit` counts from the side it is read from."""
    k.write(db, "abcde")
    tr = db.create_transaction()
    assert k.names(tr.get_range(k.begin, k.end, **arguments)) == found
    assert k.names(tr.get_range(k.begin, k.end, **arguments).to_list()) == found
    assert k.names(tr.snapshot.get_range(k.begin, k.end, **arguments)) == found
    assert k.names(db.get_range(k.begin, k.end, **arguments)) == found


@pytest.mark.parametrize("mode", ["want_all", "iterator", "exact", "small", "medium", "large", "serial"])
@pytest.mark.parametrize("reverse", [False, True])
def test_every_streaming_mode_gives_the_same_rows(db, fdb_module, k, mode, reverse):
    """Streaming modes differ in batches, never in rows."""
    tr = db.create_transaction()
    for number in range(100):
        tr[k(b"%03d" % number)] = b"v" * 200
    tr.commit().wait()
    streaming_mode = getattr(fdb_module.StreamingMode, mode)
    rows = db.create_transaction().get_range(
        k.begin, k.end, limit=77, reverse=reverse, streaming_mode=streaming_mode
    )
    expected = sorted((k(b"%03d" % number) for number in range(100)), reverse=reverse)[:77]
    assert [row.key for row in rows] == expected
    assert [row.key for row in rows.to_list()] == expected


@pytest.mark.parametrize("reverse", [False, True])
def test_a_range_of_many_batches_is_iterated_to_its_end(db, k, reverse):
    """The batches grow at first, and then stay as they are."""
    tr = db.create_transaction()
    for number in range(70):
        tr[k(b"%03d" % number)] = b"v" * 20_000
    tr.commit().wait()
    expected = sorted((k(b"%03d" % number) for number in range(70)), reverse=reverse)
    rows = db.create_transaction().get_range(k.begin, k.end, reverse=reverse)
    assert [row.key for row in rows] == expected


def test_the_exact_mode_needs_a_limit(db, fdb_module, k):
    """EXACT without a limit is refused."""
    rows = db.create_transaction().get_range(k.begin, k.end, streaming_mode=fdb_module.StreamingMode.exact)
    assert error_code(rows.to_list) == EXACT_MODE_WITHOUT_LIMITS


def test_an_unread_range_of_a_transaction_can_be_read_twice(db, k):
    """Iterating a range again starts again."""
    k.write(db, "abc")
    rows = db.create_transaction().get_range(k.begin, k.end)
    assert k.names(rows) == k.names(rows) == "abc"


def test_a_range_takes_selectors(db, fdb_module, k):
    """Both ends may be selectors with offsets."""
    k.write(db, "abcdef")
    selector = fdb_module.KeySelector
    tr = db.create_transaction()
    assert k.names(tr.get_range(selector.first_greater_than(k("a")), k("d"))) == "bc"
    assert k.names(tr.get_range(k("b"), selector.last_less_or_equal(k("e")))) == "bcd"
    assert k.names(tr.get_range(k("a"), selector.first_greater_or_equal(k("b")) + 2)) == "abc"
    assert k.names(tr.get_range(selector.last_less_than(k("c")) - 1, k("d"), reverse=True)) == "cba"


@pytest.mark.parametrize(("first", "last"), [("c", "a"), ("b", "b")])
def test_an_inverted_or_empty_range_reads_nothing(db, k, first, last):
    """A range is empty, without an error, if its begin is not below its end."""
    k.write(db, "abc")
    assert list(db.create_transaction().get_range(k(first), k(last))) == []


def test_a_range_begins_and_ends_at_the_ordinary_keys_by_default(db, k):
    """None stands for b"" and b"\\xff"."""
    k.write(db, "a")
    tr = db.create_transaction()
    assert tr.get_range(None, k("b"), limit=1, reverse=True).to_list()[0].key == k("a")
    assert tr.get_range(k("a"), None, limit=1).to_list()[0].key == k("a")


def test_slices_are_ranges(db, k):
    """`tr[a:b]` reads a range, `tr[a:b:-1]` from its end."""
    k.write(db, "abc")
    tr = db.create_transaction()
    assert k.names(tr[k("a") : k("c")]) == "ab"
    assert k.names(tr[k("a") : k("c") : -1]) == "ba"
    assert k.names(db[k("a") : k("c")]) == "ab"


def test_a_range_of_a_prefix(db, k):
    """`get_range_startswith` reads exactly the keys that begin with the prefix."""
    k.write(db, "a")
    for name in ("b", "b\x00", "bz", "c"):
        db[k(name)] = b"v"
    assert k.names(db.create_transaction().get_range_startswith(k("b"))) == "bb\x00bz"
    assert k.names(db.get_range_startswith(k("b"), limit=2, reverse=True)) == "bzb\x00"


def test_all_reads_of_a_transaction_are_at_one_version(db, k):
    """A commit after the read version is not seen, not even by a late read."""
    k.write(db, "ab", b"old")
    tr = begin(db)
    k.write(db, "abc", b"new")
    del db[k("a")]
    assert tr[k("a")] == b"old"
    assert k.names(tr.get_range(k.begin, k.end)) == "ab"
    assert tr.snapshot[k("b")] == b"old"


def test_the_read_version_is_taken_at_the_first_read(db, k):
    """Creating a transaction takes no version; its first read does."""
    tr = db.create_transaction()
    db[k("a")] = b"1"
    assert tr[k("a")] == b"1"
    db[k("a")] = b"2"
    assert tr[k("a")] == b"1"


def test_a_read_version_sees_every_commit_that_returned_before(db, k):
    """Read versions are never behind a commit that was acknowledged."""
    for number in range(20):
        tr = db.create_transaction()
        tr[k("a")] = b"%d" % number
        tr.commit().wait()
        reader = db.create_transaction()
        assert reader.get_read_version().wait() >= tr.get_committed_version()
        assert reader[k("a")] == b"%d" % number


def test_the_read_version_stays_the_same(db):
    """A second call returns the same version."""
    tr = db.create_transaction()
    assert tr.get_read_version().wait() == tr.get_read_version().wait()
    assert tr.snapshot.get_read_version().wait() == tr.get_read_version().wait()


def test_two_transactions_at_one_read_version_see_the_same(db, k):
    """A transaction at another one's read version sees the same values."""
    db[k("a")] = b"old"
    first = begin(db)
    db[k("a")] = b"new"
    second = db.create_transaction()
    second.set_read_version(first.get_read_version().wait())
    assert second[k("a")] == b"old"
    assert second.get_read_version().wait() == first.get_read_version().wait()


def test_a_read_version_is_set_once(db):
    """A version that was taken or set stays."""
    tr = begin(db)
    tr.set_read_version(tr.get_read_version().wait())
    assert error_code(lambda: tr.get_read_version().wait()) == READ_VERSION_ALREADY_SET


@pytest.mark.parametrize("version", [0, -1])
def test_a_read_version_is_positive(db, version):
    """Versions below one are refused."""
    tr = db.create_transaction()
    tr.set_read_version(version)
    assert error_code(lambda: tr.get_read_version().wait()) == VERSION_INVALID


def test_an_ancient_read_version_is_too_old(db, k):
    """A version that no engine keeps cannot be read."""
    db[k("a")] = b"1"
    tr = db.create_transaction()
    tr.set_read_version(1)
    assert error_code(lambda: tr[k("a")].wait()) == TOO_OLD


def test_a_read_version_of_the_future_is_refused(db, k):
    """A version far beyond the newest cannot be read."""
    version = begin(db).get_read_version().wait()
    tr = db.create_transaction()
    tr.set_read_version(version + 1_000_000_000_000)
    assert error_code(lambda: tr[k("a")].wait()) == FUTURE_VERSION


def test_reads_may_be_issued_together_and_awaited_later(db, k):
    """Reads are futures: the order of waiting is free."""
    k.write(db, "abc")
    tr = db.create_transaction()
    values = [tr[k(name)] for name in "abcd"]
    assert [value.present() for value in reversed(values)] == [False, True, True, True]


def test_a_key_beyond_the_size_limit_is_absent(db, k):
    """No such key can exist, so a read finds none."""
    tr = db.create_transaction()
    assert not tr[k(b"x" * 20_000)].present()


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
