"""The database's conveniences, the values and rows they return, and keys that are more than bytes."""

import pytest

import fdbqueue


def test_the_calls_of_a_database_commit_at_once(db, k):
    """`db[key]`, `db[key] = value` and `del db[key]` are transactions of their own, and so are the others."""
    for name in ("a", "b", "c", "ca", "cb", "d"):
        db.set(k(name), b"1")
    db[k("aa")] = b"1"
    assert db[k("a")] == db.get(k("aa")) == b"1"
    db.clear(k("a"))
    del db[k("aa")]
    assert db[k("a")] is None
    db.clear_range_startswith(k("c"))
    rows = db.get_range(k.begin, k.end, limit=2, reverse=True)
    assert isinstance(rows, list)
    assert k.names(rows) == "db"
    assert len(db.get_range(None, None, 1)) == 1
    db.clear_range(k("b"), k("c"))
    assert k.names(db.get_range(k.begin, k.end)) == "d"
    del db[k.begin : k.end]
    assert db.get_range(k.begin, k.end) == []


def test_clear_takes_selectors(db, fdb_module, k):
    k.write(db, "abcdef")
    selector = fdb_module.KeySelector
    tr = db.create_transaction()
    tr.clear(selector.first_greater_than(k("a")))
    tr.clear_range(selector.last_less_or_equal(k("d")), selector.first_greater_or_equal(k("f")))
    tr.commit().wait()
    assert k.names(db.get_range(k.begin, k.end)) == "acf"


def test_a_row_is_a_pair(db, k):
    db[k("a")] = b"1"
    (row,) = db.create_transaction().get_range(k.begin, k.end)
    key, value = row
    assert (key, value) == (row.key, row.value) == (k("a"), b"1")
    assert repr(row) == f"{k('a')!r}: b'1'"


def test_a_value_behaves_as_its_bytes(db, k):
    """Comparison, concatenation, length, slices and the methods of bytes."""
    db[k("a")] = b"abc"
    db[k("number")] = b"42"
    tr = db.create_transaction()  # kept: dropping a transaction cancels its reads on the way
    value = tr[k("a")]
    assert value == tr[k("a")] == b"abc"
    assert value != b"abd"
    assert value < b"b"
    assert value >= b"abc"
    assert value + b"d" == b"abcd"
    assert b"_" + value == b"_abc"
    assert value + tr[k("a")] == value * 2 == b"abcabc"
    assert (len(value), value[1:], value[0]) == (3, b"bc", 97)
    assert value.startswith(b"ab")
    assert value.upper() == b"ABC"
    assert hash(value) == hash(b"abc")
    assert bytes(value) == b"abc"
    assert isinstance(value, bytes)
    assert str(value) == repr(value) == "b'abc'"
    assert int(tr[k("number")]) == 42


def test_a_value_is_a_future_and_never_none(db, k):
    """`tr[key] is None` is always false: ask `== None`, `.present()` or `.value`."""
    tr = db.create_transaction()
    value = tr[k("a")]
    assert value is not None
    assert value == None  # noqa: E711
    assert value.value is None
    assert value.wait() is value


def test_what_was_read_is_a_key_or_a_value_of_a_write(db, k, fdb_module):
    db[k("a")] = k("b")
    tr = db.create_transaction()
    read, found = tr[k("a")], tr.get_key(fdb_module.KeySelector.first_greater_or_equal(k("a")))
    tr[read] = read
    tr.set(k("names"), found)
    tr[found] = b"written"
    tr.commit().wait()
    assert (db[k("b")], db[k("names")], db[k("a")]) == (k("b"), k("a"), b"written")


def test_a_subspace_is_a_key(db, space):
    tr = db.create_transaction()
    tr[space["x"]] = b"1"
    assert tr[space["x"]] == b"1"
    assert tr[space.pack(("x",))] == b"1"
    begin, end = space.range().start, space.range().stop
    assert [space.unpack(row.key) for row in tr.get_range(begin, end)] == [("x",)]
    assert len(list(tr[space.range()])) == 1


def test_an_object_may_stand_for_a_value(db, k):
    """An object with `as_foundationdb_value` is a value."""

    class Number:
        def as_foundationdb_value(self):
            return b"7"

    db[k("a")] = Number()
    assert db[k("a")] == b"7"


