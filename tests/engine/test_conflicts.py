"""Which transactions conflict, and which never do."""

import pytest

from tests.engine.releases import is_before_7_3
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


def get(name):
    return lambda tr, k, _: tr[k(name)].wait()


def end(k, selectors, given):
    """A key by its name, or a selector by the name of its kind, a key and an offset."""
    return k(given) if isinstance(given, str) else getattr(selectors, given[0])(k(given[1])) + given[2]


def find(kind, offset=0):
    return lambda tr, k, selectors: tr.get_key(end(k, selectors, (kind, "d", offset))).wait()


def span(first="", last="z\x7f", **how):
    return lambda tr, k, ends: tr.get_range(end(k, ends, first), end(k, ends, last), **how).to_list()


def by_snapshot(tr, k, selectors):
    get("a")(tr.snapshot, k, selectors)
    span()(tr.snapshot, k, selectors)
    find("first_greater_than")(tr.snapshot, k, selectors)


def over_own_writes(tr, k, _):
    tr[k("b")] = b"mine"
    tr.clear_range(k("c"), k("e"))
    tr.get_range(k("a"), k("f")).to_list()


def without_own_writes(tr, k, _):
    tr.options.set_read_your_writes_disable()
    tr[k("b")] = b"mine"
    tr[k("b")].wait()


LONG = "x" * 600
"""Keys behind it differ only beyond the longest key that LMDB takes."""

LIMITED_IN_REVERSE = span(limit=2, reverse=True)

# A read, keys that conflict with it if they change, and keys that do not.
READ = [
    (get("b"), "b", "b\x00 a\xff"),
    (get("zz"), "zz", ""),
    (get(LONG + "a"), LONG + "a", LONG + "b"),
    (by_snapshot, "", "a b e"),
    (without_own_writes, "b", ""),
    # A limit ends the part that was read behind the last row, on the side from which it is read.
    (span(), "b c a x z", ""),
    (span(limit=2), "a b aa", "c h"),
    (LIMITED_IN_REVERSE, "h g", "f a"),
    (span(limit=8), "a h", ""),
    (span(limit=100), "a h z", ""),
    (span("x", "y"), "xx", ""),
    (span("c", "e"), "", "b\xff e"),
    (over_own_writes, "a e", "b d"),
    # A selector reads from its key to the key that it finds.
    (find("first_greater_or_equal"), "d", "e c\xff"),
    (find("first_greater_than"), "e dd", "d"),
    (find("first_greater_or_equal", 2), "ee f", "g"),
    (find("last_less_than"), "c cc", "d b"),
    (find("last_less_or_equal"), "d", ""),
    (find("last_less_or_equal", -2), "cc b", "a"),
    # Both ends of a range read so, even beyond the last row of a limited range.
    (span(("first_greater_or_equal", "b", 0), ("first_greater_or_equal", "b", 3)), "b bb c d", "e a"),
    (span("b", ("first_greater_or_equal", "b\x00", 1), limit=1, reverse=True), "b\x00", ""),
    (span(("first_greater_or_equal", "b", 1), "f", limit=1, reverse=True), "bb", ""),
    (span("b", ("last_less_than", "f", 0), limit=1), "d", ""),
    (span(("last_less_than", "d", 0), "g", limit=1), "cc", ""),
    (span("a", ("first_greater_or_equal", "c", 2), limit=1, reverse=True), "cnew", ""),
    # Explicit conflicts are half open, too.
    (lambda tr, k, _: tr.add_read_conflict_key(k("b")), "b", "b\x00"),
    (lambda tr, k, _: tr.add_read_conflict_range(k("b"), k("d")), "b cc", "d a\xff"),
    (lambda tr, k, _: tr.add_read_conflict_range(k("b"), k("b")), "", "b"),
]


@pytest.mark.parametrize(
    ("read", "changed", "expected"),
    [(read, name, True) for read, conflicting, _ in READ for name in conflicting.split()]
    + [(read, name, False) for read, _, harmless in READ for name in harmless.split()],
)
def test_a_read_conflicts_where_it_read_only(db, engine, fdb_module, stored, read, changed, expected):
    k = stored
    if is_before_7_3(engine) and read is LIMITED_IN_REVERSE:
        pytest.skip("a limited reverse read of 7.1 conflicts on the rest of its range, too")
    tr = begin(db)
    read(tr, k, fdb_module.KeySelector)
    db[k(changed.encode("latin1"))] = b"other"
    assert conflicts(tr, k) is expected


def silently(write):
    return lambda tr, k: (tr.options.set_next_write_no_write_conflict_range(), write(tr, k))


def stamped_and_set(tr, k):
    stamped = k(b"stamped") + bytes(10)
    tr.set_versionstamped_key(stamped + (len(stamped) - 10).to_bytes(4, "little"), b"")
    tr[k("b")] = b"other"


def set_twice(tr, k):
    tr[k("b")] = b"1"
    silently(lambda tr, k: tr.set(k("b"), b"2"))(tr, k)


