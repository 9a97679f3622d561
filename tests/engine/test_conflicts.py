"""Which transactions conflict, and which never do."""

import pytest

from tests.support import INVERTED_RANGE, NOT_COMMITTED, begin, commit_code


@pytest.fixture
def stored(db, k):
    """Store the keys a to h."""
    k.write(db, "abcdefgh")
    return k


def conflicts(tr, k):
    """True if `tr`, with a write added, fails to commit with a conflict."""
    tr[k("out")] = b"1"
    code = commit_code(tr)
    assert code in (0, NOT_COMMITTED)
    return code == NOT_COMMITTED


@pytest.mark.parametrize("change", ["set", "clear", "clear_range", "add", "write_conflict_key"])
def test_a_read_conflicts_with_any_later_write_of_its_key(db, stored, change):
    """Setting, clearing, changing atomically or declaring a write of a key that was read is a conflict."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    other = db.create_transaction()
    {
        "set": lambda: other.set(k("b"), b"other"),
        "clear": lambda: other.clear(k("b")),
        "clear_range": lambda: other.clear_range(k("a"), k("c")),
        "add": lambda: other.add(k("b"), b"\x01"),
        "write_conflict_key": lambda: other.add_write_conflict_key(k("b")),
    }[change]()
    other.commit().wait()
    assert conflicts(tr, k)


def test_a_conflict_leaves_no_trace(db, stored):
    """A transaction that conflicts writes nothing at all."""
    k = stored
    tr = begin(db)
    tr[k("a")].wait()
    tr[k("x")] = b"1"
    tr.clear_range(k("c"), k("h"))
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    assert k.names(db.get_range(k.begin, k.end)) == "abcdefgh"


def test_a_write_of_the_same_value_conflicts_too(db, stored):
    """Conflicts are about keys, not about values."""
    k = stored
    tr = begin(db)
    value = tr[k("b")].value
    db[k("b")] = value
    assert conflicts(tr, k)


def test_reading_an_absent_key_conflicts_with_its_creation(db, stored):
    """Absence is read as well."""
    k = stored
    tr = begin(db)
    tr[k("zz")].wait()
    db[k("zz")] = b"new"
    assert conflicts(tr, k)


def test_a_write_before_the_read_version_is_no_conflict(db, stored):
    """Only commits after the read version count."""
    k = stored
    db[k("b")] = b"earlier"
    tr = begin(db)
    tr[k("b")].wait()
    assert not conflicts(tr, k)


def test_a_write_of_a_neighbour_is_no_conflict(db, stored):
    """The keys just below and above a key are other keys."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    db[k("b\x00")] = b"other"
    db[k("a\xff")] = b"other"
    assert not conflicts(tr, k)