def test_selectors_add_and_subtract(fdb_module):
    """A selector is a key, whether it may be equal, and an offset."""
    selector = fdb_module.KeySelector.first_greater_than(b"a") + 3 - 1
    assert (selector.key, selector.or_equal, selector.offset) == (b"a", True, 3)
    assert repr(selector) == "KeySelector(b'a', True, 3)"
    assert fdb_module.KeySelector(b"a", False, 0).offset == fdb_module.KeySelector.last_less_than(b"a").offset


def test_the_size_of_a_range_is_estimated(db, k):
    k.write(db, "abc")
    tr = db.create_transaction()
    assert tr.get_estimated_range_size_bytes(k.begin, k.end).wait() >= 0
    points = tr.get_range_split_points(k.begin, k.end, 1_000_000).wait()
    assert (points[0], points[-1]) == (k.begin, k.end)
    with pytest.raises(Exception, match="Invalid begin key"):
        tr.get_range_split_points(None, k.end, 1)


def test_closing_twice_leaves_the_other_database_open(tmp_path):
    """Both are of one directory: they share its files, and see the same keys."""
    with fdbqueue.open(f"embedded:{tmp_path}/data") as one, fdbqueue.open(f"embedded:{tmp_path}/data") as two:
        two[b"a"] = b"1"
        assert one[b"a"] == b"1"
        one.engine.close()
        one.engine.close()
        two[b"a"] = b"2"
        assert two[b"a"] == b"2"


def test_the_embedded_engine_cuts_a_range_at_full_chunks():
    with fdbqueue.open("memory:") as database:
        for name in b"abcdef":
            database[bytes([name])] = b"x" * 9
        tr = database.create_transaction()
        points = tr.get_range_split_points(b"a", b"g", 20).wait()
        assert points == [b"a", b"c", b"e", b"g"]
        assert tr.get_range_split_points(b"a", b"g", 21).wait() == [b"a", b"d", b"g"]


def test_the_embedded_engine_counts_the_newest_version():
    """The size is no read: it fixes no version, and conflicts with nothing."""
    with fdbqueue.open("memory:") as database:
        tr = database.create_transaction()
        tr[b"a"].wait()
        database[b"key"] = b"value"
        assert tr.get_estimated_range_size_bytes(b"", b"\xff").wait() == len(b"key" + b"value")
        assert tr.get_range_split_points(b"", b"\xff", 1).wait() == [b"", b"\xff"]
        tr[b"b"] = b"1"
        tr.commit().wait()


def test_a_prefix_of_ff_has_no_end(db):
    """There is no key after all that begin with b"\\xff"."""
    with pytest.raises(ValueError, match="at least one byte not equal to 0xFF"):
        db.create_transaction().get_range_startswith(b"\xff\xff")


def test_an_engines_own_transactional_runs_and_retries(engine_db, fdb_module, k):
    """The module's `transactional` is the binding's: a database runs and commits, a transaction composes."""
    attempts = []

    @fdb_module.transactional
    def increment(tr, key):
        number = int(tr[key].value or b"0")
        attempts.append(number)
        if len(attempts) == 1:
            engine_db[key] = b"10"
        tr[key] = b"%d" % (number + 1)
        return number

    assert increment(engine_db, k("a")) == 10
    assert attempts == [0, 10]
    tr = engine_db.create_transaction()
    assert increment(tr, k("a")) == 11
    assert engine_db[k("a")] == b"11"


def test_an_engines_transactional_names_its_parameter(engine_db, fdb_module, k):

    @fdb_module.transactional(parameter="where")
    def put(key, where):
        where[key] = b"1"

    put(k("a"), engine_db)
    assert engine_db[k("a")] == b"1"


def test_an_engines_transactional_refuses_generators(engine_db, fdb_module):
    """Their body would run after the commit."""

    @fdb_module.transactional
    def rows(tr):
        yield tr

    with pytest.raises(ValueError, match="Generators"):
        rows(engine_db)


def test_an_exception_in_a_transactional_commits_nothing(engine_db, fdb_module, k):

    @fdb_module.transactional
    def fail(tr):
        tr[k("a")] = b"1"
        raise LookupError("no")

    with pytest.raises(LookupError, match="no"):
        fail(engine_db)
    assert engine_db[k("a")] is None