# A read, a write of another transaction, and whether they conflict.
WRITTEN = [
    (get("b"), lambda tr, k: tr.set(k("b"), b"value"), True),  # the same value
    (get("b"), lambda tr, k: tr.clear(k("b")), True),
    (get("b"), lambda tr, k: tr.clear_range(k("a"), k("c")), True),
    (get("b"), lambda tr, k: tr.add(k("b"), b"\x01"), True),
    (get("b"), lambda tr, k: tr.add_write_conflict_key(k("b")), True),
    (get("b"), lambda tr, k: tr.add_write_conflict_range(k("b"), k("d")), True),
    (get("d"), lambda tr, k: tr.add_write_conflict_range(k("b"), k("d")), False),
    (span("c", "e"), lambda tr, k: tr.clear_range(k("a"), k("c")), False),
    (span("c", "e"), lambda tr, k: tr.clear_range(k("e"), k("g")), False),
    (span("c", "e"), lambda tr, k: tr.clear_range(k("a"), k("c\x00")), True),
    # The option is for the next write, of any kind, and takes no conflict of an earlier one away.
    (get("b"), silently(lambda tr, k: (tr.set(k("b"), b"1"), tr.set(k("c"), b"1"))), False),
    (get("c"), silently(lambda tr, k: (tr.set(k("b"), b"1"), tr.set(k("c"), b"1"))), True),
    (get("b"), silently(lambda tr, k: tr.clear(k("b"))), False),
    (get("b"), silently(lambda tr, k: tr.clear_range(k("b"), k("c"))), False),
    (get("b"), silently(lambda tr, k: tr.add(k("b"), b"\x01")), False),
    (get("b"), silently(stamped_and_set), True),
    (get("b"), set_twice, True),
]


@pytest.mark.parametrize(("read", "write", "expected"), WRITTEN)
def test_a_read_conflicts_with_each_kind_of_write(db, fdb_module, stored, read, write, expected):
    k = stored
    tr, other = begin(db), db.create_transaction()
    read(tr, k, fdb_module.KeySelector)
    write(other, k)
    other.commit().wait()
    assert conflicts(tr, k) is expected


def test_a_conflict_leaves_no_trace(db, stored):
    """It writes nothing, so it conflicts with no other transaction."""
    k = stored
    tr, reader = begin(db), begin(db)
    tr[k("a")].wait()
    reader[k("b")].wait()
    tr[k("b")] = b"1"
    tr.clear_range(k("c"), k("h"))
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    assert k.names(db.get_range(k.begin, k.end)) == "abcdefgh"
    assert not conflicts(reader, k)


def test_a_write_before_the_read_version_is_no_conflict(db, stored):
    k = stored
    db[k("b")] = b"earlier"
    tr = begin(db)
    tr[k("b")].wait()
    assert not conflicts(tr, k)


def test_write_only_transactions_never_conflict(db, stored):
    k = stored
    writers = [begin(db) for _ in range(5)]
    for number, tr in enumerate(writers):
        tr[k("a")] = b"%d" % number
        tr.clear_range(k("b"), k("d"))
        tr.add(k("e"), b"\x01")
    assert [commit_code(tr) for tr in writers] == [0] * 5
    assert db[k("a")] == b"4"


@pytest.mark.parametrize(("writes", "code"), [(False, 0), (True, NOT_COMMITTED)])
def test_reads_are_checked_if_there_is_a_write(db, stored, writes, code):
    """A write conflict is enough."""
    k = stored
    tr = begin(db)
    tr[k("a")].wait()
    if writes:
        tr.add_write_conflict_key(k("elsewhere"))
    db[k("a")] = b"other"
    assert commit_code(tr) == code


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


@pytest.mark.parametrize("second", ["bc", "bd", "dg", "ah"])
def test_a_range_read_again_in_part_conflicts_as_a_whole(db, stored, second):
    k = stored
    tr = begin(db)
    tr.get_range(k("a"), k("g")).to_list()
    tr.get_range(k(second[0]), k(second[1])).to_list()
    db[k("f")] = b"other"
    assert conflicts(tr, k)


@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_inverted_conflict_range_is_refused_at_once(db, fdb_module, k, kind):
    """A bad key waits for the next future; an inverted conflict range raises where it stands."""
    tr = db.create_transaction()
    with pytest.raises(fdb_module.FDBError) as refused:
        getattr(tr, f"add_{kind}_conflict_range")(k("b"), k("a"))
    assert refused.value.code == INVERTED_RANGE
    assert commit_code(tr) == 0


@pytest.mark.parametrize("is_set", [False, True])
def test_a_conflict_alone_is_as_of_the_commit_or_a_set_version(db, stored, is_set):
    k = stored
    tr, version = db.create_transaction(), begin(db).get_read_version().wait()
    if is_set:
        tr.set_read_version(version)
    tr.add_read_conflict_key(k("b"))
    db[k("b")] = b"other"
    assert conflicts(tr, k) is is_set


READS = {
    "get": lambda tr, key, _: tr[key].wait(),
    "range": lambda tr, key, _: tr.get_range(key, key + b"\x00").to_list(),
    "conflict key": lambda tr, key, _: tr.add_read_conflict_key(key),
    "conflict range": lambda tr, key, _: tr.add_read_conflict_range(key, key + b"\x00"),
    "selector": lambda tr, key, selector: tr.get_key(selector.last_less_or_equal(key)).wait(),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_before_the_write_of_a_key_conflicts(db, fdb_module, stored, read):
    k = stored
    tr = begin(db)
    READS[read](tr, k("b"), fdb_module.KeySelector)
    tr[k("b")] = b"mine"
    db[k("b")] = b"other"
    assert conflicts(tr, k)


def test_on_error_after_a_conflict_starts_afresh(db, stored):
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