def test_a_failed_commit_conflicts_with_no_transaction(db, stored):
    """The writes of a transaction that did not commit do not count."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    failed = begin(db)
    failed[k("a")].wait()
    failed[k("b")] = b"other"
    db[k("a")] = b"other"
    assert commit_code(failed) == NOT_COMMITTED
    assert not conflicts(tr, k)


def test_write_skew_is_impossible(db, stored):
    """Of two transactions that each read the key that the other writes, one fails."""
    k = stored
    first, second = begin(db), begin(db)
    first[k("a")].wait()
    second[k("b")].wait()
    first[k("b")] = b"1"
    second[k("a")] = b"2"
    assert commit_code(first) == 0
    assert commit_code(second) == NOT_COMMITTED


def test_write_only_transactions_never_conflict(db, stored):
    """Blind writes of one key all commit, the last one stays."""
    k = stored
    writers = [begin(db) for _ in range(5)]
    for number, tr in enumerate(writers):
        tr[k("a")] = b"%d" % number
        tr.clear_range(k("b"), k("d"))
        tr.add(k("e"), b"\x01")
    assert [commit_code(tr) for tr in writers] == [0] * 5
    assert db[k("a")] == b"4"


def test_a_read_only_transaction_never_conflicts(db, stored):
    """Without writes there is nothing to check."""
    k = stored
    tr = begin(db)
    tr[k("a")].wait()
    db[k("a")] = b"other"
    assert commit_code(tr) == 0


def test_a_write_conflict_range_alone_makes_a_writer(db, stored):
    """Its reads are checked at the commit."""
    k = stored
    tr = begin(db)
    tr[k("a")].wait()
    tr.add_write_conflict_key(k("elsewhere"))
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED


def test_snapshot_reads_never_conflict(db, fdb_module, stored):
    """Snapshot gets, ranges and selectors add no conflict."""
    k = stored
    tr = begin(db)
    tr.snapshot[k("a")].wait()
    tr.snapshot.get_range(k.begin, k.end).to_list()
    tr.snapshot.get_key(fdb_module.KeySelector.first_greater_than(k("a"))).wait()
    k.write(db, "abcdefgh", b"other")
    assert not conflicts(tr, k)


def in_range_tests():
    """(how the range is read, keys that conflict when they change, keys that do not)"""
    return [
        ({}, "bcaxz", ""),
        ({"limit": 2}, "ab", "ch"),
        ({"limit": 2, "reverse": True}, "hg", "fa"),
        ({"limit": 8}, "ah", ""),
        ({"limit": 100}, "ahz", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "changed", "expected"),
    [(arguments, name, True) for arguments, conflicting, _ in in_range_tests() for name in conflicting]
    + [(arguments, name, False) for arguments, _, harmless in in_range_tests() for name in harmless],
)
def test_a_range_read_conflicts_in_the_part_it_read(db, stored, arguments, changed, expected):
    """With a limit only the part up to the last row returned was read, from the side it was read from."""
    k = stored
    tr = begin(db)
    tr.get_range(k.begin, k.end, **arguments).to_list()
    db[k(changed)] = b"other"
    assert conflicts(tr, k) is expected


def test_a_limited_range_conflicts_with_an_insertion_in_it(db, stored):
    """An insertion before the last row returned changes the answer."""
    k = stored
    tr = begin(db)
    tr.get_range(k.begin, k.end, limit=2).to_list()
    db[k("aa")] = b"other"
    assert conflicts(tr, k)


def test_an_empty_range_conflicts_with_an_insertion(db, stored):
    """Emptiness is read as well."""
    k = stored
    tr = begin(db)
    assert tr.get_range(k("x"), k("y")).to_list() == []
    db[k("xx")] = b"other"
    assert conflicts(tr, k)


def test_a_range_does_not_conflict_outside_its_ends(db, stored):
    """The end of a range is not part of it."""
    k = stored
    tr = begin(db)
    tr.get_range(k("c"), k("e")).to_list()
    db[k("b\xff")] = b"other"
    db[k("e")] = b"other"
    assert not conflicts(tr, k)


def test_a_partly_iterated_range_conflicts_in_that_part(db, k):
    """Later batches, which were not requested, do not count as read."""
    tr = db.create_transaction()
    for number in range(1000):
        tr[k(b"%04d" % number)] = b"v" * 500
    tr.commit().wait()
    tr = begin(db)
    next(iter(tr.get_range(k.begin, k.end)))
    db[k(b"0999")] = b"other"
    assert not conflicts(tr, k)


@pytest.mark.parametrize(
    ("selector", "offset", "changed", "expected"),
    [
        ("first_greater_or_equal", 0, "d", True),
        ("first_greater_or_equal", 0, "e", False),
        ("first_greater_or_equal", 0, "c\xff", False),
        ("first_greater_than", 0, "e", True),
        ("first_greater_than", 0, "dd", True),
        ("first_greater_than", 0, "d", False),
        ("first_greater_or_equal", 2, "ee", True),
        ("first_greater_or_equal", 2, "f", True),
        ("first_greater_or_equal", 2, "g", False),
        ("last_less_than", 0, "c", True),
        ("last_less_than", 0, "cc", True),
        ("last_less_than", 0, "d", False),
        ("last_less_than", 0, "b", False),
        ("last_less_or_equal", 0, "d", True),
        ("last_less_or_equal", -2, "cc", True),
        ("last_less_or_equal", -2, "b", True),
        ("last_less_or_equal", -2, "a", False),
    ],
)
def test_a_selector_conflicts_on_the_keys_it_passed(
    db, fdb_module, stored, selector, offset, changed, expected
):
    """Resolving a selector reads from its key to the key that it found, and nothing else."""
    k = stored
    tr = begin(db)
    tr.get_key(getattr(fdb_module.KeySelector, selector)(k("d")) + offset).wait()
    db[k(changed.encode("latin1"))] = b"other"
    assert conflicts(tr, k) is expected


@pytest.mark.parametrize(
    ("changed", "expected"), [("b", True), ("bb", True), ("c", True), ("d", True), ("e", False), ("a", False)]
)
def test_a_range_conflicts_on_the_keys_its_selectors_passed(db, fdb_module, stored, changed, expected):
    """The keys that an end's offset stepped over were read too."""
    k = stored
    selector = fdb_module.KeySelector
    tr = begin(db)
    rows = tr.get_range(selector.first_greater_or_equal(k("b")), selector.first_greater_or_equal(k("b")) + 3)
    assert k.names(rows) == "bcd"
    db[k(changed)] = b"other"
    assert conflicts(tr, k) is expected


def test_a_reverse_range_conflicts_on_keys_its_end_passed(db, fdb_module, stored):
    """The keys that the end's offset counted are read, though the limit was reached before them."""
    k = stored
    selector = fdb_module.KeySelector
    tr = begin(db)
    end = selector.first_greater_or_equal(k("b\x00")) + 1
    rows = tr.get_range(selector.first_greater_or_equal(k("b")), end, limit=1, reverse=True)
    assert k.names(rows) == "c"
    db[k("b\x00")] = b"other"
    assert conflicts(tr, k)


@pytest.mark.parametrize(
    ("begin_at", "end_at", "reverse", "found", "changed"),
    [
        (("first_greater_or_equal", "b", 1), ("first_greater_or_equal", "f", 0), True, "e", "bb"),
        (("first_greater_or_equal", "b", 0), ("last_less_than", "f", 0), False, "b", "d"),
        (("last_less_than", "d", 0), ("first_greater_or_equal", "g", 0), False, "c", "cc"),
    ],
)
def test_a_limited_range_conflicts_on_keys_both_ends_passed(
    db, fdb_module, stored, begin_at, end_at, reverse, found, changed
):
    """Keys that decide where a range begins and ends are read, even beyond the last row of a limited read."""
    k = stored
    first, last = (
        getattr(fdb_module.KeySelector, name)(k(key)) + offset for name, key, offset in (begin_at, end_at)
    )
    tr = begin(db)
    assert k.names(tr.get_range(first, last, limit=1, reverse=reverse)) == found
    db[k(changed)] = b"other"
    assert conflicts(tr, k)


@pytest.mark.parametrize(
    ("first", "last", "expected"), [("a", "c", False), ("e", "g", False), ("a", "c\x00", True)]
)
def test_ranges_that_only_touch_do_not_conflict(db, stored, first, last, expected):
    """A range read ends before its end, and so does a cleared range."""
    k = stored
    tr = begin(db)
    tr.get_range(k("c"), k("e")).to_list()
    db.clear_range(k(first), k(last))
    assert conflicts(tr, k) is expected


@pytest.mark.parametrize("second", ["bc", "bd", "dg", "ah"])
def test_a_range_read_again_in_part_conflicts_as_a_whole(db, stored, second):
    k = stored
    tr = begin(db)
    tr.get_range(k("a"), k("g")).to_list()
    tr.get_range(k(second[0]), k(second[1])).to_list()
    db[k("f")] = b"other"
    assert conflicts(tr, k)


def test_an_explicit_read_conflict_key_is_a_read(db, stored):
    """add_read_conflict_key conflicts like a get, for that key alone."""
    k = stored
    for changed, expected in (("b", True), ("b\x00", False)):
        tr = begin(db)
        tr.add_read_conflict_key(k("b"))
        db[k(changed)] = b"other"
        assert conflicts(tr, k) is expected


def test_an_explicit_read_conflict_range_is_a_read(db, stored):
    """add_read_conflict_range is half open."""
    k = stored
    for changed, expected in (("b", True), ("cc", True), ("d", False), ("a\xff", False)):
        tr = begin(db)
        tr.add_read_conflict_range(k("b"), k("d"))
        db[k(changed.encode("latin1"))] = b"other"
        assert conflicts(tr, k) is expected


def test_an_explicit_write_conflict_range_is_a_write(db, stored):
    """add_write_conflict_range makes readers of the range conflict, and writes nothing."""
    k = stored
    for read, expected in (("b", True), ("d", False)):
        tr = begin(db)
        tr[k(read)].wait()
        other = db.create_transaction()
        other.add_write_conflict_range(k("b"), k("d"))
        other.commit().wait()
        assert conflicts(tr, k) is expected
    assert db[k("b")] == b"value"


@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_inverted_conflict_range_is_refused_at_once(db, fdb_module, k, kind):
    """A bad key waits for the next future; an inverted conflict range raises where it stands."""
    tr = db.create_transaction()
    with pytest.raises(fdb_module.FDBError) as refused:
        getattr(tr, f"add_{kind}_conflict_range")(k("b"), k("a"))
    assert refused.value.code == INVERTED_RANGE
    assert commit_code(tr) == 0


def test_an_empty_conflict_range_has_no_effect(db, stored):
    """A range without keys adds no conflict."""
    k = stored
    tr = begin(db)
    tr.add_read_conflict_range(k("b"), k("b"))
    db[k("b")] = b"other"
    assert not conflicts(tr, k)


def test_a_read_conflict_alone_takes_its_version_at_commit(db, stored):
    """A read conflict range of a transaction that has read nothing is as of its commit."""
    k = stored
    tr = db.create_transaction()
    tr.add_read_conflict_key(k("b"))
    db[k("b")] = b"other"
    assert not conflicts(tr, k)


OWN_WRITES = {
    "set": lambda tr, key: tr.set(key, b"mine"),
    "clear": lambda tr, key: tr.clear(key),
    "clear_range": lambda tr, key: tr.clear_range(key, key + b"\x01"),
    "add": lambda tr, key: tr.add(key, b"\x01"),
    "compare_and_clear": lambda tr, key: tr.compare_and_clear(key, b"mine"),
    "clear, then add": lambda tr, key: (tr.clear(key), tr.add(key, b"\x01")),
    "set, then add": lambda tr, key: (tr.set(key, b"mine"), tr.add(key, b"\x01")),
    "add, then set": lambda tr, key: (tr.add(key, b"\x01"), tr.set(key, b"mine")),
}
READS = {
    "get": lambda tr, key, _: tr[key].wait(),
    "range": lambda tr, key, _: tr.get_range(key, key + b"\x00").to_list(),
    "selector": lambda tr, key, selector: tr.get_key(selector.last_less_or_equal(key)).wait(),
    "conflict key": lambda tr, key, _: tr.add_read_conflict_key(key),
    "conflict range": lambda tr, key, _: tr.add_read_conflict_range(key, key + b"\x00"),
}


@pytest.mark.parametrize("write", OWN_WRITES)
@pytest.mark.parametrize("read", ["get", "range", "conflict key", "conflict range"])
def test_a_read_conflict_on_its_own_write_is_dropped(db, stored, write, read):
    """A key set or cleared here does not depend on others; after only an atomic operation it does."""
    k = stored
    tr = begin(db)
    OWN_WRITES[write](tr, k("b"))
    READS[read](tr, k("b"), None)
    db[k("b")] = b"other"
    assert conflicts(tr, k) is (write in ("add", "compare_and_clear"))


@pytest.mark.parametrize("read", READS)
def test_a_read_before_the_write_of_a_key_conflicts(db, fdb_module, stored, read):
    """A later write by the same transaction does not remove the conflict."""
    k = stored
    tr = begin(db)
    READS[read](tr, k("b"), fdb_module.KeySelector)
    tr[k("b")] = b"mine"
    db[k("b")] = b"other"
    assert conflicts(tr, k)


@pytest.mark.parametrize(("changed", "expected"), [("a", True), ("b", False), ("d", False), ("e", True)])
def test_a_range_over_own_writes_conflicts_only_beside_them(db, stored, changed, expected):
    """Keys that the transaction has set or cleared are left out of the conflict range."""
    k = stored
    tr = begin(db)
    tr[k("b")] = b"mine"
    tr.clear_range(k("c"), k("e"))
    tr.get_range(k("a"), k("f")).to_list()
    db[k(changed)] = b"other"
    assert conflicts(tr, k) is expected


def test_next_write_no_write_conflict_range_is_for_one_write(db, stored):
    """The next write conflicts with no reader, the one after it does."""
    k = stored
    for read, expected in (("b", False), ("c", True)):
        tr = begin(db)
        tr[k(read)].wait()
        other = db.create_transaction()
        other.options.set_next_write_no_write_conflict_range()
        other[k("b")] = b"other"
        other[k("c")] = b"other"
        other.commit().wait()
        assert conflicts(tr, k) is expected
        assert db[k("b")] == b"other"


def test_a_versionstamped_key_uses_the_no_conflict_option_up(db, stored):
    """It counts as the next write for next_write_no_write_conflict_range: the one after it conflicts."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    other = db.create_transaction()
    other.options.set_next_write_no_write_conflict_range()
    stamped = k(b"stamped") + bytes(10)
    other.set_versionstamped_key(stamped + (len(stamped) - 10).to_bytes(4, "little"), b"")
    other[k("b")] = b"other"
    other.commit().wait()
    assert conflicts(tr, k)


def test_a_write_without_conflict_keeps_an_earlier_conflict(db, stored):
    """Writing a key again without a conflict range keeps the conflict range of its first write."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    other = db.create_transaction()
    other[k("b")] = b"1"
    other.options.set_next_write_no_write_conflict_range()
    other[k("b")] = b"2"
    other.commit().wait()
    assert conflicts(tr, k)


@pytest.mark.parametrize("operation", ["clear", "clear_range", "add"])
def test_the_no_conflict_option_covers_each_kind_of_write(db, stored, operation):
    """With next_write_no_write_conflict_range, clears and atomic operations have no conflict range either."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    other = db.create_transaction()
    other.options.set_next_write_no_write_conflict_range()
    arguments = {"clear": (k("b"),), "clear_range": (k("b"), k("c")), "add": (k("b"), b"\x01")}[operation]
    getattr(other, operation)(*arguments)
    other.commit().wait()
    assert not conflicts(tr, k)


def test_without_read_your_writes_a_read_after_a_set_conflicts(db, stored):
    """With read_your_writes_disable the read ignores the transaction's own write, so it can conflict."""
    k = stored
    tr = db.create_transaction()
    tr.options.set_read_your_writes_disable()
    tr.get_read_version().wait()
    tr[k("b")] = b"mine"
    tr[k("b")].wait()
    db[k("b")] = b"other"
    assert conflicts(tr, k)


def test_long_keys_conflict_like_short_ones(db, k):
    """Keys that differ only beyond 511 bytes are different keys to the conflict check."""
    stem = b"x" * 600
    for changed, expected in ((b"a", True), (b"b", False)):
        tr = begin(db)
        tr[k(stem + b"a")].wait()
        db[k(stem + changed)] = b"other"
        assert conflicts(tr, k) is expected


def test_on_error_after_a_conflict_starts_afresh(db, stored):
    """After on_error the transaction reads at a new version and has forgotten its writes."""
    k = stored
    tr = begin(db)
    tr[k("b")].wait()
    tr[k("mine")] = b"1"
    db[k("b")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    tr.on_error(NOT_COMMITTED).wait()
    assert tr[k("b")] == b"other"
    assert not tr[k("mine")].present()
    assert not conflicts(tr, k)


def test_a_short_reverse_read_conflicts_up_to_its_end(db, stored, fdb_module):
    """A read from the end that stops early still depends on the keys between its end's anchor and its end."""
    k = stored
    tr = begin(db)
    end = fdb_module.KeySelector(k("c"), False, 3)
    assert k.names(tr.get_range(k("a"), end, limit=1, reverse=True)) == "d"
    db[k("c") + b"new"] = b"other"
    assert conflicts(tr, k)


def test_conflict_ranges_are_checked_from_a_set_version(db, stored):
    """An explicit read conflict range at a set version conflicts with later writes, without any read."""
    k = stored
    version = begin(db).get_read_version().wait()
    db[k("a")] = b"other"
    tr = db.create_transaction()
    tr.set_read_version(version)
    tr.add_read_conflict_key(k("a"))
    assert conflicts(tr, k)
